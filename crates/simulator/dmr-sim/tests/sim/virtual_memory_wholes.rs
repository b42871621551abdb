//! Mapping and unmapping in one call: whole memories, whole mappings, and addresses without a
//! mapping.
#![allow(unsafe_code)] // the driver is called directly, with wrong arguments on purpose

use crate::support::gpu::{self, code, fill, kinds, machine};
use crate::support::virtual_memory::{
    PAGE, READ_WRITE, access, create, map, map_at, release, reserve, reserve_at, set_access, unmap,
    unreserve,
};
use dmr_sim::ReportKind;

const INVALID: Option<i32> = Some(1);
const NOT_SUPPORTED: Option<i32> = Some(801);
const P: u64 = PAGE as u64;

#[test]
fn only_reserved_and_free_pages_are_mapped() {
    let (universe, gpu) = machine();
    let at = reserve(4 * PAGE).unwrap();
    let next = reserve_at(PAGE, 0, at + 4 * P, 0).unwrap();
    assert_eq!(next, at + 4 * P);
    let memory = create(2 * PAGE, gpu.device).unwrap();
    let small = create(PAGE, gpu.device).unwrap();
    let block = gpu::malloc(4 * PAGE).unwrap();
    for (start, what) in [
        (0, "nowhere"),
        (block.next_multiple_of(P), "an allocation"),
        (at - 2 * P, "before"),
        (at - P, "partly before"),
        (at + 3 * P, "across two ranges"),
        (next, "beyond the end"),
        (at + 4096, "an odd address"),
    ] {
        assert_eq!(code(map(start, 2 * PAGE, memory)), INVALID, "{what}");
    }
    assert_eq!(code(map_at(at, 2 * PAGE, 0, memory, 1)), INVALID, "flags");
    map(at + P, 2 * PAGE, memory).unwrap();
    for start in [at, at + P, at + 2 * P] {
        assert_eq!(code(map(start, 2 * PAGE, memory)), INVALID, "mapped already");
    }
    map(at, PAGE, small).unwrap();
    map(at + 3 * P, PAGE, small).unwrap();
    for (start, bytes) in [(at, PAGE), (at + P, 2 * PAGE), (at + 3 * P, PAGE)] {
        unmap(start, bytes).unwrap();
    }
    for memory in [memory, small] {
        release(memory).unwrap();
    }
    unreserve(at, 4 * PAGE).unwrap();
    unreserve(next, PAGE).unwrap();
    gpu::free(block).unwrap();
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn memory_is_mapped_as_a_whole_and_anything_else_is_not_supported() {
    let (universe, gpu) = machine();
    let at = reserve(4 * PAGE).unwrap();
    let memory = create(2 * PAGE, gpu.device).unwrap();
    for (bytes, offset, what) in [
        (PAGE, 0, "its start"),
        (PAGE, PAGE, "its end"),
        (2 * PAGE, PAGE, "beyond its end"),
        (3 * PAGE, 0, "more than it has"),
        (4096, 0, "less than a page"),
        (PAGE + 4096, 0, "an odd size"),
        (usize::MAX - PAGE + 1, 0, "an overflow"),
    ] {
        // That is checked before the addresses.
        for start in [at, at + 4096, 0] {
            let returned = code(map_at(start, bytes, offset, memory, 0));
            assert_eq!(returned, NOT_SUPPORTED, "{what} at {start:#x}");
        }
    }
    for offset in [0, PAGE] {
        assert_eq!(code(map_at(at, 0, offset, memory, 0)), INVALID, "nothing from {offset}");
    }
    release(memory).unwrap();
    unreserve(at, 4 * PAGE).unwrap();
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn no_mapping_is_cut_and_what_is_not_mapped_does_not_matter() {
    let (universe, gpu) = machine();
    // Reserved are two ranges, one behind the other. Mapped of the first: 1, 2; 4, 5.
    let at = reserve(7 * PAGE).unwrap();
    let next = reserve_at(PAGE, 0, at + 7 * P, 0).unwrap();
    assert_eq!(next, at + 7 * P);
    let memories = [(); 2].map(|()| create(2 * PAGE, gpu.device).unwrap());
    let both = [at + P, at + 4 * P];
    for (start, memory) in both.into_iter().zip(memories) {
        map(start, 2 * PAGE, memory).unwrap();
    }
    let set = |start, bytes| code(set_access(start, bytes, gpu.device, READ_WRITE));
    for (start, bytes, what) in [
        (at + P, PAGE, "a first half"),
        (at + 2 * P, PAGE, "a second half"),
        (at, 2 * PAGE, "a hole and a half"),
        (at + P, 4 * PAGE, "a whole one and a half"),
        (at + 2 * P, 4 * PAGE, "a half and a whole one"),
        (at + 2 * P, 3 * PAGE, "two halves"),
        (at, 0, "nothing"),
        (0, PAGE, "nowhere"),
        (at + P + 4096, 2 * PAGE, "an odd address"),
        (at + 3 * P + 4096, 4096, "odd, and nothing is mapped"),
        (at + 3 * P, PAGE + 4096, "an odd size"),
        (at - P, 8 * PAGE, "from before the range"),
        (at, 8 * PAGE, "two ranges"),
        (next, 2 * PAGE, "to behind the range"),
        (at, usize::MAX, "an overflow"),
        (at, usize::MAX - PAGE + 1, "an overflow in pages"),
    ] {
        assert_eq!(code(unmap(start, bytes)), INVALID, "{what}");
        assert_eq!(set(start, bytes), INVALID, "{what}");
    }
    // Without a mapping there is nothing to unmap, and no rights can be set.
    for (start, bytes) in [(at, PAGE), (at + 3 * P, PAGE), (at + 6 * P, PAGE), (next, PAGE)] {
        unmap(start, bytes).unwrap();
        assert_eq!(set(start, bytes), INVALID);
    }
    // All of it is unchanged.
    assert_eq!(both.map(|start| access(start, gpu.device).unwrap()), [0; 2]);
    assert_eq!(set(at, 7 * PAGE), INVALID, "what begins with a hole");
    assert_eq!(set(at + P, 3 * PAGE), INVALID, "what ends with one");
    assert_eq!(both.map(|start| access(start, gpu.device).unwrap()), [0; 2]);
    assert_eq!(set(at + P, 5 * PAGE), None, "what has one between");
    assert_eq!(both.map(|start| access(start, gpu.device).unwrap()), [3, 0], "up to the hole");
    assert_eq!(set(at + 4 * P, 2 * PAGE), None);
    assert_eq!(code(fill(at + P, 1, 5 * PAGE, gpu::LEGACY)), INVALID, "the hole is still one");
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
    for start in both {
        fill(start, 1, 2 * PAGE, gpu::LEGACY).unwrap();
    }
    gpu::sync_context().unwrap();
    unmap(at, 7 * PAGE).unwrap();
    for start in both {
        assert_eq!(code(access(start, gpu.device)), INVALID, "it is gone");
    }
    unmap(at, 7 * PAGE).unwrap(); // again
    memories.into_iter().for_each(|memory| release(memory).unwrap());
    unreserve(at, 7 * PAGE).unwrap();
    unreserve(next, PAGE).unwrap();
    for start in [at, next] {
        assert_eq!(code(unmap(start, PAGE)), INVALID, "not reserved any more");
    }
    assert_eq!(universe.finish().reports.len(), 1, "{}", universe.finish());
}
