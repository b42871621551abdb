//! A2: calls that bypass a budget, through `upstream`, do not make its accounts drift.

#![cfg(feature = "budget")]

use std::collections::HashMap;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::conformance::Harness;
use dmr_core::error::Holder;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, Generation, StreamId};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_fake::FakeHarness;
use dmr_testkit::Rig;
use proptest::prelude::*;

const TAG: AllocTag = AllocTag::new("rows");
const KIB: usize = 1 << 10;
const LIMIT: u64 = 100 << 10;

/// A step. `upstream`: the call bypasses the budget. A block is named by its place among the live
/// ones.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate { upstream: bool, bytes: usize },
    Grow { upstream: bool, block: usize, more: usize },
    Deallocate { upstream: bool, block: usize },
}

fn steps(bypassing_frees: bool) -> impl Strategy<Value = Vec<Step>> {
    let bytes = (1usize..64).prop_map(|units| units * 512);
    let step = prop_oneof![
        (any::<bool>(), bytes.clone())
            .prop_map(|(upstream, bytes)| Step::Allocate { upstream, bytes }),
        (any::<bool>(), any::<usize>(), bytes).prop_map(|(upstream, block, more)| Step::Grow {
            upstream,
            block,
            more
        }),
        (any::<bool>(), any::<usize>()).prop_map(move |(upstream, block)| Step::Deallocate {
            upstream: upstream && bypassing_frees,
            block
        }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// Plays the steps. After each, `check` gets the budget's charge and that of the model for live
/// blocks.
fn play<R: DeviceMemoryResource>(
    budget: &BudgetResource<R>,
    stream: StreamId,
    steps: &[Step],
    check: impl Fn(u64, u64),
) {
    let mut live: Vec<DeviceBlock> = Vec::new();
    let mut charged: HashMap<Generation, u64> = HashMap::new();
    for step in steps {
        match *step {
            Step::Allocate { upstream: true, bytes } => {
                live.extend(budget.upstream().allocate(bytes, stream, TAG));
            }
            Step::Allocate { upstream: false, bytes } => {
                if let Ok(block) = budget.allocate(bytes, stream, TAG) {
                    charged.insert(block.generation(), bytes as u64);
                    live.push(block);
                }
            }
            Step::Grow { .. } | Step::Deallocate { .. } if live.is_empty() => {}
            Step::Grow { upstream, block, more } => {
                let at = block % live.len();
                let block = &mut live[at];
                let bytes = block.bytes() + more;
                let before = block.bytes() as u64;
                if upstream {
                    budget.upstream().try_grow(block, bytes).unwrap();
                } else if budget.try_grow(block, bytes).unwrap() {
                    let known = charged.entry(block.generation()).or_default();
                    *known = if *known == 0 { bytes as u64 - before } else { bytes as u64 };
                }
            }
            Step::Deallocate { upstream, block } => {
                let block = live.swap_remove(block % live.len());
                charged.remove(&block.generation());
                match upstream {
                    true => budget.upstream().deallocate(block).unwrap(),
                    false => budget.deallocate(block).unwrap(),
                };
            }
        }
        budget.reap_pending().unwrap();
        let reserved = budget.budget().reserved_bytes();
        check(reserved, charged.values().sum());
        let held: u64 = budget.budget().holders().iter().map(|holder| holder.bytes).sum();
        assert_eq!(held, reserved, "what is charged is held: {:?}", budget.budget().holders());
    }
    for block in live {
        budget.deallocate(block).unwrap();
    }
    budget.reap_pending().unwrap();
}

/// The check where no block is deallocated upstream.
fn exact(reserved: u64, charged: u64) {
    assert_eq!(reserved, charged, "live blocks are charged for what passed the budget");
    assert!(reserved <= LIMIT);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_block_releases_what_was_charged_for_it(steps in steps(false)) {
        let harness = FakeHarness::wrapped(true, |fake, _| BudgetLayer::new(LIMIT).layer(fake));
        let budget = harness.outermost();
        let [stream, _] = harness.streams();
        play(budget, stream, &steps, exact);
        prop_assert_eq!(budget.budget().reserved_bytes(), 0);
        prop_assert!(budget.budget().holders().is_empty(), "{:?}", budget.budget().holders());
    }

    #[test]
    fn so_does_a_block_with_a_slot_in_the_use_table(steps in steps(false)) {
        let rig = Rig::simulated();
        let stream = rig.stream();
        let upstream = AsyncCudaResource::new(rig.streams().clone(), AsyncConfig::new()).unwrap();
        let budget = BudgetLayer::new(LIMIT).layer(upstream);
        play(&budget, stream.id(), &steps, exact);
        prop_assert_eq!(budget.budget().reserved_bytes(), 0);
        prop_assert!(budget.budget().holders().is_empty(), "{:?}", budget.budget().holders());
    }

    /// The charge of a block that is deallocated upstream is released once its slot is reused.
    #[test]
    fn what_is_deallocated_upstream_is_not_charged_for_ever(steps in steps(true)) {
        let rig = Rig::simulated();
        let stream = rig.stream();
        let upstream = AsyncCudaResource::new(rig.streams().clone(), AsyncConfig::new()).unwrap();
        let budget = BudgetLayer::new(LIMIT).layer(upstream);
        play(&budget, stream.id(), &steps, |reserved, charged| {
            assert!(charged <= reserved && reserved <= LIMIT, "{charged} {reserved}");
        });
        let small: Vec<_> =
            (0..80).map_while(|_| budget.allocate(1, stream.id(), TAG).ok()).collect();
        let all_slots_served = small.len() == 80;
        for block in small {
            budget.deallocate(block).unwrap();
        }
        prop_assert!(!all_slots_served || budget.budget().reserved_bytes() == 0);
    }
}

#[test]
fn growth_upstream_does_not_make_room_in_the_budget() {
    let harness = FakeHarness::wrapped(true, |fake, _| BudgetLayer::new(LIMIT).layer(fake));
    let budget = harness.outermost();
    let [stream, _] = harness.streams();
    let mut block = budget.allocate(KIB, stream, TAG).unwrap();
    assert_eq!(budget.upstream().try_grow(&mut block, 64 * KIB), Ok(true));
    // It fits with all of its size, and is charged for that.
    assert_eq!(budget.try_grow(&mut block, 96 * KIB), Ok(true));
    assert_eq!(budget.budget().reserved_bytes(), 96 << 10);
    assert_eq!(budget.try_grow(&mut block, 101 * KIB), Ok(false));
    budget.deallocate(block).unwrap();
    budget.reap_pending().unwrap();
    let mut block = budget.allocate(KIB, stream, TAG).unwrap();
    assert_eq!(budget.upstream().try_grow(&mut block, 64 * KIB), Ok(true));
    let other = budget.allocate(99 * KIB, stream, TAG).unwrap();
    budget.deallocate(block).unwrap();
    budget.reap_pending().unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 99 << 10, "the other block is live");
    assert!(budget.allocate(2 * KIB, stream, TAG).is_err());
    budget.deallocate(other).unwrap();
    budget.reap_pending().unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 0);
}

#[test]
fn a_block_that_passes_two_resources_of_one_budget_is_charged_twice_and_released_twice() {
    let budget = Budget::new(LIMIT);
    let harness = FakeHarness::wrapped(true, |fake, _| {
        BudgetLayer::on(&budget).layer(BudgetLayer::on(&budget).layer(fake))
    });
    let outer = harness.outermost();
    let [stream, _] = harness.streams();
    let mut block = outer.allocate(10 * KIB, stream, TAG).unwrap();
    assert_eq!(budget.reserved_bytes(), 20 << 10);
    assert_eq!(outer.try_grow(&mut block, 40 * KIB), Ok(true));
    assert!(budget.reserved_bytes() >= 40 << 10);
    outer.deallocate(block).unwrap();
    outer.reap_pending().unwrap();
    assert_eq!((budget.reserved_bytes(), budget.holders().len()), (0, 0));
}

#[test]
fn a_block_that_was_live_before_the_budget_and_grows_releases_all_that_was_charged_for_it() {
    let mut before = None;
    let harness = FakeHarness::wrapped(true, |fake, _| {
        before = fake.allocate(10 * KIB, StreamId::DEFAULT, TAG).ok();
        BudgetLayer::new(LIMIT).with_charge_existing(true).layer(fake)
    });
    let budget = harness.outermost();
    let mut block = before.expect("a block");
    assert_eq!(budget.budget().reserved_bytes(), 10 << 10);
    assert_eq!(budget.try_grow(&mut block, 101 * KIB), Ok(false));
    assert_eq!(budget.try_grow(&mut block, 40 * KIB), Ok(true));
    assert_eq!(budget.budget().reserved_bytes(), 40 << 10);
    budget.deallocate(block).unwrap();
    budget.reap_pending().unwrap();
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().holders().len()), (0, 0));
}

#[test]
fn a_block_that_is_deallocated_upstream_is_held_by_its_tag_until_another_gets_its_slot() {
    let rig = Rig::simulated();
    let stream = rig.stream();
    let upstream = AsyncCudaResource::new(rig.streams().clone(), AsyncConfig::new()).unwrap();
    let budget = BudgetLayer::new(LIMIT).layer(upstream);
    let holder = |tag, bytes: u64| Holder { tag, bytes, blocks: 1 };
    let block = budget.allocate(10 * KIB, stream.id(), TAG).unwrap();
    budget.upstream().deallocate(block).unwrap();
    budget.reap_pending().unwrap();
    assert_eq!(budget.budget().holders(), [holder(TAG, 10 << 10)]);
    let other = AllocTag::new("other");
    let block = budget.allocate(KIB, stream.id(), other).unwrap();
    assert_eq!(budget.budget().holders(), [holder(other, 1 << 10)]);
    assert_eq!(budget.budget().reserved_bytes(), 1 << 10);
    budget.deallocate(block).unwrap();
    budget.reap_pending().unwrap();
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().holders().len()), (0, 0));
}

/// One charge is found by the slot of the block, the other one in the map.
#[test]
fn a_block_that_passes_two_parts_of_a_budget_is_held_by_both() {
    let rig = Rig::simulated();
    let stream = rig.stream();
    let upstream = AsyncCudaResource::new(rig.streams().clone(), AsyncConfig::new()).unwrap();
    let whole = Budget::new(LIMIT);
    let [inner, outer] =
        ["inner", "outer"].map(|name| whole.sub_budget(AllocTag::new(name), LIMIT));
    let stack = BudgetLayer::on(&outer).layer(BudgetLayer::on(&inner).layer(upstream));
    let block = stack.allocate(10 * KIB, stream.id(), TAG).unwrap();
    for (budget, kib, blocks) in [(&inner, 10, 1), (&outer, 10, 1), (&whole, 20, 2)] {
        assert_eq!(budget.reserved_bytes(), kib << 10);
        assert_eq!(budget.holders(), [Holder { tag: TAG, bytes: kib << 10, blocks }]);
    }
    stack.deallocate(block).unwrap();
    stack.reap_pending().unwrap();
    for budget in [&inner, &outer, &whole] {
        assert_eq!((budget.reserved_bytes(), budget.holders().len()), (0, 0));
    }
}
