//! A pool's blocks: heaps and regions are reported to the simulator, which then checks them like
//! allocations.

use crate::support::gpu::{self, copy, fill, kinds, machine, malloc, order};
use dmr_sim::ReportKind;

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
fn a_heap_may_not_be_accessed_outside_of_its_regions() {
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
        let a = gpu::stream();
        let b = gpu::stream();
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

/// A universe with a heap of 1 MiB.
fn with_heap() -> (dmr_sim::Universe, gpu::Gpu, u64) {
    let (universe, gpu) = machine();
    let heap = malloc(1 << 20).unwrap();
    universe.heap_created(heap, 1 << 20);
    (universe, gpu, heap)
}

#[test]
fn a_block_that_is_allocated_twice_is_found() {
    let (universe, _gpu, heap) = with_heap();
    universe.region_allocated(heap + 512, 1024, "first");
    for (at, bytes) in [(heap + 512, 1024), (heap, 513), (heap + 1535, 1), (heap, 1 << 20)] {
        universe.region_allocated(at, bytes, "second");
    }
    assert_eq!(kinds(&universe), [ReportKind::BadRegion; 4]);
    let report = &universe.reports()[0];
    assert_eq!((report.address, report.bytes), (heap + 512, 1024));
    assert_eq!(report.tag.as_deref(), Some("second"));
    assert!(report.first.is_some());
    universe.region_allocated(heap, 512, "beside");
    universe.region_freed(heap + 512);
    universe.region_allocated(heap + 512, 1024, "again");
    assert_eq!(kinds(&universe).len(), 4);
}

#[test]
fn a_region_lies_inside_of_a_heap() {
    let (universe, _gpu, heap) = with_heap();
    let end = heap + (1 << 20);
    for (at, bytes) in [(end, 512), (end - 512, 513), (heap, usize::MAX), (u64::MAX, 1), (0, 1)] {
        universe.region_allocated(at, bytes, "");
    }
    assert_eq!(kinds(&universe), [ReportKind::BadRegion; 5]);
    universe.region_allocated(end - 512, 512, "");
    assert_eq!(kinds(&universe).len(), 5);
}

#[test]
fn a_region_is_freed_once() {
    let (universe, _gpu, heap) = with_heap();
    universe.region_allocated(heap, 512, "once");
    universe.region_freed(heap);
    assert_eq!(kinds(&universe), []);
    universe.region_freed(heap);
    universe.region_freed(heap + 512);
    universe.region_freed(7);
    let unknown = ReportKind::UnknownFree;
    assert_eq!(kinds(&universe), [ReportKind::DoubleFree, unknown, unknown]);
}

#[test]
fn a_pool_inside_of_a_pools_block_is_checked_by_itself() {
    let (universe, _gpu, outer) = with_heap();
    let a = gpu::stream();
    universe.region_allocated(outer, 4096, "slab");
    universe.region_allocated(outer + 4096, 4096, "beside");
    universe.heap_created(outer, 4096);
    universe.region_allocated(outer, 512, "block");
    fill(outer, 1, 512, a).unwrap();
    fill(outer + 4096, 1, 4096, a).unwrap();
    assert_eq!(kinds(&universe), []);
    let _ = fill(outer, 1, 513, a);
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
    assert_eq!(universe.reports()[0].tag.as_deref(), Some("block"));

    universe.region_freed(outer); // the block
    let _ = fill(outer, 1, 512, a);
    assert_eq!(kinds(&universe)[1..], [ReportKind::UseAfterFree]);
    universe.heap_destroyed(outer);
    fill(outer, 1, 4096, a).unwrap(); // the slab is its owner's again
    universe.region_freed(outer); // the slab
    let _ = fill(outer, 1, 512, a);
    assert_eq!(kinds(&universe)[2..], [ReportKind::UseAfterFree]);
    assert_eq!(universe.reports()[2].tag.as_deref(), Some("slab"));
}

#[test]
fn a_name_is_given_to_the_innermost_owner() {
    let (universe, _gpu, heap) = with_heap();
    universe.region_allocated(heap, 512, "");
    universe.name_allocation(heap, "innermost");
    let _ = fill(heap, 1, 513, gpu::stream());
    assert_eq!(universe.reports()[0].tag.as_deref(), Some("innermost"));
}

#[test]
fn the_rest_of_a_freed_region_stays_freed() {
    let (universe, _gpu, heap) = with_heap();
    let a = gpu::stream();
    universe.region_allocated(heap, 4096, "large");
    universe.region_freed(heap);
    universe.region_allocated(heap + 1024, 512, "small");
    for at in [heap, heap + 1024, heap + 1536] {
        let _ = fill(at, 1, 512, a);
    }
    assert_eq!(kinds(&universe), [ReportKind::UseAfterFree; 2]);
    assert!(universe.reports().iter().all(|report| report.tag.as_deref() == Some("large")));
}

#[test]
fn a_freed_heap_takes_its_regions_with_it() {
    let (universe, _gpu, heap) = with_heap();
    let a = gpu::stream();
    universe.region_allocated(heap, 512, "");
    gpu::free(heap).unwrap();
    let again = malloc(1 << 20).unwrap();
    assert_eq!(again, heap, "the address comes back");
    fill(again, 1, 1 << 20, a).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_leak_is_the_block_and_its_name_and_not_the_memory_of_the_pool() {
    let (universe, _gpu) = machine();
    let heap = malloc(1 << 20).unwrap();
    universe.heap_created(heap, 1 << 20);
    universe.region_allocated(heap, 4096, "segment");
    universe.region_allocated(heap + 4096, 1000, "probe keys");
    universe.heap_created(heap, 4096);
    universe.region_allocated(heap + 512, 64, "counts");
    let verdict = universe.finish();
    let leaks =
        verdict.reports.iter().map(|leak| (leak.address - heap, leak.bytes, leak.tag.as_deref()));
    let expected = [(512, 64, Some("counts")), (4096, 1000, Some("probe keys"))];
    assert_eq!(leaks.collect::<Vec<_>>(), expected);
    let text = verdict.reports[0].to_string();
    assert!(text.starts_with("memory was never freed: 64 bytes at "), "{text}");
    assert!(text.contains("\n  allocation: "), "{text}");

    universe.region_freed(heap + 512);
    universe.region_freed(heap + 4096);
    universe.heap_destroyed(heap);
    universe.heap_destroyed(heap);
    let reports = universe.finish().reports;
    assert_eq!(reports.len(), 1, "the memory of a pool without blocks");
    assert_eq!((reports[0].address, reports[0].bytes), (heap, 1 << 20));
}
