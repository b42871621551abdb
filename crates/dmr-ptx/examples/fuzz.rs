//! Parses random texts in two threads: `cargo run --release -p dmr-ptx --example fuzz -- 10000000`, from number 0 on.
#![allow(clippy::print_stdout, reason = "a program that prints its result")]

#[path = "../tests/support/mutations.rs"]
mod mutations;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const THREADS: u64 = 2;

static PARSED: AtomicU64 = AtomicU64::new(0);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap_or(0));
    let count: u64 = arguments.next().unwrap_or(1_000_000);
    let first: u64 = arguments.next().unwrap_or(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let numbers = (first + thread..first + count).step_by(THREADS as usize);
                let parsed = numbers
                    .filter(|&number| dmr_ptx::syntax::parse(&mutations::text(number)).is_ok())
                    .count();
                PARSED.fetch_add(parsed as u64, Ordering::Relaxed);
            });
        }
    });
    println!(
        "{count} texts, {} of them PTX, {:?}",
        PARSED.load(Ordering::Relaxed),
        start.elapsed()
    );
}
