//! Leaving any one record, wait or synchronisation out of a correct program is either reported or
//! proved harmless.
//!
//! Left out of the program itself, or swallowed by the driver under a complete program.
#![allow(clippy::print_stdout)] // prints the number of needed ones

use crate::support::generate;
use crate::support::judge::{self, Agreed};
use crate::support::program::{Program, Step};
use crate::support::run::{self, Footprints, Run};
use dmr_sim::{Policy, Universe};

const PROGRAMS: u64 = 300;

#[test]
fn a_deleted_ordering_is_reported_or_redundant() {
    each_deletion("deleted", |program, index, policy, seed| {
        run::run(&program.without(index), policy, seed)
    });
}

#[test]
fn a_swallowed_ordering_is_reported_or_redundant() {
    each_deletion("swallowed", |program, index, policy, seed| {
        let (call, nth) = driver_call(program, index);
        let swallow = |universe: &Universe| universe.swallow_nth(call, nth);
        let mut run = run::run_with(program, policy, seed, Footprints::Declared, swallow);
        // Judged as the program of the driver calls that had an effect.
        run.outcomes.remove(index);
        run.forget_step(index);
        run
    });
}

fn each_deletion(how: &str, run: impl Fn(&Program, usize, Policy, u64) -> Run) {
    let mut needed = 0;
    let mut redundant = 0;
    for seed in 0..PROGRAMS {
        let program = generate::correct(seed);
        let policy = [Policy::Eager, Policy::Lazy, Policy::Random][seed as usize % 3];
        for index in 0..program.steps.len() {
            if !program.steps[index].is_ordering() {
                continue;
            }
            let without = program.without(index);
            match judge::compare(&without, &run(&program, index, policy, seed)) {
                Ok(Agreed::Racy) => needed += 1,
                Ok(Agreed::Clean) => redundant += 1,
                Err(why) => panic!("{policy:?}, seed {seed}, step {index} {how}: {why}\n{program}"),
            }
        }
    }
    println!("{how}: {needed} reported, {redundant} proved redundant");
    assert!(needed > PROGRAMS && redundant > 0);
}

/// Returns the driver call of a step, and its number among the program's calls of that function.
fn driver_call(program: &Program, index: usize) -> (&'static str, u64) {
    let call = name(&program.steps[index]).expect("an ordering step");
    let earlier = program.steps[..=index].iter();
    (call, earlier.filter(|step| name(step) == Some(call)).count() as u64)
}

fn name(step: &Step) -> Option<&'static str> {
    Some(match step {
        Step::Record { .. } => "cuEventRecord",
        Step::Wait { .. } => "cuStreamWaitEvent",
        Step::SyncStream(_) => "cuStreamSynchronize",
        Step::SyncEvent(_) => "cuEventSynchronize",
        Step::SyncContext => "cuCtxSynchronize",
        _ => return None,
    })
}
