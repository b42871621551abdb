//! The testkit's scenarios: one for each kind of dependency between streams.

use std::sync::Arc;

use dmr_sanitize::Outcome;
use dmr_sanitize::stacks::Stack;
use dmr_testkit::scenarios::{self, SCENARIOS, Scenario};
use libtest_mimic::Trial;

use crate::stage::Stage;

pub(crate) fn trials(stack: Stack) -> Vec<Trial> {
    let trial = |scenario: Scenario| {
        let name = scenario.name.replace(' ', "_");
        Trial::test(format!("{}::scenarios::{name}", stack.name), move || {
            Ok(play(stack, scenario)?)
        })
    };
    SCENARIOS.iter().copied().map(trial).collect()
}

fn play(stack: Stack, scenario: Scenario) -> Outcome {
    let stage = Stage::new(stack)?;
    let played = scenarios::Stage::new(&stage.rig, Arc::clone(stage.resource()));
    (scenario.play)(&played)?;
    played.wait_and_check()?;
    drop(played);
    stage.finish()
}
