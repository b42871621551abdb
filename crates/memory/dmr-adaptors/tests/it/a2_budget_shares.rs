//! Sub-budgets and reservations.
#![cfg(feature = "budget")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::a2_support::Backend;
use dmr_adaptors::ResourceLayer;
use dmr_adaptors::budget::{Budget, BudgetLayer, BudgetResource};
use dmr_core::error::Holder;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError};

const TAG: AllocTag = AllocTag::new("t");
const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(20);

type Layered = BudgetResource<Arc<Backend>>;

fn on(budget: &Budget, backend: &Arc<Backend>) -> Layered {
    BudgetLayer::on(budget).layer(Arc::clone(backend))
}

fn deallocate(budget: &Layered, block: DeviceBlock) {
    budget.deallocate(block).unwrap();
}

fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "it never was");
        std::thread::yield_now();
    }
}

#[test]
fn what_is_unused_of_a_reservation_is_held_by_name() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let reserved = whole.reserve(600, SOON).unwrap();
    let layered = on(&reserved, &backend);
    let holder = |tag, bytes, blocks| Holder { tag: AllocTag::new(tag), bytes, blocks };
    assert_eq!(whole.holders(), [holder("(reserved)", 600, 1)]);
    let block = layered.allocate(250, backend.stream(), TAG).unwrap();
    assert_eq!(whole.holders(), [holder("(reserved)", 350, 1), holder("t", 250, 1)]);
    assert_eq!(reserved.holders(), [holder("t", 250, 1)]);
    let rest = layered.allocate(350, backend.stream(), TAG).unwrap();
    assert_eq!(whole.holders(), [holder("t", 600, 2)]);
    [block, rest].into_iter().for_each(|block| deallocate(&layered, block));
}

#[test]
fn a_share_is_bounded_by_itself_and_by_the_whole() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let [a, b] = ["a", "b"].map(|name| whole.sub_budget(AllocTag::new(name), 700));
    let on_a = on(&a, &backend);
    let on_b = on(&b, &backend);
    let stream = backend.stream();
    let first = on_a.allocate(600, stream, TAG).unwrap();
    let full = on_a.allocate(101, stream, TAG).unwrap_err();
    assert!(full.to_string().contains("\"a\""), "{full}");
    let full = on_b.allocate(401, stream, TAG).unwrap_err();
    let ResourceError::OutOfBudget { budget, limit, remaining, .. } = full else { unreachable!() };
    assert_eq!((budget, limit, remaining), (AllocTag::UNTAGGED, 1000, 400));
    let second = on_b.allocate(400, stream, TAG).unwrap();
    assert_eq!((a.reserved_bytes(), b.reserved_bytes(), whole.reserved_bytes()), (600, 400, 1000));
    assert_eq!((a.remaining(), b.remaining(), whole.remaining()), (0, 0, 0));
    on_a.deallocate(first).unwrap();
    assert_eq!((a.remaining(), b.remaining()), (600, 300));
    on_b.deallocate(second).unwrap();
    assert_eq!(whole.reserved_bytes(), 0);
    let nested = a.sub_budget(AllocTag::new("nested"), 100);
    let block = on(&nested, &backend).allocate(100, stream, TAG).unwrap();
    assert_eq!((nested.remaining(), a.remaining(), whole.remaining()), (0, 600, 900));
    drop(block);
}

#[test]
fn refusals_of_a_full_share_change_nothing_in_the_others() {
    let whole = Budget::new(1 << 30);
    let backend = Arc::new(Backend::new());
    let a = whole.sub_budget(TAG, 100);
    let b = whole.sub_budget(TAG, 1 << 30);
    let on_a = on(&a, &backend);
    let on_b = on(&b, &backend);
    let held = on_a.allocate(100, backend.stream(), TAG).unwrap();
    let block = on_b.allocate(1, backend.stream(), TAG).unwrap();
    for _ in 0..10 {
        assert!(on_a.allocate(1, backend.stream(), TAG).is_err());
    }
    assert_eq!((b.reserved_bytes(), b.remaining()), (1, (1 << 30) - 101));
    on_a.deallocate(held).unwrap();
    on_b.deallocate(block).unwrap();
}

#[test]
fn what_is_reserved_is_there_whatever_others_do() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let reserved = whole.reserve(600, Duration::ZERO).unwrap();
    assert_eq!((whole.reserved_bytes(), whole.remaining()), (600, 400));
    assert_eq!((reserved.limit(), reserved.reserved_bytes(), reserved.remaining()), (600, 0, 600));
    let query = on(&reserved, &backend);
    let others = on(&whole, &backend);
    let stream = backend.stream();
    let block = others.allocate(400, stream, TAG).unwrap();
    let error = others.allocate(1, stream, TAG).unwrap_err();
    assert!(error.to_string().contains("600 B held by \"(reserved)\""), "{error}");
    let all = query.allocate(600, stream, TAG).unwrap();
    assert!(query.allocate(1, stream, TAG).is_err());
    assert_eq!((whole.reserved_bytes(), reserved.remaining()), (1000, 0));
    query.deallocate(all).unwrap();
    assert_eq!((whole.reserved_bytes(), reserved.remaining()), (1000, 600));
    others.deallocate(block).unwrap();
}

#[test]
fn what_is_reserved_is_there_also_after_the_limit_of_the_whole_was_lowered() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let reserved = whole.reserve(600, Duration::ZERO).unwrap();
    whole.set_limit(500);
    assert_eq!((whole.remaining(), reserved.remaining()), (0, 600));
    let query = on(&reserved, &backend);
    let block = query.allocate(600, backend.stream(), TAG).unwrap();
    assert!(on(&whole, &backend).allocate(1, backend.stream(), TAG).is_err());
    query.deallocate(block).unwrap();
    drop(reserved);
    assert_eq!((whole.reserved_bytes(), whole.remaining()), (0, 500));
}

#[test]
fn dropping_a_reservation_returns_what_is_unused_now_and_the_rest_as_it_is_freed() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let reserved = whole.reserve(600, Duration::ZERO).unwrap();
    let query = on(&reserved, &backend);
    let block = query.allocate(200, backend.stream(), TAG).unwrap();
    drop(reserved);
    assert_eq!((whole.reserved_bytes(), whole.remaining()), (200, 800));
    let over = query.allocate(1, backend.stream(), TAG).unwrap_err();
    assert!(matches!(over, ResourceError::OutOfBudget { limit: 0, .. }), "{over}");
    query.deallocate(block).unwrap();
    assert_eq!((whole.reserved_bytes(), whole.remaining()), (0, 1000));
}

#[test]
fn a_reservation_waits_until_it_fits_as_a_whole_or_the_timeout() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let others = on(&whole, &backend);
    let held = [0, 1].map(|_| others.allocate(400, backend.stream(), TAG).unwrap());
    let start = Instant::now();
    let late = whole.reserve(500, SOON).unwrap_err();
    assert!(start.elapsed() >= SOON);
    assert!(matches!(late, ResourceError::OutOfBudget { remaining: 200, .. }), "{late}");
    // Nothing is left of the attempt.
    assert_eq!(whole.reserved_bytes(), 800);
    let start = Instant::now();
    let never = whole.reserve(1001, LONG).unwrap_err();
    assert!(matches!(never, ResourceError::OutOfBudget { requested: 1001, .. }), "{never}");
    assert!(start.elapsed() < LONG / 2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| whole.reserve(1000, LONG).unwrap());
        for block in held {
            std::thread::sleep(SOON / 4);
            assert!(!waiting.is_finished());
            others.deallocate(block).unwrap();
        }
        assert_eq!(waiting.join().unwrap().limit(), 1000);
    });
    assert_eq!(whole.remaining(), 1000);
}

#[test]
fn a_waiting_reservation_reaps_the_resources() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new().keeping(true));
    backend.reap_early(false);
    let others = on(&whole, &backend);
    let block = others.allocate(800, backend.stream(), TAG).unwrap();
    others.deallocate(block).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| whole.reserve(900, LONG).unwrap());
        until(|| backend.reaped()[0] > 3);
        assert!(!waiting.is_finished());
        // The device is done.
        backend.reap_early(true);
        drop(waiting.join().unwrap());
    });
    assert_eq!(whole.reserved_bytes(), 0);
}

#[test]
fn reservations_are_served_in_the_order_in_which_they_came() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let others = on(&whole, &backend);
    let small = whole.sub_budget(AllocTag::new("small"), 100);
    let held = others.allocate(700, backend.stream(), TAG).unwrap();
    let in_small = on(&small, &backend).allocate(100, backend.stream(), TAG).unwrap();
    std::thread::scope(|scope| {
        // It waits for its own small share, which holds up no other one.
        let own = scope.spawn(|| small.reserve(50, LONG).unwrap());
        std::thread::sleep(SOON);
        drop(whole.reserve(10, Duration::ZERO).unwrap());
        let first = scope.spawn(|| whole.reserve(900, LONG).unwrap());
        // It would fit now, but it comes later: from when the other one waits.
        let start = Instant::now();
        while whole.reserve(10, Duration::ZERO).is_ok() && start.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert!(whole.reserve(10, SOON).is_err());
        let second = scope.spawn(|| whole.reserve(200, LONG).unwrap());
        std::thread::sleep(SOON);
        // An allocation does not queue.
        let block = others.allocate(100, backend.stream(), TAG).unwrap();
        others.deallocate(block).unwrap();
        assert!(!first.is_finished() && !second.is_finished());
        others.deallocate(held).unwrap();
        on(&small, &backend).deallocate(in_small).unwrap();
        let reserved = first.join().unwrap();
        drop(own.join().unwrap());
        assert!(!second.is_finished(), "there is no room for both");
        drop(reserved);
        drop(second.join().unwrap());
    });
    assert_eq!(whole.reserved_bytes(), 0);
}

#[test]
fn many_queries_that_reserve_first_never_stop_half_way() {
    // Each needs six tenths of the budget, in ten steps.
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new().bounded(1000).retiring(3));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let reserved = whole.reserve(600, LONG).unwrap();
                    let query = on(&reserved, &backend);
                    let blocks: Vec<_> = (0..10)
                        .map(|_| query.allocate(60, backend.stream(), TAG).unwrap())
                        .collect();
                    blocks.into_iter().for_each(|block| deallocate(&query, block));
                }
            });
        }
    });
    assert!(!backend.was_exceeded());
    backend.reap_pending().unwrap();
    drop(whole.reserve(1000, LONG).unwrap());
    assert_eq!(whole.reserved_bytes(), 0);
}

#[test]
fn a_reservation_within_a_reservation_does_not_wait_for_one_that_needs_other_room() {
    let whole = Budget::new(100);
    let reserved = whole.reserve(100, Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| whole.reserve(50, LONG).map(drop));
        std::thread::sleep(SOON);
        let part = reserved.reserve(30, Duration::ZERO).map(drop);
        drop(reserved);
        other.join().unwrap().unwrap();
        part.unwrap();
    });
}

#[test]
fn the_limit_of_a_reservation_can_be_lowered_and_is_never_more_than_its_bytes() {
    let whole = Budget::new(1000);
    let backend = Arc::new(Backend::new());
    let reserved = whole.reserve(600, Duration::ZERO).unwrap();
    reserved.set_limit(800);
    assert_eq!((reserved.limit(), reserved.remaining(), whole.remaining()), (600, 600, 400));
    reserved.set_limit(100);
    let query = on(&reserved, &backend);
    assert!(query.allocate(101, backend.stream(), TAG).is_err());
    let block = query.allocate(100, backend.stream(), TAG).unwrap();
    assert_eq!(whole.reserved_bytes(), 600);
    drop(reserved);
    assert_eq!(whole.reserved_bytes(), 100);
    query.deallocate(block).unwrap();
    assert_eq!(whole.reserved_bytes(), 0);
}
