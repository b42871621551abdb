//! Calls with wrong arguments: an error or a report, never a crash, and no effect.
#![allow(unsafe_code)] // the driver is called directly, with wrong arguments on purpose

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use crate::support::gpu::{self, Gpu, Pinned, fill, kernel, kinds, launch, machine, malloc, ptx};
use cudarc::driver::sys::{self, CUresult, CUstream};
use dmr_sim::{Footprint, ReportKind};

const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Calls the driver; a comment at the call says why the arguments are harmless.
macro_rules! call {
    ($($call:tt)*) => {
        // SAFETY: the simulated driver checks what is wrong here on purpose; the rest is right.
        unsafe { sys::$($call)* }
    };
}

#[test]
fn without_a_pointer_for_the_result_nothing_is_made() {
    let (universe, gpu) = machine();
    let stream = gpu::stream();
    let pool = gpu::pool(gpu.device);
    let free_bytes = || {
        let mut free = 0;
        let mut total = 0;
        call!(cuMemGetInfo_v2(&mut free, &mut total)).result().unwrap();
        free
    };
    let before = free_bytes();
    let blocking = sys::CUstream_flags::CU_STREAM_DEFAULT as u32;
    let codes = [
        call!(cuMemAlloc_v2(null_mut(), 64)),
        call!(cuMemAllocAsync(null_mut(), 64, stream)),
        call!(cuMemAllocFromPoolAsync(null_mut(), 64, pool, stream)),
        call!(cuMemHostAlloc(null_mut(), 64, 0)),
        call!(cuMemAllocHost_v2(null_mut(), 64)),
        call!(cuStreamCreate(null_mut(), blocking)),
        call!(cuStreamCreateWithPriority(null_mut(), blocking, 0)),
        call!(cuEventCreate(null_mut(), 0)),
        call!(cuDevicePrimaryCtxRetain(null_mut(), gpu.device)),
        call!(cuMemPoolCreate(null_mut(), null())),
        call!(cuModuleLoadData(null_mut(), c".version 8.0".as_ptr().cast())),
        call!(cuStreamQuery(stream)),
    ];
    let (last, refused) = codes.split_last().unwrap();
    assert_eq!(refused, [INVALID; 11]);
    assert_eq!(*last, CUresult::CUDA_SUCCESS);
    assert_eq!(free_bytes(), before);
    assert!(universe.finish().is_clean(), "{}", universe.finish());
}

#[test]
fn a_refused_retain_does_not_keep_the_context() {
    let (_universe, gpu) = machine();
    assert_eq!(call!(cuDevicePrimaryCtxRetain(null_mut(), gpu.device)), INVALID);
    let device = gpu.device;
    drop(gpu);
    let mut flags = 0;
    let mut active = 1;
    call!(cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)).result().unwrap();
    assert_eq!(active, 0);
}

#[test]
fn a_copy_that_leaves_its_allocation_does_not_touch_the_host() {
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    let mut host = [7u8; 64];
    let up: *const c_void = host.as_ptr().cast();
    let down: *mut c_void = host.as_mut_ptr().cast();
    for bytes in [65, 1 << 40, isize::MAX as usize, usize::MAX] {
        assert_eq!(call!(cuMemcpyHtoDAsync_v2(block, up, bytes, stream)), INVALID);
        assert_eq!(call!(cuMemcpyHtoD_v2(block, up, bytes)), INVALID);
        assert_eq!(call!(cuMemcpyDtoHAsync_v2(down, block, bytes, stream)), INVALID);
        assert_eq!(call!(cuMemcpyDtoH_v2(down, block, bytes)), INVALID);
        assert_eq!(call!(cuMemcpyDtoDAsync_v2(block, block, bytes, stream)), INVALID);
    }
    assert_eq!(host, [7; 64]);
    assert!(universe.reports().iter().all(|report| report.kind == ReportKind::OutOfBounds));
}

#[test]
fn a_null_host_pointer_is_refused() {
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    assert_eq!(call!(cuMemcpyHtoDAsync_v2(block, null(), 64, stream)), INVALID);
    assert_eq!(call!(cuMemcpyHtoD_v2(block, null(), 64)), INVALID);
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(null_mut(), block, 64, stream)), INVALID);
    assert_eq!(call!(cuMemHostRegister_v2(null_mut(), 64, 0)), INVALID);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_copy_past_the_end_of_pinned_memory_is_out_of_bounds() {
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, stream).unwrap();
    let mut pinned = Pinned::new(32);
    let to: *mut c_void = pinned.bytes().as_mut_ptr().cast();
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(to, block, 33, stream)), INVALID);
    assert_eq!(call!(cuMemcpyHtoDAsync_v2(block, to, 33, stream)), INVALID);
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds; 2]);
    gpu::sync(stream).unwrap();
    assert_eq!(pinned.bytes(), [0; 32]);
}

#[test]
fn what_was_refused_is_no_use() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    assert!(fill(block, 1, 65, a).is_err());
    fill(block, 2, 64, b).unwrap(); // no race: nothing was written before
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds]);
}

#[test]
fn host_memory_is_registered_once_and_inside_the_address_space() {
    let (universe, _gpu) = machine();
    let block = malloc(64).unwrap();
    let host = [0u8; 4096];
    let at = |offset: usize| host.as_ptr().wrapping_add(offset).cast_mut().cast::<c_void>();
    let register = |at: *mut c_void, bytes: usize| call!(cuMemHostRegister_v2(at, bytes, 0));
    let twice = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    assert_eq!(register(at(0), usize::MAX), INVALID);
    assert_eq!(register(block as *mut c_void, 64), INVALID);
    assert_eq!(register(at(1024), 1024), CUresult::CUDA_SUCCESS);
    for (from, bytes) in [(0, 4096), (0, 1025), (1024, 1024), (2047, 1), (2000, 100)] {
        assert_eq!(register(at(from), bytes), twice, "{bytes} bytes at {from}");
    }
    assert_eq!(register(at(2048), 1024), CUresult::CUDA_SUCCESS);
    for from in [1024, 2048] {
        call!(cuMemHostUnregister(at(from))).result().unwrap();
    }
    gpu::free(block).unwrap();
    assert!(universe.finish().is_clean());
}

/// A universe with a kernel that adds 1 to each of `arg 1` bytes at `arg 0`, as far as it may.
fn with_increment() -> (dmr_sim::Universe, Gpu, sys::CUfunction, CUstream) {
    let (universe, gpu) = machine();
    universe.register_kernel(
        "increment",
        |args| Footprint::new().reads(args.u64(0), args.u64(1)).writes(args.u64(0), args.u64(1)),
        |args, memory| {
            let at = args.u64(0);
            let len = args.u64(1);
            let mut first = [0; 1];
            memory.read(at, &mut first);
            memory.write(at, &[first[0] + 1]);
            memory.fill(at, len, 9);
        },
    );
    let increment = kernel(&ptx("increment", &["u64", "u64"]), "increment").unwrap();
    let stream = gpu::stream();
    (universe, gpu, increment, stream)
}

#[test]
fn a_kernel_cannot_reach_the_host() {
    let (universe, _gpu, increment, stream) = with_increment();
    let host = [3u8; 64];
    for (at, bytes) in [(0, 64), (host.as_ptr() as u64, 64), (u64::MAX, 1), (1 << 45, 64)] {
        launch(increment, &[at, bytes], stream).unwrap();
        gpu::sync(stream).unwrap();
    }
    assert_eq!(host, [3; 64]);
    // The read and the write of each, and nothing after that: no kernel panicked.
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds; 8]);
}

#[test]
fn a_kernel_reaches_as_far_as_its_allocation() {
    let (universe, _gpu, increment, stream) = with_increment();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, stream).unwrap();
    let mut pinned = Pinned::new(64);
    let host = pinned.bytes().as_ptr() as u64;
    for at in [block, host] {
        for bytes in [65, u64::MAX] {
            launch(increment, &[at, bytes], stream).unwrap();
            gpu::sync(stream).unwrap();
        }
    }
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds; 8]);
    let mut expected = [1; 64];
    expected[0] = 3; // the first byte was incremented twice; the fills reached too far
    assert_eq!(gpu::read(block, 64).unwrap(), expected);
    assert_eq!(pinned.bytes()[..2], [2, 0]);
}

#[test]
fn parameters_that_no_kernel_can_have_are_no_ptx() {
    let (_universe, _gpu) = machine();
    let image = ptx("huge", &["b8"]).replace("huge_param_0", "huge_param_0[99999999999]");
    assert!(kernel(&image, "huge").is_err());
}

#[test]
fn an_unloaded_modules_kernel_cannot_be_launched() {
    let (universe, _gpu) = machine();
    universe.register_kernel("gone", |_| Footprint::new(), |_, _| ());
    let image = std::ffi::CString::new(ptx("gone", &[])).unwrap();
    let mut module = null_mut();
    let mut function = null_mut();
    call!(cuModuleLoadData(&mut module, image.as_ptr().cast())).result().unwrap();
    call!(cuModuleGetFunction(&mut function, module, c"gone".as_ptr())).result().unwrap();
    launch(function, &[], gpu::LEGACY).unwrap();
    call!(cuModuleUnload(module)).result().unwrap();
    assert!(launch(function, &[], gpu::LEGACY).is_err());
    assert!(launch(null_mut(), &[], gpu::LEGACY).is_err());
}

#[test]
fn a_pools_limit_holds_for_any_size() {
    let (_universe, gpu) = machine();
    let stream = gpu::stream();
    let pool = gpu::pool(gpu.device);
    for bytes in [usize::MAX, usize::MAX - 511, usize::MAX - (4 << 20), 1 << 62] {
        let refused = gpu::code(gpu::malloc_from(pool, bytes, stream));
        assert_eq!(refused, Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32), "{bytes:#x}");
        assert_eq!(
            gpu::code(malloc(bytes)),
            Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32),
            "{bytes:#x}"
        );
    }
    assert_eq!(call!(cuMemsetD32Async(512, 0, usize::MAX, stream)), INVALID);
    assert_eq!(call!(cuMemsetD16Async(512, 0, usize::MAX, stream)), INVALID);
}

#[test]
fn pageable_memory_is_on_the_side_that_the_copys_name_says() {
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    let mut host = [7u8; 64];
    let at = host.as_mut_ptr() as u64;
    assert_eq!(call!(cuMemcpyDtoDAsync_v2(at, block, 64, stream)), INVALID);
    assert_eq!(call!(cuMemcpyDtoDAsync_v2(block, at, 64, stream)), INVALID);
    assert_eq!(call!(cuMemcpyHtoDAsync_v2(at, block as *const c_void, 64, stream)), INVALID);
    assert_eq!(call!(cuMemcpyDtoHAsync_v2(block as *mut c_void, at, 64, stream)), INVALID);
    assert_eq!(call!(cuMemcpyAsync(block, at, 64, stream)), CUresult::CUDA_SUCCESS);
    host.fill(0);
    assert_eq!(call!(cuMemcpyAsync(at, block, 64, stream)), CUresult::CUDA_SUCCESS);
    assert_eq!(host, [7; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn pinned_memory_is_not_freed_as_device_memory() {
    let (universe, _gpu) = machine();
    let pinned = Pinned::new(64);
    assert!(gpu::free(pinned.address()).is_err());
    assert!(gpu::free_async(pinned.address(), gpu::stream()).is_err());
    assert_eq!(kinds(&universe), [ReportKind::UnknownFree; 2]);
    drop(pinned); // it is still allocated
}

#[test]
fn pinned_memory_outlives_its_universe() {
    let (universe, gpu) = machine();
    let mut kept = Pinned::new(1 << 20);
    let other = Pinned::new(64);
    drop(other);
    drop((universe, gpu));
    kept.bytes().fill(1);
    assert!(kept.bytes().iter().all(|byte| *byte == 1));
    std::mem::forget(kept);
}

/// The codes of an H200.
#[test]
fn wrong_sizes_and_flags_are_refused_as_on_a_gpu() {
    let (_universe, _gpu) = machine();
    let mut event = null_mut();
    let mut host = null_mut();
    let stream = gpu::stream();
    assert_eq!(call!(cuEventCreate(&mut event, 8)), INVALID);
    assert_eq!(call!(cuEventCreate(&mut event, 4)), INVALID);
    assert_eq!(call!(cuEventCreate(&mut event, 4 | 2)), CUresult::CUDA_SUCCESS);
    assert_eq!(call!(cuStreamWaitEvent(stream, event, 2)), INVALID);
    assert_eq!(call!(cuMemHostAlloc(&mut host, 0, 0)), CUresult::CUDA_SUCCESS);
    assert!(host.is_null());
    assert_eq!(call!(cuMemFreeHost(null_mut())), CUresult::CUDA_SUCCESS);
}
