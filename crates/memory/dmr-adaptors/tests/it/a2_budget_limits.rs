//! Limits that change, blocks that were outstanding before, one budget per GPU, and blocks that
//! outlive an adaptor.
#![cfg(feature = "budget")]

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer};
use dmr_core::error::Holder;
use dmr_core::{AllocTag, DeviceMemoryResource};

const TAG: AllocTag = AllocTag::new("t");

#[test]
fn a_lower_limit_refuses_until_what_is_in_use_fits() {
    let backend = Arc::new(Backend::new());
    let budget = BudgetLayer::new(1000).layer(Arc::clone(&backend));
    let allocate = |bytes| budget.allocate(bytes, backend.stream(), TAG);
    let a = allocate(400).unwrap();
    let b = allocate(400).unwrap();
    budget.budget().set_limit(500);
    assert_eq!((budget.budget().limit(), budget.budget().remaining()), (500, 0));
    assert!(allocate(1).is_err());
    budget.deallocate(a).unwrap();
    assert!(allocate(101).is_err());
    let c = allocate(100).unwrap();
    budget.budget().set_limit(2000);
    let d = allocate(1500).unwrap();
    assert_eq!(budget.budget().remaining(), 0);
    for block in [b, c, d] {
        budget.deallocate(block).unwrap();
    }
    assert_eq!(budget.budget().remaining(), 2000);
}

#[test]
fn after_the_limit_is_lowered_no_thread_is_granted_a_byte() {
    let backend = Arc::new(Backend::new());
    let budget = BudgetLayer::new(1 << 30).layer(Arc::clone(&backend));
    let ready = Barrier::new(9);
    let lowered = Barrier::new(9);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let block = budget.allocate(100, backend.stream(), TAG).unwrap();
                ready.wait();
                lowered.wait();
                for _ in 0..100 {
                    assert!(budget.allocate(100, backend.stream(), TAG).is_err());
                }
                budget.deallocate(block).unwrap();
            });
        }
        ready.wait();
        budget.budget().set_limit(100);
        lowered.wait();
    });
    assert_eq!(budget.budget().reserved_bytes(), 0);
}

#[test]
fn a_limit_that_moves_is_kept_by_every_allocation_that_starts_after() {
    let backend = Arc::new(Backend::new());
    let budget = BudgetLayer::new(1 << 20).layer(Arc::clone(&backend));
    // An even number while the limit is what `bound` says; the call must lie within it.
    let epoch = AtomicU64::new(0);
    let bound = AtomicU64::new(1 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let before = epoch.load(SeqCst);
                    let limit = bound.load(SeqCst);
                    let block = budget.allocate(60_000, backend.stream(), TAG);
                    let out = backend.bytes_outstanding();
                    let is_steady = before.is_multiple_of(2) && epoch.load(SeqCst) == before;
                    if let Ok(block) = block {
                        assert!(!is_steady || out <= limit, "{out} of {limit}");
                        budget.deallocate(block).unwrap();
                    }
                }
            });
        }
        for i in 0..4000_u64 {
            let limit = 100_000 + (i * 7919) % 200_000;
            epoch.fetch_add(1, SeqCst);
            budget.budget().set_limit(limit);
            // What was granted before has to go first.
            let start = Instant::now();
            while backend.bytes_outstanding() > limit {
                assert!(start.elapsed() < Duration::from_secs(60), "it never fits");
                std::thread::yield_now();
            }
            bound.store(limit, SeqCst);
            epoch.fetch_add(1, SeqCst);
            std::thread::yield_now();
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(budget.budget().reserved_bytes(), 0);
}

#[test]
fn outstanding_blocks_are_charged_where_the_layer_says_so() {
    let backend = Arc::new(Backend::new().keeping(true));
    let stream = backend.stream();
    let live = backend.allocate(300, stream, TAG).unwrap();
    let retired = backend.allocate(200, stream, TAG).unwrap();
    backend.deallocate(retired).unwrap();
    let layer = BudgetLayer::new(1000).with_charge_existing(true);
    let budget = layer.layer(Arc::clone(&backend));
    assert_eq!(budget.budget().reserved_bytes(), 500);
    let before = AllocTag::new("(before the budget)");
    assert_eq!(budget.budget().holders(), [Holder { tag: before, bytes: 500, blocks: 0 }]);
    // What was retired is found to be free when there is no room.
    let block = budget.allocate(700, stream, TAG).unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 1000);
    budget.deallocate(live).unwrap();
    budget.deallocate(block).unwrap();
    budget.reap_pending().unwrap();
    assert_eq!((budget.budget().reserved_bytes(), budget.budget().holders()), (0, vec![]));
}

#[test]
fn outstanding_blocks_are_charged_once_however_often_their_resource_is_wrapped() {
    let backend = Arc::new(Backend::new().keeping(true));
    let stream = backend.stream();
    let live = backend.allocate(300, stream, TAG).unwrap();
    let retired = backend.allocate(200, stream, TAG).unwrap();
    backend.deallocate(retired).unwrap();
    let whole = Budget::new(1000);
    let wrap =
        |budget| BudgetLayer::on(budget).with_charge_existing(true).layer(Arc::clone(&backend));
    let first = wrap(&whole);
    let own = first.allocate(100, stream, TAG).unwrap();
    let again = wrap(&whole);
    assert_eq!((whole.reserved_bytes(), whole.pending_bytes()), (600, 200));
    // A part that did not have these blocks is charged for them.
    let part = whole.sub_budget(AllocTag::new("part"), 1000);
    drop(wrap(&part));
    assert_eq!((part.reserved_bytes(), whole.reserved_bytes()), (600, 1200));
    again.deallocate(live).unwrap();
    first.deallocate(own).unwrap();
    first.reap_pending().unwrap();
    again.reap_pending().unwrap();
    assert_eq!(whole.reserved_bytes() - part.reserved_bytes(), 0);
}

#[test]
fn what_was_retired_before_the_budget_stays_charged_until_it_is_freed() {
    let backend = Arc::new(Backend::new().keeping(false));
    let stream = backend.stream();
    let retired = backend.allocate(200, stream, TAG).unwrap();
    backend.deallocate(retired).unwrap();
    let layer = BudgetLayer::new(1000).with_charge_existing(true).with_reap_pending(false);
    let budget = layer.layer(Arc::clone(&backend));
    budget.try_reap().unwrap();
    assert!(budget.allocate(900, stream, TAG).is_err());
    assert_eq!(budget.budget().reserved_bytes(), 200);
    backend.reap_pending().unwrap();
    budget.try_reap().unwrap();
    assert_eq!(budget.budget().reserved_bytes(), 0);
    let block = budget.allocate(1000, stream, TAG).unwrap();
    budget.deallocate(block).unwrap();
}

#[test]
fn more_out_than_the_limit_refuses_until_it_fits_and_a_tenant_is_not_charged_for_others() {
    let backend = Arc::new(Backend::new());
    let stream = backend.stream();
    let live = backend.allocate(1500, stream, TAG).unwrap();
    let layer = BudgetLayer::new(1000).with_charge_existing(true);
    let budget = layer.layer(Arc::clone(&backend));
    assert!(budget.allocate(1, stream, TAG).is_err());
    let whole = Budget::new(1000).named(AllocTag::new("tenant"));
    let part = Budget::new(1000).sub_budget(AllocTag::new("tenant"), 1000);
    for tenant in [whole, part] {
        let tenant = BudgetLayer::on(&tenant).layer(Arc::clone(&backend));
        assert_eq!(tenant.budget().reserved_bytes(), 0);
        tenant.deallocate(tenant.allocate(1000, stream, TAG).unwrap()).unwrap();
    }
    budget.deallocate(live).unwrap();
    let block = budget.allocate(1000, stream, TAG).unwrap();
    budget.deallocate(block).unwrap();
    assert_eq!(budget.budget().holders(), []);
}

#[test]
fn one_gpu_has_one_budget_and_the_lower_limit_wins() {
    let uuid = [7; 16];
    let other = [8; 16];
    let a = Budget::for_device(uuid, 1000);
    let b = Budget::for_device(uuid, 2000);
    let elsewhere = Budget::for_device(other, 5000);
    assert_eq!((a.limit(), b.limit(), elsewhere.limit()), (1000, 1000, 5000));
    assert_eq!(Budget::for_device(uuid, 500).limit(), 500);
    assert_eq!(a.limit(), 500);
    let backend = Arc::new(Backend::new());
    let layered = BudgetLayer::on(&a).layer(Arc::clone(&backend));
    let block = layered.allocate(400, backend.stream(), TAG).unwrap();
    assert_eq!((b.reserved_bytes(), elsewhere.reserved_bytes()), (400, 0));
    layered.deallocate(block).unwrap();
    drop((a, b, layered));
    assert_eq!(Budget::for_device(uuid, 3000).limit(), 3000);
}

#[test]
fn what_is_retired_when_the_adaptor_is_dropped_comes_back_when_it_is_freed() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new().keeping(true));
    let query = whole.sub_budget(AllocTag::new("query"), 1000);
    let budget = BudgetLayer::on(&query).layer(Arc::clone(&backend));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
    drop((budget, query));
    assert_eq!((whole.reserved_bytes(), whole.pending_bytes()), (600, 600));
    backend.reap_pending().unwrap();
    let next = BudgetLayer::on(&whole).layer(Arc::clone(&backend));
    let block = next.allocate(1000, backend.stream(), TAG).unwrap();
    assert_eq!(whole.pending_bytes(), 0);
    // Nothing keeps the resource any more but this test and the adaptor that is in use.
    assert_eq!(Arc::strong_count(&backend), 2);
    next.deallocate(block).unwrap();
}

#[test]
fn a_block_that_outlives_its_share_stays_charged_to_the_whole() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let query = whole.sub_budget(AllocTag::new("query"), 1000);
    let budget = BudgetLayer::on(&query).layer(Arc::clone(&backend));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    drop((budget, query));
    assert_eq!(whole.reserved_bytes(), 600);
    assert_eq!(whole.holders(), [Holder { tag: TAG, bytes: 600, blocks: 1 }]);
    drop(block);
}

#[test]
fn the_resource_inside_comes_out_once_nothing_is_retired() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new().keeping(true));
    let budget = BudgetLayer::on(&whole).layer(Arc::clone(&backend));
    let block = budget.allocate(600, backend.stream(), TAG).unwrap();
    let kept = budget.allocate(100, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
    let budget = budget.into_upstream().expect_err("600 bytes are retired");
    assert_eq!((whole.reserved_bytes(), whole.pending_bytes()), (700, 600));
    // It is as good as before.
    assert!(budget.allocate(1000, backend.stream(), TAG).is_err());
    budget.reap_pending().unwrap();
    let inner = budget.into_upstream().expect("nothing is retired");
    assert_eq!((whole.reserved_bytes(), whole.pending_bytes()), (100, 0));
    assert!(Arc::ptr_eq(&inner, &backend));
    assert_eq!(Arc::strong_count(&backend), 2, "the budget does not keep it");
    // Deallocated without the budget, it stays charged to it.
    inner.deallocate(kept).unwrap();
    assert_eq!(whole.reserved_bytes(), 100);
}

#[test]
fn a_limit_that_was_set_is_not_raised_by_a_later_budget_of_the_device() {
    let budget = Budget::for_device([9; 16], 1000);
    let is_over = AtomicBool::new(false);
    let mut undone = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                drop(Budget::for_device([9; 16], u64::MAX));
            }
        });
        let start = Instant::now();
        while undone == 0 && start.elapsed() < Duration::from_secs(2) {
            budget.set_limit(1000);
            // Any time in which the other thread can read the limit.
            (0..start.elapsed().subsec_nanos() % 700).for_each(|_| std::hint::spin_loop());
            budget.set_limit(50);
            (0..300).for_each(|_| std::hint::spin_loop());
            undone += usize::from(budget.limit() != 50);
        }
        is_over.store(true, SeqCst);
    });
    assert_eq!(undone, 0, "a limit of 50 was set and did not stay");
}

#[test]
fn the_bytes_of_blocks_that_were_retired_before_the_budget_and_freed_are_not_charged() {
    let backend = Arc::new(Backend::new().keeping(true));
    let old = backend.allocate(600, backend.stream(), TAG).unwrap();
    backend.deallocate(old).unwrap();
    let layer = BudgetLayer::new(1000).with_charge_existing(true).with_reap_pending(false);
    let budget = layer.layer(Arc::clone(&backend));
    let young = budget.allocate(1, backend.stream(), TAG).unwrap();
    // Frees the 600 bytes; what is retired later stays retired.
    backend.try_reap().unwrap();
    backend.reap_early(false);
    budget.deallocate(young).unwrap();
    assert_eq!(backend.bytes_outstanding(), 1);
    let block = budget.allocate(500, backend.stream(), TAG).unwrap();
    budget.deallocate(block).unwrap();
}

#[test]
fn a_resource_below_two_budgets_of_one_account_is_dropped_with_the_last_handle_to_it() {
    let backend = Arc::new(Backend::new().keeping(false));
    let stream = backend.stream();
    let lives = Arc::downgrade(&backend);
    let whole = Budget::new(1000);
    let part = whole.sub_budget(TAG, 1000);
    let resource = BudgetLayer::on(&part).layer(BudgetLayer::on(&whole).layer(backend));
    let block = resource.allocate(400, stream, TAG).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, part));
    assert_eq!((whole.reserved_bytes(), whole.pending_bytes()), (800, 800));
    assert!(lives.upgrade().is_some());
    drop(whole);
    assert!(lives.upgrade().is_none());
}

/// One on top of the other, or beside each other; with retired blocks of each, in every order of
/// the drops.
#[test]
fn a_resource_below_two_budgets_is_dropped_in_whatever_order_they_and_their_handles_are() {
    type Owned = Box<dyn Any>;
    for is_nested in [false, true] {
        for order in (0..24).map(permutation) {
            let backend = Arc::new(Backend::new().keeping(false));
            let stream = backend.stream();
            let lives = Arc::downgrade(&backend);
            let whole = Budget::new(4000);
            let part = whole.sub_budget(TAG, 2000);
            let one = Arc::new(BudgetLayer::on(&whole).layer(Arc::clone(&backend)));
            let upstream: Arc<dyn DeviceMemoryResource> =
                if is_nested { Arc::clone(&one) as _ } else { Arc::clone(&backend) as _ };
            let other = BudgetLayer::on(&part).layer(upstream);
            drop(backend);
            for resource in [&*one as &dyn DeviceMemoryResource, &other] {
                let block = resource.allocate(400, stream, TAG).unwrap();
                resource.deallocate(block).unwrap();
            }
            let mut owned: [Option<Owned>; 4] = [
                Some(Box::new(one)),
                Some(Box::new(other)),
                Some(Box::new(part)),
                Some(Box::new(whole)),
            ];
            for at in order {
                drop(owned[at].take());
            }
            assert!(lives.upgrade().is_none(), "nested: {is_nested}, {order:?}");
        }
    }
}

/// Returns one of the 24 orders of 0 to 3.
fn permutation(number: usize) -> [usize; 4] {
    let mut left = vec![0, 1, 2, 3];
    [number / 6, number % 6 / 2, number % 2, 0].map(|at| left.remove(at))
}

#[test]
fn a_limit_of_more_than_can_be_counted_is_the_largest_that_can() {
    const MOST: u64 = i64::MAX as u64;
    let budget = Budget::new(u64::MAX);
    assert_eq!((budget.limit(), budget.remaining()), (MOST, MOST));
    let part = budget.sub_budget(TAG, u64::MAX);
    assert_eq!((part.limit(), part.remaining()), (MOST, MOST));
    budget.set_limit(1000);
    budget.set_limit(u64::MAX);
    assert_eq!((budget.limit(), budget.remaining(), budget.reserved_bytes()), (MOST, MOST, 0));
}

#[test]
fn a_block_whose_resource_was_dropped_with_the_last_handle_stays_charged() {
    let backend = Arc::new(Backend::new().keeping(true));
    let layer = BudgetLayer::new(1000);
    let [one, other] = [(); 2].map(|()| layer.layer(Arc::clone(&backend)));
    let block = one.allocate(600, backend.stream(), TAG).unwrap();
    one.deallocate(block).unwrap();
    drop(one);
    assert_eq!(Arc::strong_count(&backend), 3, "kept as long as there is a handle");
    drop(layer);
    assert_eq!(Arc::strong_count(&backend), 2);
    other.reap_pending().unwrap();
    let budget = other.budget();
    assert_eq!((budget.reserved_bytes(), budget.pending_bytes()), (600, 600));
    assert_eq!(budget.holders(), [Holder { tag: TAG, bytes: 600, blocks: 1 }]);
}

#[test]
fn budgets_that_are_dropped_with_retired_blocks_while_others_poll_release_everything() {
    let whole = Budget::new(1 << 20);
    let backend = Arc::new(Backend::new().retiring(2));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let query = whole.sub_budget(TAG, 1 << 20);
                    let inner = BudgetLayer::on(&whole).layer(Arc::clone(&backend));
                    let stack = BudgetLayer::on(&query).layer(inner);
                    let blocks = [(); 3].map(|()| stack.allocate(100, backend.stream(), TAG));
                    for block in blocks {
                        stack.deallocate(block.unwrap()).unwrap();
                    }
                    if let Err(stack) = stack.into_upstream() {
                        drop(stack);
                    }
                }
            });
        }
    });
    backend.reap_pending().unwrap();
    drop(BudgetLayer::on(&whole).layer(Arc::clone(&backend)));
    assert_eq!((whole.reserved_bytes(), whole.pending_bytes()), (0, 0));
    assert_eq!(Arc::strong_count(&backend), 1, "no resource is kept");
}
