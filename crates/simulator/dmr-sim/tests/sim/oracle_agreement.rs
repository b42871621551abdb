//! The simulator and the brute-force oracle agree on 10,000 random programs under every scheduling
//! policy.
//!
//! For each program: there are reports if and only if the oracle has findings; the first report
//! concerns the operation of the oracle's first finding, and has its kind; each report is a finding
//! of the oracle; a program without a finding computes the same bytes as in submission order; the
//! same seed gives the same run.
#![allow(clippy::print_stdout)] // prints the cost of the comparison

use std::time::Instant;

use crate::support::judge::{self, Agreed};
use crate::support::program::Program;
use crate::support::{generate, shrink};
use dmr_sim::Policy;

const PROGRAMS: u64 = 10_000;

#[test]
fn agrees_with_the_oracle_when_work_executes_at_once() {
    compare(Policy::Eager);
}

#[test]
fn agrees_with_the_oracle_when_work_waits_to_be_waited_for() {
    compare(Policy::Lazy);
}

#[test]
fn agrees_with_the_oracle_when_work_executes_in_random_order() {
    compare(Policy::Random);
}

fn compare(policy: Policy) {
    let started = Instant::now();
    let mut racy = 0;
    let mut steps = 0;
    for seed in 0..PROGRAMS {
        let program = generate::any(seed);
        steps += program.steps.len();
        match judge::agree(&program, policy, seed) {
            Ok(Agreed::Clean) => {}
            Ok(Agreed::Racy) => racy += 1,
            Err(why) => disagree(&program, policy, seed, why),
        }
    }
    let took = started.elapsed();
    println!(
        "{policy:?}: {PROGRAMS} programs, {steps} steps, each run twice, {racy} racy, {:.1} s, {:.1} µs a step",
        took.as_secs_f64(),
        took.as_micros() as f64 / (2 * steps) as f64
    );
    assert!(
        (PROGRAMS / 3..=PROGRAMS * 2 / 3).contains(&racy),
        "{racy} racy programs are no fair mix"
    );
}

fn disagree(program: &Program, policy: Policy, seed: u64, why: String) -> ! {
    let (small, why) =
        shrink::shrink(program, why, |shorter| judge::agree(shorter, policy, seed).err());
    panic!("{policy:?}, seed {seed}: {why}\n{small}");
}
