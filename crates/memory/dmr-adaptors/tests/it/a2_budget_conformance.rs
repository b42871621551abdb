//! The conformance suite over a budget, over a fake and over the async backend; and how a stack
//! with a budget in it is shown.
#![cfg(feature = "budget")]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::AllocTag;
use dmr_core::conformance::{Harness, Report, check_forwarding, run_all};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_fake::{FakeHarness, FakeResource};
use dmr_testkit::Rig;

/// A limit of more bytes than the device has: the device refuses first.
const PLENTY: u64 = 1 << 50;

type OnFake = BudgetResource<Arc<FakeResource>>;

fn on_fake(tracks: bool, limit: u64) -> FakeHarness<OnFake> {
    FakeHarness::wrapped(tracks, |fake, _| BudgetLayer::new(limit).layer(fake))
}

#[test]
fn a_budget_over_a_fake_keeps_the_contract() {
    for tracks in [true, false] {
        for limit in [PLENTY, u64::MAX, 12 << 20] {
            let report = run_all(|| on_fake(tracks, limit));
            assert!(report.is_ok(), "tracks: {tracks}, limit {limit}\n{report}");
        }
    }
}

#[test]
fn a_budget_over_the_async_backend_keeps_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| {
        let backend = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new());
        BudgetLayer::new(PLENTY).layer(backend.expect("a pool"))
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}

#[test]
fn a_budget_forwards_every_method() {
    for tracks in [true, false] {
        let harness: &'static dyn Harness = Box::leak(Box::new(FakeHarness::new(tracks)));
        check_forwarding(harness, |spy| BudgetLayer::new(PLENTY).layer(spy)).unwrap();
    }
}

#[test]
fn a_stack_is_shown_on_one_line() {
    let rig = Rig::new();
    let backend = || AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let inner = format!("{:?}", backend());
    let budget = BudgetLayer::new(8 << 30).layer(backend());
    assert_eq!(format!("{budget:?}"), format!("Budget(8 GiB, {inner})"));
    let tenant = Budget::new(1 << 20).named(AllocTag::new("tenant"));
    let budget = BudgetLayer::on(&tenant).layer(backend());
    assert_eq!(format!("{budget}"), format!("Budget(\"tenant\", 1 MiB, {inner})"));
    assert_eq!(format!("{tenant:?}"), "Budget(\"tenant\", 0 B of 1 MiB)");
}
