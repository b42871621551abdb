//! The conformance suite, without the checks that cause a finding of the tool on purpose.

use std::sync::Arc;

use dmr_core::conformance::{CHECKS, run};
use dmr_sanitize::machine::Machine;
use dmr_sanitize::stacks::Stack;
use dmr_testkit::Rig;
use libtest_mimic::{Failed, Trial};

use crate::stage::rig;

/// The checks that are left out: one leaks a block, one allocates all memory of the device.
const LEFT_OUT: [&str; 2] =
    ["a_dropped_block_leaks_visibly", "running_out_of_memory_changes_nothing"];

pub(crate) fn trials(stack: Stack) -> Vec<Trial> {
    let checks = CHECKS.iter().filter(|check| !LEFT_OUT.contains(&check.name));
    let trial = |name: &'static str| {
        Trial::test(format!("{}::conformance::{name}", stack.name), move || keeps(stack, name))
    };
    checks.map(|check| trial(check.name)).collect()
}

fn keeps(stack: Stack, check: &str) -> Result<(), Failed> {
    let machine = Machine::select()?;
    let make = |rig: &Rig| stack.make(&Arc::clone(rig.streams())).expect("a resource");
    run(check, || rig(&machine).harness(make)).into_result()?;
    let Some(universe) = machine.universe() else { return Ok(()) };
    let verdict = universe.finish();
    if verdict.is_clean() { Ok(()) } else { Err(verdict.to_string().into()) }
}
