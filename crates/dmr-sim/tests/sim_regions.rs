//! A pool's blocks: the simulator is told of heaps and regions, and then checks them as it checks allocations.

mod support;

use dmr_sim::ReportKind;
use support::gpu::{self, copy, fill, kinds, machine, malloc, order};

#[test]
fn a_pools_block_ends_where_its_region_ends() {
    let program = |bytes: usize| {
        let (universe, _gpu) = machine();
        let a = gpu::stream();
        let heap = malloc(1 << 20).unwrap();
        universe.heap_created(heap, 1 << 20);
        universe.region_allocated(heap + 4096, 1000, "probe keys");
        let _ = fill(heap + 4096, 1, bytes, a);
        universe.reports()
    };
    let reports = program(1001);
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].kind, ReportKind::OutOfBounds);
    assert_eq!(reports[0].tag.as_deref(), Some("probe keys"));
    assert!(program(1000).is_empty());
}

#[test]
fn a_heap_outside_of_its_regions_belongs_to_nobody() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let heap = malloc(1 << 20).unwrap();
    universe.heap_created(heap, 1 << 20);
    let _ = fill(heap, 1, 16, a);
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
    universe.heap_destroyed(heap);
    fill(heap, 1, 16, a).unwrap();
    assert_eq!(kinds(&universe).len(), 1);
}

#[test]
fn a_freed_region_may_not_be_used() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let heap = malloc(1 << 20).unwrap();
    universe.heap_created(heap, 1 << 20);
    universe.region_allocated(heap, 1000, "");
    fill(heap, 1, 1000, a).unwrap();
    universe.region_freed(heap);
    assert_eq!(kinds(&universe), []);
    let _ = fill(heap, 2, 1000, a);
    assert_eq!(kinds(&universe), [ReportKind::UseAfterFree]);
}

#[test]
fn a_new_region_conflicts_with_its_previous_owners_work() {
    let program = |ordered: bool| {
        let (universe, _gpu) = machine();
        let (a, b) = (gpu::stream(), gpu::stream());
        let heap = malloc(1 << 20).unwrap();
        universe.heap_created(heap, 1 << 20);
        universe.region_allocated(heap, 1000, "first");
        fill(heap, 1, 1000, a).unwrap();
        universe.region_freed(heap);
        universe.region_allocated(heap, 1000, "second");
        if ordered {
            order(a, b);
        }
        fill(heap, 2, 1000, b).unwrap();
        kinds(&universe)
    };
    assert_eq!(program(false), [ReportKind::WriteAfterWrite]);
    assert_eq!(program(true), []);
}

#[test]
fn a_new_regions_content_is_undefined() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let heap = malloc(1 << 20).unwrap();
    universe.heap_created(heap, 1 << 20);
    universe.region_allocated(heap, 100, "first");
    fill(heap, 1, 100, a).unwrap();
    universe.region_freed(heap);
    universe.region_allocated(heap, 100, "second");
    copy(malloc(100).unwrap(), heap, 100, a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::Uninitialised]);
}
