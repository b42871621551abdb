//! Gives random inputs to the parser, or to the interpreter:
//! `cargo run -p dmr-ptx --example fuzz -- run 10000000`.
//!
//! The words of the command are `parse` or `run`, the number of inputs, the number of the first
//! (0), and the number of threads (1). An input that panics is written to the standard error with
//! its number, and the status is 1.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its result")]

#[path = "../tests/support/mutations.rs"]
mod mutations;
#[path = "../tests/support/programs.rs"]
mod programs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use dmr_ptx::{Program, syntax};

/// The results of a number of inputs.
#[derive(Default)]
struct Counts {
    /// Texts that are PTX.
    loaded: u64,
    /// Programs that ran a kernel.
    ran: u64,
    panics: u64,
    slowest: Duration,
    slowest_input: u64,
}

fn main() -> std::process::ExitCode {
    let mut words = std::env::args().skip(1);
    let runs = words.next().as_deref() == Some("run");
    let mut numbers = words.map(|word| word.parse::<u64>().unwrap_or(0));
    let count = numbers.next().unwrap_or(1_000_000);
    let first = numbers.next().unwrap_or(0);
    let threads = numbers.next().unwrap_or(1).max(1);
    let pool = programs::Pool::new();
    println!("{} statements, {} of them blocks", pool.len(), pool.blocks());
    let all = Mutex::new(Counts::default());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let pool = &pool;
            let all = &all;
            let inputs = (first + thread..first + count).step_by(threads as usize);
            scope.spawn(move || {
                let counts = inputs_of(inputs, runs, pool, count / threads / 10);
                let mut all = all.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                all.loaded += counts.loaded;
                all.ran += counts.ran;
                all.panics += counts.panics;
                if counts.slowest > all.slowest {
                    all.slowest = counts.slowest;
                    all.slowest_input = counts.slowest_input;
                }
            });
        }
    });
    let all = all.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    println!(
        "{count} inputs from {first}, {} of them PTX, {} ran, {} panics, {:?}; the slowest, {}, took {:?}; {}",
        all.loaded,
        all.ran,
        all.panics,
        start.elapsed(),
        all.slowest_input,
        all.slowest,
        peak_memory(),
    );
    u8::from(all.panics > 0).into()
}

fn inputs_of(
    inputs: impl Iterator<Item = u64>,
    runs: bool,
    pool: &programs::Pool,
    step: u64,
) -> Counts {
    let mut counts = Counts::default();
    for (done, number) in inputs.enumerate() {
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| match runs {
            true => Program::load(&pool.program(number)).is_ok_and(|program| {
                counts.loaded += 1;
                programs::run(&program, number)
            }),
            false => {
                counts.loaded += u64::from(syntax::parse(&mutations::text(number)).is_ok());
                false
            }
        }));
        match result {
            Ok(ran) => counts.ran += u64::from(ran),
            Err(_) => {
                counts.panics += 1;
                let text =
                    if runs { pool.program(number).into_bytes() } else { mutations::text(number) };
                eprintln!("input {number} panics:\n{}", String::from_utf8_lossy(&text));
            }
        }
        if start.elapsed() > counts.slowest {
            counts.slowest = start.elapsed();
            counts.slowest_input = number;
        }
        if step > 0 && (done as u64 + 1).is_multiple_of(step) {
            println!("{} inputs, {}", done + 1, peak_memory());
        }
    }
    counts
}

/// Returns the most memory that the process has had, as Linux says.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown").to_owned()
}
