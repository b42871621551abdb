//! Layers over the stack: a budget that refuses, and a debug guard that fills and checks.

use std::sync::Arc;

use dmr_adaptors::ResourceBuilder;
use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::guard::{DebugGuardLayer, GuardChecks};
use dmr_buffer::DeviceBuffer;
use dmr_core::{DeviceOps, ResourceError};
use dmr_sanitize::Outcome;
use dmr_sanitize::stacks::Stack;
use dmr_streams::PatternOps;
use libtest_mimic::Trial;

use crate::SIZES;
use crate::stage::Stage;

type Test = (&'static str, fn(Stack) -> Outcome);

const TESTS: &[Test] = &[
    ("a_budget_refuses_what_does_not_fit_and_serves_the_next_block", budget),
    ("a_guard_that_checks_at_once_finds_nothing_in_a_sound_program", immediate_guard),
    ("a_guard_that_checks_later_finds_nothing_in_a_sound_program", deferred_guard),
];

pub(crate) fn trials(stack: Stack) -> Vec<Trial> {
    let trial = |&(name, test): &Test| {
        Trial::test(format!("{}::layers::{name}", stack.name), move || Ok(test(stack)?))
    };
    TESTS.iter().map(trial).collect()
}

fn budget(stack: Stack) -> Outcome {
    const LIMIT: u64 = 1 << 20;
    let stage = Stage::with(stack, |resource, _| {
        ResourceBuilder::new(resource).layer(BudgetLayer::new(LIMIT)).build_shared()
    })?;
    let stream = stage.rig.stream();
    let mut block = stage.allocate((LIMIT / 2) as usize + 1, stream.id())?;
    for pattern in 0..4 {
        let refused = stage.resource().allocate(block.bytes(), stream.id(), block.tag());
        assert!(matches!(refused, Err(ResourceError::OutOfBudget { .. })), "{refused:?}");
        let bytes = block.bytes();
        stage.rig.ops().fill_pattern(&block, 0..bytes, pattern, stream.id())?;
        stage.rig.ops().check_pattern(&block, 0..bytes, pattern, stream.id(), 0)?;
        stage.free(block)?;
        block = stage.allocate(bytes, stream.id())?;
    }
    stage.free(block)?;
    drop(stream);
    stage.finish()
}

fn immediate_guard(stack: Stack) -> Outcome {
    guarded(stack, GuardChecks::Immediate)
}

fn deferred_guard(stack: Stack) -> Outcome {
    guarded(stack, GuardChecks::Deferred)
}

fn guarded(stack: Stack, checks: GuardChecks) -> Outcome {
    let stage = Stage::with(stack, |resource, rig| {
        let ops = PatternOps::new(Arc::clone(rig.streams())).expect("device operations");
        let layer = DebugGuardLayer::new(Arc::new(ops)).with_checks(checks);
        ResourceBuilder::new(resource).layer(layer).build_shared()
    })?;
    let a = stage.rig.stream();
    let b = stage.rig.stream();
    for &len in SIZES {
        let source = DeviceBuffer::from_host(&stage.ctx, &a, &vec![1_u8; len])?;
        let mut target = DeviceBuffer::<u8>::uninit(&stage.ctx, &b, len)?;
        stage.add(&b, &source, &mut target, 1)?;
        drop(source);
        assert_eq!(target.to_host(&a)?, vec![2; len]);
    }
    stage.resource().reap_pending()?;
    drop((a, b));
    stage.finish()
}
