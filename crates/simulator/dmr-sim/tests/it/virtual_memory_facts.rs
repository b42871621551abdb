//! Facts about the driver's virtual memory and stream memory operations that the simulator models.
//! Each test checks one on the driver that this process uses, simulated or not: its name is a
//! question, and it asserts the simulator's result.
//!
//! On a GPU each test needs a process of its own, or one thread for all: a capture in one affects
//! the others.
#![allow(unsafe_code)] // the driver is called directly, with wrong arguments on purpose

use crate::support::gpu::{self, Pinned, code, device, fill, sync};
use crate::support::virtual_memory::{
    EQ, GEQ, NONE, PAGE, Properties, READ, READ_WRITE, access, batch, create, create_with,
    granularity, map, map_at, mapped, release, reserve, reserve_at, retain, set_access, take_back,
    unmap, unreserve, wait32, write32, write64,
};
use cudarc::driver::result;
use cudarc::driver::sys::{CUdevice_attribute, CUstreamCaptureMode};

const INVALID: Option<i32> = Some(1);
const NOT_SUPPORTED: Option<i32> = Some(801);
const P: u64 = PAGE as u64;

#[test]
fn which_attributes_say_that_it_is_there() {
    use CUdevice_attribute as Attribute;
    let (_universe, gpu) = device();
    for attribute in [
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    ] {
        // SAFETY: the device is the driver's own.
        let returned = unsafe { result::device::get_attribute(gpu.device, attribute) };
        assert_eq!(returned.unwrap(), 1, "{attribute:?}");
    }
}

#[test]
fn how_large_is_a_page() {
    let (_universe, gpu) = device();
    let props = Properties::of(gpu.device);
    assert_eq!(granularity(&props, false).unwrap(), PAGE);
    assert_eq!(granularity(&props, true).unwrap(), PAGE);
}

#[test]
fn are_odd_sizes_and_alignments_reserved() {
    let (_universe, _gpu) = device();
    assert_eq!(code(reserve(0)), INVALID);
    assert_eq!(code(reserve(PAGE + 4096)), INVALID);
    assert_eq!(code(reserve_at(PAGE, 3 << 20, 0, 0)), INVALID);
    let aligned = reserve_at(PAGE, 1 << 30, 0, 0).unwrap();
    assert!(aligned.is_multiple_of(1 << 30));
    unreserve(aligned, PAGE).unwrap();
}

#[test]
fn is_a_hint_followed_and_a_taken_one_passed_over() {
    let (_universe, _gpu) = device();
    let first = reserve(4 * PAGE).unwrap();
    unreserve(first, 4 * PAGE).unwrap();
    assert_eq!(reserve_at(2 * PAGE, 0, first, 0).unwrap(), first);
    let other = reserve_at(2 * PAGE, 0, first, 0).unwrap();
    assert_ne!(other, first);
    unreserve(first, 2 * PAGE).unwrap();
    unreserve(other, 2 * PAGE).unwrap();
}

#[test]
fn a_range_is_not_freed_in_part_or_under_a_mapping() {
    let (_universe, gpu) = device();
    let at = reserve(2 * PAGE).unwrap();
    assert_eq!(code(unreserve(at, PAGE)), INVALID);
    assert_eq!(code(unreserve(at + P, PAGE)), INVALID);
    let memory = create(PAGE, gpu.device).unwrap();
    map(at, PAGE, memory).unwrap();
    assert_eq!(code(unreserve(at, 2 * PAGE)), INVALID);
    unmap(at, PAGE).unwrap();
    release(memory).unwrap();
    unreserve(at, 2 * PAGE).unwrap();
}

#[test]
fn what_is_wrong_with_memory_of_odd_size_or_no_device() {
    let (_universe, gpu) = device();
    assert_eq!(code(create(0, gpu.device)), INVALID);
    assert_eq!(code(create(PAGE + 4096, gpu.device)), INVALID);
    let nowhere = Properties { location: [0, gpu.device], ..Properties::of(gpu.device) };
    assert_eq!(code(create_with(PAGE, &nowhere, 0)), INVALID);
    assert_eq!(code(create(PAGE, 1000)), Some(101));
    assert_eq!(code(create(1 << 46, gpu.device)), Some(2));
}

#[test]
fn is_a_handle_released_twice_or_taken_back_through_a_mapping() {
    let (_universe, gpu) = device();
    let (at, memory) = mapped(PAGE, gpu.device);
    release(memory).unwrap();
    assert_eq!(code(release(memory)), INVALID);
    let again = retain(at + 4096).unwrap();
    unmap(at, PAGE).unwrap();
    map(at, PAGE, again).unwrap();
    unmap(at, PAGE).unwrap();
    release(again).unwrap();
    unreserve(at, PAGE).unwrap();
}

#[test]
fn is_a_part_of_a_memory_mapped() {
    let (_universe, gpu) = device();
    let at = reserve(4 * PAGE).unwrap();
    let memory = create(2 * PAGE, gpu.device).unwrap();
    assert_eq!(code(map_at(at, PAGE, PAGE, memory, 0)), NOT_SUPPORTED, "from an offset");
    assert_eq!(code(map(at, 3 * PAGE, memory)), NOT_SUPPORTED, "more than there is");
    assert_eq!(code(map(at, PAGE, memory)), NOT_SUPPORTED, "its start");
    assert_eq!(code(map(at, 4096, memory)), NOT_SUPPORTED, "an odd part");
    assert_eq!(code(map(at, 0, memory)), INVALID, "nothing of it");
    assert_eq!(code(map(at + 4096, PAGE, memory)), NOT_SUPPORTED, "a part, at an odd address");
    release(memory).unwrap();
    unreserve(at, 4 * PAGE).unwrap();
}

#[test]
fn is_anything_mapped_where_something_is_or_nothing_is_reserved() {
    let (_universe, gpu) = device();
    let at = reserve(2 * PAGE).unwrap();
    let memory = create(2 * PAGE, gpu.device).unwrap();
    assert_eq!(code(map(at + 4096, 2 * PAGE, memory)), INVALID, "an odd address");
    // A mapping beyond the end is not tried: an H200 accepts it where the range is
    // small, and then memory is mapped at addresses of another owner. The simulator refuses it.
    map(at, 2 * PAGE, memory).unwrap();
    assert_eq!(code(map(at, 2 * PAGE, memory)), INVALID, "mapped already");
    unmap(at, 2 * PAGE).unwrap();
    unreserve(at, 2 * PAGE).unwrap();
    assert_eq!(code(map(at, 2 * PAGE, memory)), INVALID, "not reserved any more");
    release(memory).unwrap();
}

#[test]
fn are_mappings_unmapped_in_part_or_several_at_once() {
    let (_universe, gpu) = device();
    let at = reserve(5 * PAGE).unwrap();
    let memories = [(); 2].map(|()| create(2 * PAGE, gpu.device).unwrap());
    assert_eq!(code(unmap(at, 5 * PAGE)), None, "nothing is mapped");
    map(at, 2 * PAGE, memories[0]).unwrap();
    map(at + 2 * P, 2 * PAGE, memories[1]).unwrap();
    assert_eq!(code(unmap(at, PAGE)), INVALID, "a part");
    assert_eq!(code(unmap(at, 3 * PAGE)), INVALID, "one and a part");
    set_access(at, 4 * PAGE, gpu.device, READ_WRITE).unwrap(); // both are still mapped
    assert_eq!(code(unmap(at, 5 * PAGE)), None, "both, and what is not mapped");
    assert_eq!(code(unmap(at, 4 * PAGE)), None, "again");
    for (start, memory) in [at, at + 2 * P].into_iter().zip(memories) {
        assert_eq!(code(map(start, 2 * PAGE, memory)), None, "there is room");
    }
    unmap(at, 4 * PAGE).unwrap();
    for memory in memories {
        release(memory).unwrap();
    }
    unreserve(at, 5 * PAGE).unwrap();
    assert_eq!(code(unmap(at, 5 * PAGE)), INVALID, "not reserved any more");
}

/// Runs a check with two memories of two pages mapped at the start of five reserved ones, and
/// `second` pages behind that.
fn with_two_of_five(second: u64, ask: impl FnOnce([u64; 2], i32)) {
    let (_universe, gpu) = device();
    let at = reserve(5 * PAGE).unwrap();
    let both = [at, at + second * P];
    let memories = both.map(|start| {
        let memory = create(2 * PAGE, gpu.device).unwrap();
        map(start, 2 * PAGE, memory).unwrap();
        memory
    });
    ask(both, gpu.device);
    for (start, memory) in both.into_iter().zip(memories) {
        unmap(start, 2 * PAGE).unwrap();
        release(memory).unwrap();
    }
    unreserve(at, 5 * PAGE).unwrap();
}

#[test]
fn are_rights_given_to_a_part_or_across_a_hole() {
    with_two_of_five(3, |both, device| {
        let at = both[0];
        let set = |start, pages| code(set_access(start, pages * PAGE, device, READ_WRITE));
        assert_eq!(set(at, 1), INVALID, "to a part");
        assert_eq!(set(at + 2 * P, 1), INVALID, "to nothing");
        assert_eq!(both.map(|start| access(start, device).unwrap()), [0; 2], "none so far");
        assert_eq!(set(at, 5), None, "to both, and the hole between them");
        assert_eq!(both.map(|start| access(start, device).unwrap()), [3, 0], "up to the hole");
    });
}

#[test]
fn are_rights_given_to_mappings_and_what_is_not_mapped_behind_them() {
    with_two_of_five(2, |both, device| {
        assert_eq!(code(set_access(both[0], 5 * PAGE, device, READ_WRITE)), INVALID);
    });
}

#[test]
fn is_a_part_unmapped_that_was_given_rights_with_others() {
    let (_universe, gpu) = device();
    let at = reserve(2 * PAGE).unwrap();
    let memories = [(); 2].map(|()| create(PAGE, gpu.device).unwrap());
    map(at, PAGE, memories[0]).unwrap();
    map(at + P, PAGE, memories[1]).unwrap();
    set_access(at, 2 * PAGE, gpu.device, READ_WRITE).unwrap();
    assert_eq!(code(unmap(at + P, PAGE)), None);
    assert_eq!(code(unmap(at, PAGE)), None);
    for memory in memories {
        release(memory).unwrap();
    }
    unreserve(at, 2 * PAGE).unwrap();
}

#[test]
fn which_rights_are_there() {
    let (_universe, gpu) = device();
    let at = reserve(PAGE).unwrap();
    let memory = create(PAGE, gpu.device).unwrap();
    map(at, PAGE, memory).unwrap();
    assert_eq!(access(at, gpu.device).unwrap(), u64::from(NONE), "at first");
    for rights in [READ, READ_WRITE, NONE] {
        set_access(at, PAGE, gpu.device, rights).unwrap();
        assert_eq!(access(at + 4096, gpu.device).unwrap(), u64::from(rights));
    }
    assert_eq!(code(set_access(at, PAGE, gpu.device, 2)), INVALID);
    take_back((at, memory), PAGE);
}

#[test]
fn what_does_a_memset_return_where_it_may_not() {
    let (universe, gpu) = device();
    let a = gpu::stream();
    let at = reserve(2 * PAGE).unwrap();
    assert_eq!(code(fill(at, 1, 64, a)), INVALID, "nothing is mapped");
    let memory = create(PAGE, gpu.device).unwrap();
    map(at, PAGE, memory).unwrap();
    assert_eq!(code(fill(at, 1, 64, a)), INVALID, "no rights");
    set_access(at, PAGE, gpu.device, READ_WRITE).unwrap();
    assert_eq!(code(fill(at + P - 4, 1, 8, a)), INVALID, "half of it in a hole");
    assert_eq!(code(fill(at, 1, PAGE, a)), None);
    sync(a).unwrap();
    unmap(at, PAGE).unwrap();
    assert_eq!(code(fill(at, 1, 64, a)), INVALID, "nothing any more");
    assert_eq!(code(sync(a)), None, "and the device is sound");
    release(memory).unwrap();
    unreserve(at, 2 * PAGE).unwrap();
    if let Some(universe) = universe {
        assert_eq!(universe.reports().len(), 4, "each refused call");
    }
}

#[test]
fn does_one_memset_or_copy_go_through_several_mappings() {
    let (_universe, gpu) = device();
    let a = gpu::stream();
    let at = reserve(2 * PAGE).unwrap();
    let memories = [(); 2].map(|()| create(PAGE, gpu.device).unwrap());
    for (page, memory) in memories.iter().enumerate() {
        map(at + page as u64 * P, PAGE, *memory).unwrap();
    }
    set_access(at, 2 * PAGE, gpu.device, READ_WRITE).unwrap();
    fill(at, 7, 2 * PAGE, a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(at + P - 2, 4).unwrap(), [7; 4]);
    unmap(at, 2 * PAGE).unwrap();
    for memory in memories {
        release(memory).unwrap();
    }
    unreserve(at, 2 * PAGE).unwrap();
}

#[test]
fn are_two_mappings_of_one_memory_the_same_bytes() {
    let (_universe, gpu) = device();
    let a = gpu::stream();
    let (first, memory) = mapped(PAGE, gpu.device);
    let second = reserve(PAGE).unwrap();
    map(second, PAGE, memory).unwrap();
    set_access(second, PAGE, gpu.device, READ_WRITE).unwrap();
    fill(first, 3, PAGE, a).unwrap();
    sync(a).unwrap();
    assert_eq!(gpu::read(second, 4).unwrap(), [3; 4]);
    unmap(first, PAGE).unwrap();
    assert_eq!(gpu::read(second, 4).unwrap(), [3; 4]);
    unmap(second, PAGE).unwrap();
    release(memory).unwrap();
    for at in [first, second] {
        unreserve(at, PAGE).unwrap();
    }
}

#[test]
fn is_mapped_memory_freed_as_an_allocation() {
    let (universe, gpu) = device();
    let block = mapped(PAGE, gpu.device);
    assert_eq!(code(gpu::free(block.0)), INVALID);
    assert_eq!(code(gpu::free_async(block.0, gpu::stream())), INVALID);
    take_back(block, PAGE);
    if let Some(universe) = universe {
        assert_eq!(universe.reports().len(), 2, "each refused call");
    }
}

#[test]
fn is_memory_mapped_while_a_stream_captures() {
    let (_universe, gpu) = device();
    let a = gpu::stream();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is live.
    unsafe { result::stream::begin_capture(a, mode) }.unwrap();
    let block = mapped(PAGE, gpu.device);
    take_back(block, PAGE);
    // SAFETY: as above.
    unsafe { result::stream::end_capture(a) }.expect("the capture is valid");
}

#[test]
fn are_words_written_and_waited_for_while_a_stream_captures() {
    let (_universe, gpu) = device();
    let a = gpu::stream();
    let word = mapped(PAGE, gpu.device);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is live.
    unsafe { result::stream::begin_capture(a, mode) }.unwrap();
    write32(a, word.0, 1).unwrap();
    wait32(a, word.0, 1, GEQ).unwrap();
    // SAFETY: as above.
    unsafe { result::stream::end_capture(a) }.expect("the capture is valid");
    take_back(word, PAGE);
}

#[test]
fn what_is_wrong_with_a_word() {
    let (_universe, _gpu) = device();
    let a = gpu::stream();
    let word = gpu::malloc(8).unwrap();
    fill(word, 0, 8, a).unwrap();
    assert_eq!(code(write32(a, word + 2, 1)), INVALID);
    assert_eq!(code(write64(a, word + 4, 1)), INVALID);
    assert_eq!(code(write32(a, 0, 1)), INVALID);
    assert_eq!(code(wait32(a, word, 0, 4)), INVALID);
    assert_eq!(code(batch(a, &[])), None);
    assert_eq!(code(batch(a, &[(77, word, 0, 0)])), INVALID);
    sync(a).unwrap();
    gpu::free(word).unwrap();
}

#[test]
fn do_words_order_streams_in_device_pinned_and_mapped_memory() {
    let (_universe, gpu) = device();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = gpu::malloc(8).unwrap();
    let pinned = Pinned::new(8);
    let virt = mapped(PAGE, gpu.device);
    let data = gpu::malloc(64).unwrap();
    let target = gpu::malloc(64).unwrap();
    fill(block, 0, 8, a).unwrap();
    fill(virt.0, 0, 8, a).unwrap();
    sync(a).unwrap();
    for (round, word) in [block, pinned.address(), virt.0].into_iter().enumerate() {
        fill(data, round as u8, 64, a).unwrap();
        write32(a, word, 5).unwrap();
        wait32(b, word, 5, EQ).unwrap();
        gpu::copy(target, data, 64, b).unwrap();
        sync(b).unwrap();
        assert_eq!(gpu::read(target, 1).unwrap(), [round as u8]);
    }
    take_back(virt, PAGE);
    drop(pinned);
    for block in [block, data, target] {
        gpu::free(block).unwrap();
    }
}
