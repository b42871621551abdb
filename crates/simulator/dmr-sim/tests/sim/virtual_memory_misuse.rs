//! Virtual memory calls with wrong arguments, out of order, on devices without it, and with faults
//! planted.
#![allow(unsafe_code)] // the driver is called directly, with wrong arguments on purpose

use std::ptr::{null, null_mut};
use std::thread;

use crate::support::gpu::{self, Gpu, code, fill, kinds, machine};
use crate::support::virtual_memory::{
    NONE, PAGE, Properties, READ_WRITE, access, create, create_with, export, granularity, map,
    mapped, properties, release, reserve, reserve_at, retain, set_access, set_access_of, take_back,
    unmap, unreserve,
};
use cudarc::driver::sys::{self, CUresult};
use dmr_sim::{ReportKind, Universe};

const INVALID: Option<i32> = Some(1);
const INVALID_DEVICE: Option<i32> = Some(101);
const NOT_SUPPORTED: Option<i32> = Some(801);
const P: u64 = PAGE as u64;

#[test]
fn ranges_are_reserved_whole_and_aligned() {
    let (universe, _gpu) = machine();
    for bytes in [0, 1, PAGE - 1, PAGE + 4096, usize::MAX] {
        assert_eq!(code(reserve(bytes)), INVALID, "{bytes}");
    }
    assert_eq!(code(reserve_at(PAGE, 3 << 20, 0, 0)), INVALID, "no power of two");
    assert_eq!(code(reserve_at(PAGE, 0, 0, 1)), INVALID, "flags");
    let aligned = reserve_at(PAGE, 1 << 30, 0, 0).unwrap();
    assert!(aligned.is_multiple_of(1 << 30));
    let small = reserve_at(PAGE, 4096, 0, 0).unwrap();
    assert!(small.is_multiple_of(P));
    // A hint is followed where possible.
    let hint = aligned + 64 * P;
    assert_eq!(reserve_at(2 * PAGE, 0, hint, 0).unwrap(), hint);
    let taken = reserve_at(PAGE, 0, hint + P, 0).unwrap();
    let odd = reserve_at(PAGE, 0, hint + 12 * P + 4096, 0).unwrap();
    let nowhere = reserve_at(PAGE, 0, 4096 * P, 0).unwrap();
    assert!(odd.is_multiple_of(P) && taken != hint + P && nowhere != 4096 * P);
    for (at, bytes) in [(aligned, PAGE), (small, PAGE), (hint, 2 * PAGE), (taken, PAGE)] {
        unreserve(at, bytes).unwrap();
    }
    for at in [odd, nowhere] {
        unreserve(at, PAGE).unwrap();
    }
    assert!(universe.finish().is_clean());
}

#[test]
fn a_range_is_freed_as_it_was_reserved() {
    let (universe, gpu) = machine();
    let at = reserve(4 * PAGE).unwrap();
    for (at, bytes) in [(at, PAGE), (at, 5 * PAGE), (at + P, 3 * PAGE), (at + P, PAGE), (0, PAGE)] {
        assert_eq!(code(unreserve(at, bytes)), INVALID);
    }
    let memory = create(PAGE, gpu.device).unwrap();
    map(at + 3 * P, PAGE, memory).unwrap();
    assert_eq!(code(unreserve(at, 4 * PAGE)), INVALID, "something is mapped");
    unmap(at + 3 * P, PAGE).unwrap();
    unreserve(at, 4 * PAGE).unwrap();
    assert_eq!(code(unreserve(at, 4 * PAGE)), INVALID);
    assert_eq!(code(map(at, PAGE, memory)), INVALID, "the addresses are gone");
    release(memory).unwrap();
    assert!(universe.finish().is_clean());
}

#[test]
fn memory_is_created_in_pages_of_a_known_kind() {
    let (universe, gpu) = machine();
    let good = Properties::of(gpu.device);
    for bytes in [0, 1, PAGE - 1, PAGE + 4096, usize::MAX] {
        assert_eq!(code(create(bytes, gpu.device)), INVALID, "{bytes}");
    }
    assert_eq!(code(create_with(PAGE, &good, 1)), INVALID, "flags");
    for (location, expected) in [
        ([1, -1], INVALID_DEVICE),
        ([1, i32::MAX], INVALID_DEVICE),
        ([0, gpu.device], INVALID),
        ([9, gpu.device], INVALID),
        ([2, gpu.device], NOT_SUPPORTED),
        ([4, gpu.device], NOT_SUPPORTED),
    ] {
        let bad = Properties { location, ..good };
        assert_eq!(code(create_with(PAGE, &bad, 0)), expected, "{location:?}");
        assert_eq!(code(granularity(&bad, false)), expected, "{location:?}");
    }
    for kind in [0, 2, 9] {
        assert_eq!(code(create_with(PAGE, &Properties { kind, ..good }, 0)), INVALID);
    }
    for handle_types in [1, 2, 4, 8, 9] {
        let exported = Properties { handle_types, ..good };
        assert_eq!(code(create_with(PAGE, &exported, 0)), NOT_SUPPORTED, "{handle_types}");
    }
    assert_eq!(code(create_with(PAGE, &Properties { handle_types: 16, ..good }, 0)), INVALID);
    let memory = create_with(PAGE, &Properties { rdma_capable: 1, ..good }, 0).unwrap();
    assert_eq!(properties(memory).unwrap().rdma_capable, 1);
    release(memory).unwrap();
    assert!(universe.finish().is_clean());
}

#[test]
fn a_handle_is_refused_once_it_is_released_or_is_no_handle() {
    let (universe, gpu) = machine();
    let (other, other_gpu) = machine();
    let foreign = create(PAGE, other_gpu.device).unwrap();
    gpu.bind();
    let at = reserve(PAGE).unwrap();
    let memory = create(PAGE, gpu.device).unwrap();
    release(memory).unwrap();
    for bad in [0, 1, memory, memory + 1, at, gpu::stream() as u64, u64::MAX] {
        assert_eq!(code(release(bad)), INVALID, "{bad:#x}");
        assert_eq!(code(map(at, PAGE, bad)), INVALID, "{bad:#x}");
        assert_eq!(code(properties(bad)), INVALID, "{bad:#x}");
    }
    assert_eq!(code(map(at, PAGE, foreign)), INVALID, "of another machine");
    assert_eq!(code(retain(at)), INVALID, "nothing is mapped");
    assert_eq!(code(retain(0)), INVALID);
    unreserve(at, PAGE).unwrap();
    assert!(universe.finish().is_clean());
    drop(other);
}

#[test]
fn rights_are_given_to_devices_that_are_there() {
    let (universe, gpu) = machine();
    let block = mapped(PAGE, gpu.device);
    let device = gpu.device;
    assert_eq!(code(set_access_of(block.0, PAGE, &[])), INVALID);
    assert_eq!(code(set_access_of(block.0, PAGE, &[[1, device, 2]])), INVALID, "no such right");
    assert_eq!(code(set_access_of(block.0, PAGE, &[[0, device, 3]])), INVALID);
    assert_eq!(code(set_access_of(block.0, PAGE, &[[2, device, 3]])), NOT_SUPPORTED);
    for bad in [-1, i32::MAX] {
        let both = [[1, device, NONE as i32], [1, bad, 3]];
        assert_eq!(code(set_access_of(block.0, PAGE, &both)), INVALID_DEVICE);
        assert_eq!(code(access(block.0, bad)), INVALID_DEVICE);
    }
    assert_eq!(access(block.0, device).unwrap(), 3, "all or nothing");
    let second = universe.ordinal(1) as i32;
    set_access_of(block.0, PAGE, &[[1, device, 1], [1, second, 3]]).unwrap();
    assert_eq!([device, second].map(|device| access(block.0, device).unwrap()), [1, 3]);
    assert_eq!(code(access(block.0 + P, device)), INVALID);
    take_back(block, PAGE);
    assert!(universe.finish().is_clean());
}

#[test]
fn without_a_pointer_for_the_result_nothing_is_made() {
    let (universe, gpu) = machine();
    let block = mapped(PAGE, gpu.device);
    let props = Properties::of(gpu.device);
    let props = (&raw const props).cast();
    let location = [1, gpu.device];
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut returned = 0;
    // SAFETY: null where the simulated driver checks for it; the rest is valid.
    let codes = unsafe {
        [
            sys::cuMemAddressReserve(null_mut(), PAGE, 0, 0, 0),
            sys::cuMemCreate(null_mut(), PAGE, props, 0),
            sys::cuMemCreate(&mut returned, PAGE, null(), 0),
            sys::cuMemGetAllocationGranularity(null_mut(), props, minimum),
            sys::cuMemGetAllocationGranularity(&mut 0, null(), minimum),
            sys::cuMemRetainAllocationHandle(null_mut(), block.0 as *mut _),
            sys::cuMemGetAllocationPropertiesFromHandle(null_mut(), block.1),
            sys::cuMemSetAccess(block.0, PAGE, null(), 1),
            sys::cuMemGetAccess(null_mut(), location.as_ptr().cast(), block.0),
            sys::cuMemGetAccess(&mut returned, null(), block.0),
        ]
    };
    assert_eq!(codes, [CUresult::CUDA_ERROR_INVALID_VALUE; 10]);
    take_back(block, PAGE);
    assert!(universe.finish().is_clean());
}

#[test]
fn mapped_memory_is_not_freed_as_an_allocation() {
    let (universe, gpu) = machine();
    let block = mapped(PAGE, gpu.device);
    assert_eq!(code(gpu::free(block.0)), INVALID);
    assert_eq!(code(gpu::free_async(block.0, gpu::stream())), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::UnknownFree; 2]);
    assert_eq!(universe.reports()[0].device, Some(0));
    let other = gpu::malloc(PAGE).unwrap();
    assert_eq!(code(unmap(other, PAGE)), INVALID);
    assert_eq!(code(unreserve(other, PAGE)), INVALID);
    gpu::free(other).unwrap();
    take_back(block, PAGE);
    assert_eq!(universe.finish().reports.len(), 2);
}

#[test]
fn host_memory_is_not_registered_over_reserved_addresses() {
    let (_universe, _gpu) = machine();
    let at = reserve(PAGE).unwrap();
    // SAFETY: not host memory, which the simulated driver finds out by the address.
    let returned = unsafe { sys::cuMemHostRegister_v2(at as *mut _, PAGE, 0) };
    assert_eq!(returned, CUresult::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn a_device_without_virtual_memory_says_so_and_refuses() {
    let universe = Universe::builder().attribute(102, 0).build().unwrap();
    let gpu = Gpu::new(&universe);
    let attribute =
        sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    // SAFETY: the device is the driver's own.
    let returned = unsafe { cudarc::driver::result::device::get_attribute(gpu.device, attribute) };
    assert_eq!(returned.unwrap(), 0);
    let props = Properties::of(gpu.device);
    assert_eq!(code(granularity(&props, false)), NOT_SUPPORTED);
    assert_eq!(code(reserve(PAGE)), NOT_SUPPORTED);
    assert_eq!(code(unreserve(P, PAGE)), NOT_SUPPORTED);
    assert_eq!(code(create(PAGE, gpu.device)), NOT_SUPPORTED);
    assert_eq!(code(unmap(P, PAGE)), NOT_SUPPORTED);
    assert_eq!(code(set_access(P, PAGE, gpu.device, READ_WRITE)), NOT_SUPPORTED);
    assert_eq!(code(access(P, gpu.device)), NOT_SUPPORTED);
    assert_eq!(code(retain(P)), NOT_SUPPORTED);
    // All else works.
    gpu::free(gpu::malloc(64).unwrap()).unwrap();
    assert!(universe.finish().is_clean());
}

#[test]
fn a_device_may_not_reach_or_export_its_virtual_memory() {
    let universe = Universe::builder().attribute(110, 0).attribute(103, 1).build().unwrap();
    let gpu = Gpu::new(&universe);
    let good = Properties::of(gpu.device);
    let rdma = Properties { rdma_capable: 1, ..good };
    assert_eq!(code(create_with(PAGE, &rdma, 0)), NOT_SUPPORTED);
    let exported = create_with(PAGE, &Properties { handle_types: 1, ..good }, 0).unwrap();
    assert_eq!(properties(exported).unwrap().handle_types, 1);
    release(exported).unwrap();
    assert!(universe.finish().is_clean());
}

#[test]
fn memory_is_exported_as_a_file_if_it_was_created_for_that() {
    use std::os::fd::{FromRawFd, OwnedFd};
    let universe = Universe::builder().attribute(103, 1).attribute(128, 1).build().unwrap();
    let gpu = Gpu::new(&universe);
    let good = Properties::of(gpu.device);
    let [file, fabric, none] = [1, 8, 0]
        .map(|handle_types| create_with(PAGE, &Properties { handle_types, ..good }, 0).unwrap());
    let first = export(file, 1, 0).unwrap();
    let second = export(file, 1, 0).unwrap();
    assert!(first >= 0 && second >= 0 && first != second);
    // SAFETY: just opened, each once.
    drop([first, second].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
    assert_eq!(code(export(file, 8, 0)), INVALID, "not asked for");
    assert_eq!(code(export(none, 1, 0)), INVALID, "nothing was asked for");
    assert_eq!(code(export(file, 1, 1)), INVALID, "flags");
    assert_eq!(code(export(fabric, 8, 0)), NOT_SUPPORTED, "not simulated");
    for memory in [file, fabric, none] {
        release(memory).unwrap();
    }
    assert_eq!(code(export(file, 1, 0)), INVALID, "it is gone");
    assert!(universe.finish().is_clean());
}

/// Maps two pages, uses them, and undoes all of it; stops at the first error.
fn life(device: i32) -> gpu::Driver<()> {
    let at = reserve(2 * PAGE)?;
    let memory = create(2 * PAGE, device)?;
    map(at, 2 * PAGE, memory)?;
    set_access(at, 2 * PAGE, device, READ_WRITE)?;
    release(memory)?;
    unmap(at, 2 * PAGE)?;
    unreserve(at, 2 * PAGE)
}

#[test]
fn every_call_can_fail_and_then_does_nothing() {
    let calls = [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemRelease",
        "cuMemUnmap",
        "cuMemAddressFree",
    ];
    let (universe, gpu) = machine();
    life(gpu.device).unwrap();
    assert!(calls.iter().all(|call| universe.calls().count(call) == 1));
    assert!(universe.finish().is_clean());
    // Objects that were made and not undone before the failing call still exist.
    for (call, leaks) in calls.into_iter().zip([0, 1, 2, 3, 3, 2, 1]) {
        let (universe, gpu) = machine();
        universe.fail_nth(call, 1, 999);
        assert_eq!(code(life(gpu.device)), Some(999), "{call}");
        let reports = universe.finish().reports;
        assert_eq!(reports.len(), leaks, "{call}");
        assert!(reports.iter().all(|report| report.kind == ReportKind::Leak), "{call}");
    }
    let (universe, gpu) = machine();
    universe.swallow_nth("cuMemUnmap", 1);
    assert_eq!(code(life(gpu.device)), INVALID, "the mapping is still there");
}

#[test]
fn a_held_unmap_stops_its_thread_and_no_other() {
    let (universe, gpu) = machine();
    let first = mapped(PAGE, gpu.device);
    let second = mapped(PAGE, gpu.device);
    let hold = universe.hold_nth("cuMemUnmap", 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            gpu.bind();
            take_back(first, PAGE);
        });
        hold.wait_until_held();
        take_back(second, PAGE);
        fill(first.0, 1, PAGE, gpu::LEGACY).unwrap();
        gpu::sync_context().unwrap();
        hold.release();
    });
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn a_lost_device_returns_its_error() {
    let (universe, gpu) = machine();
    let (at, memory) = mapped(PAGE, gpu.device);
    universe.lose_device(0, 719);
    let lost = Some(719);
    assert_eq!(code(create(PAGE, gpu.device)), lost);
    assert_eq!(code(reserve(PAGE)), lost);
    assert_eq!(code(unmap(at, PAGE)), lost);
    release(memory).unwrap();
}
