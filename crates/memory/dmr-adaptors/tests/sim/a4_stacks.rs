//! A4: adaptors compose in any order with any backend, and each stack keeps the contract.
//!
//! The whole conformance suite over every adaptor, every ordered pair of them, and random stacks of
//! up to five: on a GPU that would take ten minutes, so each adaptor has a test of its own there.
#![cfg(all(
    feature = "aligned",
    feature = "budget",
    feature = "callbacks",
    feature = "debug-guard",
    feature = "logging",
    feature = "statistics"
))]

use std::sync::Arc;

use dmr_adaptors::ResourceBuilder;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_adaptors::logging::{InMemorySink, LoggingLayer};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::conformance::{Report, run_all};
use dmr_core::{DeviceMemoryResource, DeviceOps};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_fake::{DEVICE_BYTES, FakeHarness};
use dmr_streams::Tracked;
use dmr_testkit::{Rig, RigConfig};
use proptest::prelude::*;

type Resource = Arc<dyn DeviceMemoryResource>;

/// The innermost resource of a stack.
#[derive(Clone, Copy, Debug)]
enum Base {
    /// In host memory, without use tracking.
    Fake,
    /// In host memory, with use tracking.
    TrackingFake,
    Direct,
    TrackedDirect,
    /// Use tracking around blocks that are parts of the backend's.
    TrackedAligned,
    Async,
}

#[derive(Clone, Copy, Debug)]
enum Adaptor {
    Aligned,
    /// More than the device has.
    Budget,
    /// Half of what the device has.
    TightBudget,
    Callbacks,
    DebugGuard,
    Logging,
    Statistics,
}

use Adaptor::{Aligned, Budget, Callbacks, DebugGuard, Logging, Statistics, TightBudget};

const ADAPTORS: [Adaptor; 7] =
    [Aligned, Budget, TightBudget, Callbacks, DebugGuard, Logging, Statistics];

impl Adaptor {
    fn around(self, inner: Resource, ops: &Arc<dyn DeviceOps>, device_bytes: u64) -> Resource {
        let inner = ResourceBuilder::new(inner);
        match self {
            Aligned => inner.layer(AlignedLayer::new(4096).expect("an alignment")).build_shared(),
            Budget => inner.layer(BudgetLayer::new(4 * device_bytes)).build_shared(),
            TightBudget => inner.layer(BudgetLayer::new(device_bytes / 2)).build_shared(),
            Callbacks => {
                let layer = FailureCallbackLayer::new().with_callback(|_| Response::Decline);
                inner.layer(layer).build_shared()
            }
            DebugGuard => inner.layer(DebugGuardLayer::new(Arc::clone(ops))).build_shared(),
            Logging => inner.layer(LoggingLayer::new(Arc::new(InMemorySink::new()))).build_shared(),
            Statistics => inner.layer(StatisticsLayer::new()).build_shared(),
        }
    }
}

/// Runs the suite over these adaptors, the first the innermost.
fn report(base: Base, adaptors: &[Adaptor]) -> Report {
    let stack = |inner: Resource, ops: &Arc<dyn DeviceOps>, device_bytes: u64| {
        adaptors.iter().fold(inner, |inner, adaptor| adaptor.around(inner, ops, device_bytes))
    };
    let on_a_fake = |tracks| {
        run_all(|| FakeHarness::wrapped(tracks, |fake, ops| stack(fake, &ops, DEVICE_BYTES as u64)))
    };
    let on_a_driver = |make: &dyn Fn(&Rig) -> Resource| {
        run_all(|| {
            let config =
                RigConfig { simulated: true, capacity: Some(Rig::SMALL), ..Default::default() };
            Rig::with(config).harness(|rig| {
                let ops: Arc<dyn DeviceOps> = Arc::<dmr_streams::PatternOps>::clone(rig.ops());
                stack(make(rig), &ops, rig.device().total_memory())
            })
        })
    };
    match base {
        Base::Fake => on_a_fake(false),
        Base::TrackingFake => on_a_fake(true),
        Base::Direct => {
            on_a_driver(&|rig| Arc::new(DirectCudaResource::new(Arc::clone(rig.streams()))))
        }
        Base::TrackedDirect => on_a_driver(&|rig| {
            let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
            Arc::new(Tracked::new(direct, Arc::clone(rig.streams())).expect("of the same pool"))
        }),
        Base::TrackedAligned => on_a_driver(&|rig| {
            let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
            let layer = AlignedLayer::new(4096).expect("an alignment");
            let aligned = ResourceBuilder::new(direct).layer(layer).build();
            Arc::new(Tracked::new(aligned, Arc::clone(rig.streams())).expect("of the same pool"))
        }),
        Base::Async => on_a_driver(&|rig| {
            let streams = Arc::clone(rig.streams());
            let config = AsyncConfig::new();
            Arc::new(AsyncCudaResource::new(streams, config).expect("a pool"))
        }),
    }
}

/// Runs the suite over each of these stacks and reports all that fail.
fn assert_contract(base: Base, stacks: impl IntoIterator<Item = Vec<Adaptor>>) {
    let mut failed = String::new();
    for stack in stacks {
        let report = report(base, &stack);
        if !report.is_ok() {
            failed += &format!("{stack:?} on {base:?}, innermost first: {report}\n");
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

fn alone_and_in_pairs() -> impl Iterator<Item = Vec<Adaptor>> {
    let pairs = ADAPTORS.iter().flat_map(|inner| ADAPTORS.map(|outer| vec![*inner, outer]));
    ADAPTORS.iter().map(|adaptor| vec![*adaptor]).chain(pairs)
}

#[test]
fn every_adaptor_and_every_pair_keeps_the_contract_where_uses_are_not_tracked() {
    assert_contract(Base::Fake, alone_and_in_pairs());
}

#[test]
fn every_adaptor_and_every_pair_keeps_the_contract_where_uses_are_tracked() {
    assert_contract(Base::TrackingFake, alone_and_in_pairs());
}

#[test]
fn every_adaptor_and_every_pair_keeps_the_contract_on_the_async_backend() {
    assert_contract(Base::Async, alone_and_in_pairs());
}

#[test]
fn every_adaptor_and_every_pair_keeps_the_contract_on_the_tracked_direct_backend() {
    assert_contract(Base::TrackedDirect, alone_and_in_pairs());
}

#[test]
fn every_adaptor_keeps_the_contract_on_tracked_aligned_blocks() {
    let alone = ADAPTORS.map(|adaptor| vec![adaptor]);
    assert_contract(Base::TrackedAligned, alone.into_iter().chain([vec![]]));
}

#[test]
fn every_adaptor_keeps_the_contract_on_the_direct_backend() {
    assert_contract(Base::Direct, ADAPTORS.map(|adaptor| vec![adaptor]));
}

fn random(bases: &'static [Base]) -> impl Strategy<Value = (Base, Vec<Adaptor>)> {
    let adaptors = prop::collection::vec(prop::sample::select(&ADAPTORS[..]), 0..=5);
    (prop::sample::select(bases), adaptors)
}

/// A failure prints the smallest stack that still fails, and the seed.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 64, ..Default::default() }
}

proptest! {
    #![proptest_config(config(64))]

    #[test]
    fn random_stacks_on_a_fake_keep_the_contract(
        (base, stack) in random(&[Base::Fake, Base::TrackingFake]),
    ) {
        let report = report(base, &stack);
        prop_assert!(report.is_ok(), "{}", report);
    }
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn random_stacks_on_a_driver_keep_the_contract(
        (base, stack) in random(&[
            Base::Direct, Base::TrackedDirect, Base::TrackedAligned, Base::Async,
        ]),
    ) {
        let report = report(base, &stack);
        prop_assert!(report.is_ok(), "{}", report);
    }
}
