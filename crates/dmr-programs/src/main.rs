//! The long run of the random programs: how many a second, which conflicts they have reached, and
//! the first failures, shrunk.

#![allow(clippy::print_stdout, reason = "a command")]
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

/// Failures that are shrunk.
const SHRUNK: usize = 8;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut number = |default: u64| words.next().and_then(|it| it.parse().ok()).unwrap_or(default);
    let (count, first, shards) = (number(10_000), number(0), number(2));
    // A panic in a program is a failure of the program, and printed as such.
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let (next, done) =
        (AtomicU64::new(0), Mutex::new((Counts::default(), BTreeMap::new(), 0usize)));
    std::thread::scope(|scope| {
        for _ in 0..shards {
            scope.spawn(|| {
                let mut runner = Runner::new(Options::default());
                loop {
                    // A hundred at a time share a policy, and so their machines.
                    let hundred = next.fetch_add(100, Ordering::Relaxed);
                    if hundred >= count {
                        break;
                    }
                    if hundred % 50_000 == 0 {
                        println!(
                            "{hundred} programs after {:.0} s",
                            started.elapsed().as_secs_f64()
                        );
                    }
                    let policies = [Policy::Lazy, Policy::Random, Policy::Eager];
                    let policy = policies[((first + hundred) / 100 % 3) as usize];
                    for number in first + hundred..first + count.min(hundred + 100) {
                        let stack = Stack::ALL[(number % Stack::ALL.len() as u64) as usize];
                        let program = program(number, stack, policy, Shape::FULL);
                        let Err(failure) = runner.play(&program) else { continue };
                        let mut done = done.lock().expect("no panic under the lock");
                        if let Some(known) = known::classify(&program, &failure) {
                            *done.1.entry(known.name).or_insert(0u64) += 1;
                            continue;
                        }
                        done.2 += 1;
                        let is_shrunk = done.2 <= SHRUNK;
                        drop(done);
                        println!("program {number} on {stack}: {failure}");
                        if is_shrunk {
                            let (small, failure) = shrink(&program, &failure, &Options::default());
                            println!("{failure}\n{small}");
                        }
                    }
                }
                done.lock().expect("no panic under the lock").0.add(&runner.counts);
            });
        }
    });
    let (counts, known, failures) = done.into_inner().expect("no panic under the lock");
    let seconds = started.elapsed().as_secs_f64();
    println!("{counts}");
    known.iter().for_each(|(name, count)| println!("{count:>12}  known failure: {name}"));
    println!("{:.0} programs a second: {count} in {seconds:.0} s", count as f64 / seconds);
    println!("{failures} failures that are not known");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
