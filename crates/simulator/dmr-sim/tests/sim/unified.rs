//! Managed memory, and what the driver says about pointers.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;

use crate::support::gpu::{self, Gpu, Pinned, fill, kinds, machine, malloc, malloc_async, order};
use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};
use dmr_sim::{ReportKind, Universe};

use CUpointer_attribute::*;
use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS};

fn managed(bytes: usize) -> u64 {
    let mut at = 0;
    // SAFETY: the pointer is to a live local; so for all calls here.
    assert_eq!(unsafe { sys::cuMemAllocManaged(&mut at, bytes, 1) }, CUDA_SUCCESS);
    at
}

/// Returns an attribute that is a number, in the lower bytes.
fn attribute(attribute: CUpointer_attribute, at: u64) -> Result<u64, CUresult> {
    let mut value = 0u64;
    // SAFETY: as above; no attribute is larger.
    match unsafe { sys::cuPointerGetAttribute((&raw mut value).cast(), attribute, at) } {
        CUDA_SUCCESS => Ok(value),
        code => Err(code),
    }
}

#[test]
fn sim_the_host_and_the_device_share_managed_memory() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let at = managed(64);
    // SAFETY: managed memory is host memory of this size; no work of a device is under way.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 64) }.fill(3);
    let block = malloc(64).unwrap();
    gpu::copy_any(block, at, 64, a).unwrap();
    fill(at, 5, 64, a).unwrap();
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [3; 64]);
    // SAFETY: as above.
    assert_eq!(unsafe { std::slice::from_raw_parts(at as *const u8, 64) }, [5; 64]);
    gpu::free(at).unwrap();
    gpu::free(block).unwrap();
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn sim_two_streams_race_in_managed_memory() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let at = managed(64);
    fill(at, 1, 64, a).unwrap();
    order(a, b);
    fill(at, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(at, 3, 64, a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_a_free_of_managed_memory_waits_and_its_use_afterwards_is_found() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let at = managed(64);
    fill(at, 1, 64, a).unwrap();
    // SAFETY: as above; it is not memory of cuMemHostAlloc.
    assert_eq!(unsafe { sys::cuMemFreeHost(at as *mut c_void) }, CUDA_ERROR_INVALID_VALUE);
    gpu::free(at).unwrap();
    assert_eq!(kinds(&universe), []);
    assert!(fill(at, 2, 64, a).is_err());
    assert!(!kinds(&universe).is_empty());
}

#[test]
fn sim_a_prefetch_is_ordered_on_its_stream_and_only_for_managed_memory() {
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let at = managed(64);
    fill(at, 1, 64, a).unwrap();
    let location = sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        ..location(gpu.device)
    };
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuMemPrefetchAsync_v2(at, 64, location, 0, b), CUDA_SUCCESS);
        let block = malloc(64).unwrap();
        let refused = sys::cuMemPrefetchAsync_v2(block, 64, location, 0, b);
        assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
    }
    assert_eq!(kinds(&universe), []);
}

fn location(device: i32) -> sys::CUmemLocation {
    // SAFETY: plain data, for which zero is valid; the number of the device is its second word.
    unsafe {
        let mut location: sys::CUmemLocation = std::mem::zeroed();
        (&raw mut location).cast::<i32>().add(1).write(device);
        location
    }
}

#[test]
fn sim_a_pointer_says_where_its_memory_is() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    let a = gpu::stream();
    let block = malloc(1000).unwrap();
    second.bind();
    let remote = malloc(64).unwrap();
    first.bind();
    let pooled = malloc_async(64, a).unwrap();
    let pinned = Pinned::new(64);
    let managed = managed(64);
    let mut own = [0u8; 8];
    let memory = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let ordinal = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    assert_eq!(attribute(memory, block), Ok(2));
    assert_eq!(attribute(memory, pinned.address()), Ok(1));
    assert_eq!(attribute(memory, own.as_mut_ptr() as u64), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(attribute(ordinal, block), Ok(first.device as u64));
    assert_eq!(attribute(ordinal, remote), Ok(second.device as u64));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, block), Ok(first.context as u64));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, remote), Ok(second.context as u64));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + 999), Ok(block));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + 999), Ok(1000));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), Ok(1));
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, block), Ok(0));
    let pool = gpu::default_pool(first.device) as u64;
    assert_eq!(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled), Ok(pool));
    let mut start = 0;
    let mut bytes = 0;
    // SAFETY: as above.
    let code = unsafe { sys::cuMemGetAddressRange_v2(&mut start, &mut bytes, block + 10) };
    assert_eq!((code, start, bytes), (CUDA_SUCCESS, block, 1000));
}

#[test]
fn sim_attributes_of_memory_that_is_not_the_drivers_are_null() {
    let (_universe, _gpu) = machine();
    let mut kind = 7u32;
    let mut ordinal = 7i32;
    let mut start = 7u64;
    let mut attributes = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    ];
    let mut values: [*mut c_void; 3] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut start).cast()];
    let own = [0u8; 8];
    // SAFETY: as above.
    let code = unsafe {
        let attributes = attributes.as_mut_ptr();
        let values = values.as_mut_ptr();
        sys::cuPointerGetAttributes(3, attributes, values, own.as_ptr() as u64)
    };
    assert_eq!((code, kind, ordinal, start), (CUDA_SUCCESS, 0, -2, 0));
}
