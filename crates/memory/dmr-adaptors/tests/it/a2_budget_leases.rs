//! Threads charge a budget on leases of its room. No request is refused because of another thread's
//! lease, and every number counts leases as room.
#![cfg(feature = "budget")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::error::Holder;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult};

const TAG: AllocTag = AllocTag::new("t");

/// A budget of 1,000 bytes.
struct Budgeted {
    backend: Arc<Backend>,
    budget: Budget,
    resource: BudgetResource<Arc<Backend>>,
}

impl Budgeted {
    fn new() -> Self {
        let backend = Arc::new(Backend::new().bounded(1000));
        let budget = Budget::new(1000);
        let resource = BudgetLayer::on(&budget).layer(Arc::clone(&backend));
        Self { backend, budget, resource }
    }

    fn allocate(&self, bytes: usize) -> ResourceResult<DeviceBlock> {
        self.resource.allocate(bytes, self.backend.stream(), TAG)
    }

    fn deallocate(&self, block: DeviceBlock) {
        self.resource.deallocate(block).unwrap();
    }

    /// Lets another thread, which has ended then, leave a lease of 600 bytes.
    fn lease(&self) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.deallocate(self.allocate(600).unwrap()));
        });
    }
}

#[test]
fn a_block_that_fits_only_if_another_threads_lease_is_returned_is_allocated() {
    let budgeted = Budgeted::new();
    budgeted.lease();
    let block = budgeted.allocate(1000).unwrap();
    assert!(budgeted.allocate(1).is_err());
    budgeted.deallocate(block);
    assert!(!budgeted.backend.was_exceeded());
}

#[test]
fn a_part_and_a_reservation_that_fit_only_if_a_lease_is_returned_are_granted() {
    let budgeted = Budgeted::new();
    let part = budgeted.budget.sub_budget(TAG, 1000);
    let of_part = BudgetLayer::on(&part).layer(Arc::clone(&budgeted.backend));
    budgeted.lease();
    let block = of_part.allocate(1000, budgeted.backend.stream(), TAG).unwrap();
    of_part.deallocate(block).unwrap();
    budgeted.lease();
    let reserved = budgeted.budget.reserve(1000, Duration::ZERO).unwrap();
    assert_eq!(budgeted.budget.remaining(), 0);
    drop(reserved);
    assert_eq!(budgeted.budget.remaining(), 1000);
}

#[test]
fn a_refusal_and_every_number_count_leases_as_room() {
    let budgeted = Budgeted::new();
    let held = budgeted.allocate(300).unwrap();
    budgeted.lease();
    assert_eq!((budgeted.budget.reserved_bytes(), budgeted.budget.remaining()), (300, 700));
    assert_eq!(budgeted.budget.holders(), [Holder { tag: TAG, bytes: 300, blocks: 1 }]);
    budgeted.lease();
    let refused = budgeted.allocate(701).unwrap_err();
    let is_exact = matches!(refused, ResourceError::OutOfBudget { remaining: 700, .. });
    assert!(is_exact, "{refused}");
    budgeted.deallocate(held);
    assert_eq!((budgeted.budget.reserved_bytes(), budgeted.budget.remaining()), (0, 1000));
}

#[test]
fn a_limit_that_is_lowered_ends_the_leases_of_all_threads() {
    let budgeted = Budgeted::new();
    let lowered = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            budgeted.deallocate(budgeted.allocate(600).unwrap());
            lowered.wait();
            lowered.wait();
            assert!(budgeted.allocate(500).is_err());
            budgeted.deallocate(budgeted.allocate(400).unwrap());
        });
        lowered.wait();
        budgeted.budget.set_limit(400);
        lowered.wait();
    });
    assert_eq!((budgeted.budget.reserved_bytes(), budgeted.budget.remaining()), (0, 400));
}

/// Seven of eight threads never use more than 700 bytes together.
#[test]
fn what_always_fits_is_never_refused_while_other_threads_lease_the_rest() {
    let budgeted = Budgeted::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 1..8 {
            let budgeted = &budgeted;
            let is_over = &is_over;
            scope.spawn(move || {
                for round in 0.. {
                    // One block or ten, of at most 100 bytes together.
                    let count = 1 + (thread + round) % 10;
                    let allocate = |_| budgeted.allocate(100 / count).unwrap();
                    let blocks: Vec<_> = (0..count).map(allocate).collect();
                    blocks.into_iter().for_each(|block| budgeted.deallocate(block));
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        for _ in 0..3000 {
            budgeted.deallocate(budgeted.allocate(300).unwrap());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(!budgeted.backend.was_exceeded());
    assert_eq!(budgeted.budget.reserved_bytes(), 0);
}
