//! A scope counts what its thread does while it is open, also in the scopes inside it.

#![cfg(feature = "statistics")]

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::{ScopeCounter, StatisticsLayer, StatisticsResource};
use dmr_core::conformance::Harness;
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_fake::{FakeHarness, FakeResource};
use std::sync::Arc;

const TAG: AllocTag = AllocTag::new("scoped");

fn harness() -> FakeHarness<StatisticsResource<Arc<FakeResource>>> {
    FakeHarness::wrapped(true, |fake, _| StatisticsLayer::new().layer(fake))
}

fn counter(current: i64, peak: u64, total: u64) -> ScopeCounter {
    ScopeCounter { current, peak, total }
}

#[test]
fn a_scope_counts_from_its_push_to_its_pop() {
    let harness = harness();
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let before = resource.allocate(1000, x, TAG).unwrap();
    let scope = resource.push(AllocTag::new("query 1"));
    let inside = resource.allocate(10, x, TAG).unwrap();
    resource.deallocate(before).unwrap();
    resource.allocate(0, x, TAG).unwrap_err();
    assert_eq!(scope.so_far().bytes, counter(-990, 10, 10));
    let counted = scope.pop();
    resource.deallocate(inside).unwrap();
    assert_eq!(counted.tag.name(), "query 1");
    assert_eq!((counted.bytes, counted.allocations), (counter(-990, 10, 10), counter(0, 1, 1)));
    assert_eq!((counted.frees, counted.failures), (1, 1));
}

#[test]
fn a_scope_counts_what_the_scopes_inside_it_count() {
    let harness = harness();
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let outer = resource.push(AllocTag::new("outer"));
    let first = resource.allocate(100, x, TAG).unwrap();
    let inner = resource.push(AllocTag::new("inner"));
    let second = resource.allocate(50, x, TAG).unwrap();
    resource.deallocate(second).unwrap();
    resource.deallocate(first).unwrap();
    assert_eq!(outer.so_far().bytes, counter(0, 150, 150));
    assert_eq!(inner.pop().bytes, counter(-100, 50, 50));
    let third = resource.allocate(120, x, TAG).unwrap();
    let counted = outer.pop();
    assert_eq!(counted.bytes, counter(120, 150, 270));
    assert_eq!((counted.allocations, counted.frees), (counter(1, 2, 3), 2));
    resource.deallocate(third).unwrap();
}

#[test]
fn a_dropped_scope_is_popped_and_a_popped_scope_ends_those_inside_it() {
    let harness = harness();
    let resource = harness.outermost();
    let [x, _] = harness.streams();
    let outer = resource.push(AllocTag::new("outer"));
    drop(resource.push(AllocTag::new("dropped")));
    let inner = resource.push(AllocTag::new("inner"));
    let innermost = resource.push(AllocTag::new("innermost"));
    let block = resource.allocate(7, x, TAG).unwrap();
    assert_eq!(outer.pop().bytes, counter(7, 7, 7));
    assert_eq!(innermost.so_far().bytes, counter(0, 0, 0));
    resource.deallocate(block).unwrap();
    assert_eq!(inner.pop().bytes, counter(0, 0, 0), "it ended with the one around it");
    let next = resource.push(AllocTag::new("next"));
    drop(innermost);
    let block = resource.allocate(3, x, TAG).unwrap();
    assert_eq!(next.pop().bytes, counter(3, 3, 3), "a scope that has ended ends no other");
    resource.deallocate(block).unwrap();
}

#[test]
fn a_scope_is_of_one_thread_and_of_one_resource() {
    let other = harness();
    let harness = harness();
    let resource = harness.outermost();
    let [x, y] = harness.streams();
    let scope = resource.push(AllocTag::new("mine"));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let theirs = resource.push(AllocTag::new("theirs"));
            resource.deallocate(resource.allocate(5, y, TAG).unwrap()).unwrap();
            assert_eq!(theirs.pop().bytes, counter(0, 5, 5));
        });
    });
    let elsewhere = other.outermost().allocate(9, other.streams()[0], TAG).unwrap();
    other.outermost().deallocate(elsewhere).unwrap();
    let mine = resource.allocate(1, x, TAG).unwrap();
    assert_eq!(scope.pop().bytes, counter(1, 1, 1));
    resource.deallocate(mine).unwrap();
    assert_eq!(resource.snapshot().bytes.total, 6);
}
