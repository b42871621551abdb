//! `dmr-programs [--forks] [COUNT [FIRST [THREADS]]]`: runs `COUNT` random programs over every
//! stack, from number `FIRST` on, in `THREADS` threads. Prints the first failures, shrunk, how
//! often the programs reached each conflict, and the programs per second. Fails if a failure is not
//! a known one.
//!
//! With `--forks` each program is short and forks, under a thread that is held in a driver call: a
//! fork takes as long as several programs without one.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command")]
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dmr_programs::conflicts::Counts;
use dmr_programs::generate::{Shape, program};
use dmr_programs::known;
use dmr_programs::player::Options;
use dmr_programs::run::Runner;
use dmr_programs::shrink::shrink;
use dmr_programs::stack::Stack;
use dmr_sim::Policy;

/// The maximum number of failures that are shrunk.
const SHRUNK: usize = 8;

/// The numbers of the command line.
struct Arguments {
    count: u64,
    first: u64,
    threads: u64,
}

/// The results of all threads.
#[derive(Default)]
struct Done {
    counts: Counts,
    known: BTreeMap<&'static str, u64>,
    failures: usize,
}

/// Returns the arguments, with a default for each that is missing.
fn arguments(numbers: &[u64]) -> Option<Arguments> {
    let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let arguments =
        || Arguments { count: number(0, 10_000), first: number(1, 0), threads: number(2, 2) };
    (numbers.len() <= 3).then(arguments)
}

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let shape = match words.first().is_some_and(|word| word == "--forks") {
        true => {
            words.remove(0);
            Shape::FORKS
        }
        false => Shape::FULL,
    };
    let numbers: Result<Vec<u64>, _> = words.iter().map(|word| word.parse()).collect();
    let Some(arguments) = numbers.ok().and_then(|numbers| arguments(&numbers)) else {
        eprintln!("usage: dmr-programs [--forks] [COUNT [FIRST [THREADS]]], each a number");
        return ExitCode::FAILURE;
    };
    let Arguments { count, first, threads } = arguments;
    // A panic in a program is a failure of the program, and is printed with it.
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let done = Mutex::new(Done::default());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut runner = Runner::new(Options::default());
                loop {
                    // Each hundred programs have one policy, so that they can share machines.
                    let hundred = next.fetch_add(100, Ordering::Relaxed);
                    if hundred >= count {
                        break;
                    }
                    if hundred.is_multiple_of(50_000) {
                        println!(
                            "{hundred} programs after {:.0} s",
                            started.elapsed().as_secs_f64()
                        );
                    }
                    let policies = [Policy::Lazy, Policy::Random, Policy::Eager];
                    let policy = policies[((first + hundred) / 100 % 3) as usize];
                    for number in first + hundred..first + count.min(hundred + 100) {
                        let stack = Stack::ALL[(number % Stack::ALL.len() as u64) as usize];
                        let program = program(number, stack, policy, shape);
                        let Err(failure) = runner.play(&program) else { continue };
                        let mut done = done.lock().expect("no panic under the lock");
                        if let Some(known) = known::classify(&program, &failure) {
                            *done.known.entry(known.name).or_default() += 1;
                            continue;
                        }
                        done.failures += 1;
                        let is_shrunk = done.failures <= SHRUNK;
                        drop(done);
                        println!("program {number} on {stack}: {failure}");
                        if is_shrunk {
                            let (small, failure) = shrink(&program, &failure, &Options::default());
                            println!("{failure}\n{small}");
                        }
                    }
                }
                let ended = runner.end();
                let mut done = done.lock().expect("no panic under the lock");
                done.counts.add(&runner.counts);
                if let Err(failure) = ended {
                    done.failures += 1;
                    println!("{failure}");
                }
            });
        }
    });
    let Done { counts, known, failures } = done.into_inner().expect("no panic under the lock");
    let seconds = started.elapsed().as_secs_f64();
    println!("{counts}");
    known.iter().for_each(|(name, count)| println!("{count:>12}  known failure: {name}"));
    println!("{:.0} programs a second: {count} in {seconds:.0} s", count as f64 / seconds);
    println!("{failures} failures that are not known");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
