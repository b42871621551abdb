//! A4, T5: every adaptor forwards every method once, over resources with and without use tracking.
#![cfg(all(
    feature = "aligned",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "logging",
    feature = "statistics"
))]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::callbacks::FailureCallbackLayer;
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_adaptors::logging::{LoggingLayer, NullSink};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::conformance::{Harness, Spy, check_forwarding};
use dmr_fake::FakeHarness;

fn assert_forwards<L: ResourceLayer<Spy<'static>>>(layer: impl Fn(&FakeHarness) -> L) {
    assert_result(layer, Ok(()));
}

/// Around a spy on both kinds of fakes. The fakes stay until the process ends: a budget keeps
/// what it is around, so that must not be borrowed.
fn assert_result<L: ResourceLayer<Spy<'static>>>(
    layer: impl Fn(&FakeHarness) -> L,
    expected: Result<(), &str>,
) {
    for tracks in [true, false] {
        let harness: &'static FakeHarness = Box::leak(Box::new(FakeHarness::new(tracks)));
        let layer = layer(harness);
        let result = check_forwarding(harness, |spy| layer.layer(spy));
        assert_eq!(result, expected.map_err(str::to_owned), "tracks: {tracks}");
        assert_eq!(harness.resource().usage().outstanding(), 0, "tracks: {tracks}");
    }
}

/// The upstream resource's outstanding bytes have the padding in them, and aligned blocks do not
/// grow.
#[test]
fn aligned_forwards_every_method_but_growth_and_its_own_accounting() {
    let aligned = |_: &FakeHarness| AlignedLayer::new(4096).expect("an alignment");
    let missed = "not forwarded exactly once: bytes_outstanding (0 calls), try_grow (0 calls)";
    assert_result(aligned, Err(missed));
}

#[test]
fn a_budget_forwards_every_method() {
    assert_forwards(|harness| BudgetLayer::new(harness.device_bytes()));
}

#[test]
fn failure_callbacks_forward_every_method() {
    assert_forwards(|_| FailureCallbackLayer::new());
}

/// It cannot guard pages, so it has no virtual memory, and guarded blocks do not grow.
#[test]
fn a_debug_guard_forwards_every_method_but_growth_and_the_one_for_pages() {
    let guard = |harness: &FakeHarness| {
        DebugGuardLayer::new(Arc::<dmr_fake::FakeOps>::clone(harness.ops()))
    };
    assert_result(
        guard,
        Err("not forwarded exactly once: try_grow (0 calls), virtual_memory (returns None)"),
    );
}

#[test]
fn logging_forwards_every_method() {
    assert_forwards(|_| LoggingLayer::new(Arc::new(NullSink)));
}

#[test]
fn statistics_forward_every_method() {
    assert_forwards(|_| StatisticsLayer::new());
}
