//! The life of mapped memory: reserve, create, map, undo; and two mappings of one memory.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{
    self, Gpu, code, copy, fill, kernel, kinds, launch, machine, order, ptx, sync,
};
use crate::support::virtual_memory::{
    PAGE, Properties, READ, READ_WRITE, create, granularity, map, mapped, properties, release,
    reserve, retain, set_access, take_back, unmap, unreserve,
};
use cudarc::driver::result;
use dmr_sim::{Footprint, ReportKind, Universe};

const INVALID: Option<i32> = Some(1);
const OUT_OF_MEMORY: Option<i32> = Some(2);

fn free_bytes() -> usize {
    result::mem_get_info().unwrap().0
}

/// Registers a kernel that reads, and one that writes, `arg 1` bytes at `arg 0`.
fn kernels(
    universe: &Universe,
) -> (cudarc::driver::sys::CUfunction, cudarc::driver::sys::CUfunction) {
    universe.register_kernel(
        "reader",
        |args| Footprint::new().reads(args.u64(0), args.u64(1)),
        |args, memory| {
            let mut bytes = vec![0; args.u64(1) as usize];
            memory.read(args.u64(0), &mut bytes);
        },
    );
    universe.register_kernel(
        "writer",
        |args| Footprint::new().writes(args.u64(0), args.u64(1)),
        |args, memory| memory.fill(args.u64(0), args.u64(1), 9),
    );
    let find = |name| kernel(&ptx(name, &["u64", "u64"]), name).unwrap();
    (find("reader"), find("writer"))
}

#[test]
fn a_mapping_lives_and_leaves_nothing_behind() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let before = free_bytes();
    let props = Properties::of(gpu.device);
    assert_eq!(granularity(&props, false).unwrap(), PAGE);
    assert_eq!(granularity(&props, true).unwrap(), PAGE);
    let at = reserve(8 * PAGE).unwrap();
    assert!(at.is_multiple_of(PAGE as u64));
    assert_eq!(free_bytes(), before, "addresses cost no memory");
    let memory = create(2 * PAGE, gpu.device).unwrap();
    assert_eq!(free_bytes(), before - 2 * PAGE);
    assert_eq!(properties(memory).unwrap().location, [1, gpu.device]);
    map(at + PAGE as u64, 2 * PAGE, memory).unwrap();
    set_access(at + PAGE as u64, 2 * PAGE, gpu.device, READ_WRITE).unwrap();
    fill(at + PAGE as u64, 7, 2 * PAGE, a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(at + 3 * PAGE as u64 - 4, 4).unwrap(), [7; 4]);
    unmap(at + PAGE as u64, 2 * PAGE).unwrap();
    assert_eq!(free_bytes(), before - 2 * PAGE, "the handle holds the memory");
    release(memory).unwrap();
    assert_eq!(free_bytes(), before);
    unreserve(at, 8 * PAGE).unwrap();
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn a_huge_range_costs_nothing_until_it_is_mapped() {
    let (universe, gpu) = machine();
    let bytes = 4 << 40;
    let at = reserve(bytes).unwrap();
    let last = at + bytes as u64 - PAGE as u64;
    let memory = create(PAGE, gpu.device).unwrap();
    map(last, PAGE, memory).unwrap();
    set_access(last, PAGE, gpu.device, READ_WRITE).unwrap();
    fill(last, 1, PAGE, gpu::LEGACY).unwrap();
    assert_eq!(gpu::read(last, 1).unwrap(), [1]);
    unmap(last, PAGE).unwrap();
    release(memory).unwrap();
    unreserve(at, bytes).unwrap();
    assert!(universe.finish().is_clean());
}

#[test]
fn physical_memory_counts_against_the_device() {
    let universe = Universe::builder().capacity(8 * PAGE as u64).build().unwrap();
    let gpu = Gpu::new(&universe);
    let block = gpu::malloc(5 * PAGE).unwrap();
    let memory = create(2 * PAGE, gpu.device).unwrap();
    assert_eq!(code(create(2 * PAGE, gpu.device)), OUT_OF_MEMORY);
    assert_eq!(code(create(1 << 50, gpu.device)), OUT_OF_MEMORY);
    assert_eq!(code(gpu::malloc(2 * PAGE)), OUT_OF_MEMORY);
    release(memory).unwrap();
    release(create(3 * PAGE, gpu.device).unwrap()).unwrap();
    gpu::free(block).unwrap();
    assert!(universe.finish().is_clean());
}

#[test]
fn addresses_run_out_as_well() {
    let (universe, _gpu) = machine();
    assert_eq!(code(reserve(1 << 46)), OUT_OF_MEMORY);
    let halves = [(); 2].map(|()| reserve(1 << 44).unwrap());
    assert_eq!(code(reserve(PAGE)), OUT_OF_MEMORY);
    for half in halves {
        unreserve(half, 1 << 44).unwrap();
    }
    assert!(universe.finish().is_clean());
}

#[test]
fn memory_without_a_handle_lives_until_its_last_mapping_ends() {
    let (universe, gpu) = machine();
    let before = free_bytes();
    let at = reserve(2 * PAGE).unwrap();
    let memory = create(PAGE, gpu.device).unwrap();
    let second = at + PAGE as u64;
    map(at, PAGE, memory).unwrap();
    map(second, PAGE, memory).unwrap();
    set_access(at, 2 * PAGE, gpu.device, READ_WRITE).unwrap();
    fill(at, 5, PAGE, gpu::LEGACY).unwrap();
    release(memory).unwrap();
    assert_eq!(code(release(memory)), INVALID);
    assert_eq!(code(map(at, PAGE, memory)), INVALID);
    gpu::sync_context().unwrap();
    unmap(at, PAGE).unwrap();
    assert_eq!(gpu::read(second, 1).unwrap(), [5]);
    assert_eq!(free_bytes(), before - PAGE);
    let again = retain(second + 100).unwrap();
    assert_eq!(again, memory, "the handle is valid again");
    unmap(second, PAGE).unwrap();
    assert_eq!(free_bytes(), before - PAGE);
    release(again).unwrap();
    assert_eq!(free_bytes(), before);
    unreserve(at, 2 * PAGE).unwrap();
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn memory_that_is_not_freed_is_a_leak() {
    let leaks = |universe: &Universe| -> Vec<(String, u64)> {
        let reports = universe.finish().reports;
        assert!(reports.iter().all(|report| report.kind == ReportKind::Leak));
        reports.iter().map(|r| (r.second.operation.to_string(), r.bytes)).collect()
    };
    let (universe, gpu) = machine();
    let at = reserve(4 * PAGE).unwrap();
    let memory = create(PAGE, gpu.device).unwrap();
    map(at, PAGE, memory).unwrap();
    let page = PAGE as u64;
    let range = 4 * PAGE as u64;
    let map = ("map".into(), page);
    let reserve = ("reserve addresses".into(), range);
    let create = ("create memory".to_owned(), page);
    assert_eq!(leaks(&universe), [map.clone(), reserve.clone(), create]);
    release(memory).unwrap();
    assert_eq!(leaks(&universe), [map, reserve.clone()]);
    unmap(at, PAGE).unwrap();
    assert_eq!(leaks(&universe), [reserve]);
    unreserve(at, 4 * PAGE).unwrap();
    assert_eq!(leaks(&universe), []);
}

#[test]
fn two_mappings_of_one_memory_are_the_same_bytes() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let (first, memory) = mapped(2 * PAGE, gpu.device);
    let second = reserve(2 * PAGE).unwrap();
    map(second, 2 * PAGE, memory).unwrap();
    set_access(second, 2 * PAGE, gpu.device, READ_WRITE).unwrap();
    gpu::upload(first + 1000, b"through the first", a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(second + 1000, 17).unwrap(), b"through the first");
    fill(second, 3, 2 * PAGE, a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(first + 1000, 2).unwrap(), [3; 2]);
    // The bytes outlive a mapping.
    unmap(first, 2 * PAGE).unwrap();
    map(first, 2 * PAGE, memory).unwrap();
    set_access(first, 2 * PAGE, gpu.device, READ).unwrap();
    assert_eq!(gpu::read(first + PAGE as u64, 2).unwrap(), [3; 2]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn unordered_accesses_through_two_mappings_race() {
    for ordered in [true, false] {
        let (universe, gpu) = machine();
        let a = gpu::stream();
        let b = gpu::stream();
        let (first, memory) = mapped(PAGE, gpu.device);
        let second = reserve(PAGE).unwrap();
        map(second, PAGE, memory).unwrap();
        set_access(second, PAGE, gpu.device, READ_WRITE).unwrap();
        fill(first, 1, 100, a).unwrap();
        if ordered {
            order(a, b);
        }
        fill(second + 50, 2, 100, b).unwrap();
        if ordered {
            assert_eq!(kinds(&universe), []);
            continue;
        }
        let reports = universe.reports();
        assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
        assert_eq!((reports[0].address, reports[0].bytes), (second + 50, 50));
        assert_eq!(reports[0].device, Some(0));
    }
}

#[test]
fn fresh_memory_holds_nothing() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    for round in 1..=2 {
        let block = mapped(PAGE, gpu.device);
        let other = gpu::malloc(PAGE).unwrap();
        copy(other, block.0, 64, a).unwrap();
        fill(block.0, 1, PAGE, a).unwrap();
        sync(a).unwrap();
        take_back(block, PAGE);
        gpu::free(other).unwrap();
        assert_eq!(kinds(&universe), vec![ReportKind::Uninitialised; round]);
    }
}

#[test]
fn one_operation_may_go_through_several_mappings() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let at = reserve(3 * PAGE).unwrap();
    // Behind each other in the other order.
    let memories = [(); 3].map(|()| create(PAGE, gpu.device).unwrap());
    for (i, memory) in memories.iter().enumerate() {
        map(at + ((2 - i) * PAGE) as u64, PAGE, *memory).unwrap();
    }
    set_access(at, 3 * PAGE, gpu.device, READ_WRITE).unwrap();
    let content: Vec<u8> = (0..3 * PAGE - 7).map(|i| (i / 5) as u8).collect();
    gpu::upload(at + 5, &content, a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(at + 5, content.len()).unwrap(), content);
    let whole = gpu::malloc(3 * PAGE).unwrap();
    copy(whole, at + 5, content.len(), a).unwrap();
    fill(at + 5, 0, content.len(), a).unwrap();
    copy(at + 5, whole, content.len(), a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(at + 5, content.len()).unwrap(), content);
    let (_, writer) = kernels(&universe);
    launch(writer, &[at + 1, 3 * PAGE as u64 - 2], a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(at + 1, 3 * PAGE - 2).unwrap(), vec![9; 3 * PAGE - 2]);
    assert_eq!(kinds(&universe), []);
    // One race is one finding, in however many mappings.
    fill(at, 0, 3 * PAGE, gpu::stream()).unwrap();
    fill(at, 1, 3 * PAGE, gpu::stream()).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn physical_memory_is_on_the_device_that_it_was_made_for() {
    let universe = Universe::builder().capacity(4 * PAGE as u64).build().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    let there = create(4 * PAGE, second.device).unwrap();
    assert_eq!(free_bytes(), 4 * PAGE);
    second.bind();
    assert_eq!(free_bytes(), 0);
    release(there).unwrap();
}

#[test]
fn a_pools_regions_in_mapped_memory_are_judged() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let at = reserve(4 * PAGE).unwrap();
    let bytes = 2 * PAGE;
    let memory = create(bytes, gpu.device).unwrap();
    map(at, bytes, memory).unwrap();
    set_access(at, bytes, gpu.device, READ_WRITE).unwrap();
    universe.heap_created(at, 4 * PAGE);
    universe.region_allocated(at, 1000, "one");
    universe.region_allocated(at + 1024, 1000, "two");
    fill(at, 1, 1000, a).unwrap();
    fill(at + 1024, 1, 1001, a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
    assert_eq!(universe.reports()[0].tag.as_deref(), Some("two"));
    fill(at + 4096, 1, 1, a).unwrap();
    universe.region_freed(at);
    fill(at, 1, 1, a).unwrap();
    let expected = [ReportKind::OutOfBounds, ReportKind::OutOfBounds, ReportKind::UseAfterFree];
    assert_eq!(kinds(&universe), expected);
    // The memory has no content for its next owner.
    universe.region_allocated(at, 1000, "three");
    copy(at + 1024, at, 1000, a).unwrap();
    assert_eq!(kinds(&universe)[3..], [ReportKind::Uninitialised]);
}
