//! Facts about wrong and unusual arguments, defaults and occupancy that the simulator models. Each
//! test checks some on the driver that this process uses, simulated or not.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use crate::support::gpu::{self, device};
use cudarc::driver::sys::{self, CUfunction, CUresult};

/// Calls the driver, and returns its code; a comment at the call says why wrong arguments are
/// harmless.
macro_rules! call {
    ($($call:tt)*) => {
        // SAFETY: the driver checks what is wrong here on purpose, as was observed on an H200; the
        // rest is right.
        unsafe { sys::$($call)* as i32 }
    };
}

const INVALID_VALUE: i32 = CUresult::CUDA_ERROR_INVALID_VALUE as i32;
const INVALID_DEVICE: i32 = CUresult::CUDA_ERROR_INVALID_DEVICE as i32;
const NOT_REGISTERED: i32 = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED as i32;

/// Returns a function as CUDA 12.0 has it: some wrong arguments are no value of the type that the
/// bindings have for them, and later versions have other arguments under the same name.
fn function(name: &CStr) -> *mut c_void {
    let mut found = null_mut();
    assert_eq!(call!(cuGetProcAddress_v2(name.as_ptr(), &mut found, 12_000, 0, null_mut())), 0);
    found
}

#[test]
fn without_a_context_null_is_freed_and_not_pushed() {
    let (_universe, _gpu) = device();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(call!(cuMemFree_v2(0)), 0);
            assert_eq!(call!(cuCtxPushCurrent_v2(null_mut())), INVALID_VALUE);
            assert_eq!(call!(cuCtxSetCurrent(null_mut())), 0);
        });
    });
}

#[test]
fn null_graphs_are_invalid_values() {
    let (_universe, _gpu) = device();
    let mut made = null_mut();
    assert_eq!(call!(cuGraphLaunch(null_mut(), null_mut())), INVALID_VALUE);
    assert_eq!(call!(cuGraphInstantiateWithFlags(&mut made, null_mut(), 0)), INVALID_VALUE);
    assert_eq!(call!(cuGraphDestroy(null_mut())), INVALID_VALUE);
    assert_eq!(call!(cuGraphExecDestroy(null_mut())), INVALID_VALUE);
}

#[test]
fn a_capture_has_one_of_three_modes() {
    type Begin = unsafe extern "C" fn(sys::CUstream, u32) -> i32;
    let (_universe, _gpu) = device();
    let stream = gpu::stream();
    let mut graph = null_mut();
    // SAFETY: the function has this type; the stream is live, and the driver checks the mode.
    unsafe {
        let begin = std::mem::transmute::<*mut c_void, Begin>(function(c"cuStreamBeginCapture"));
        assert_eq!(begin(stream, 9), INVALID_VALUE);
        assert_eq!(begin(stream, 0), 0);
    }
    assert_eq!(call!(cuStreamEndCapture(stream, &mut graph)), 0);
    assert_eq!(call!(cuGraphDestroy(graph)), 0);
}

#[test]
fn a_copy_may_be_from_pageable_memory_to_pageable_memory() {
    let (_universe, _gpu) = device();
    let from = [7_u8; 64];
    let mut to = [0_u8; 64];
    assert_eq!(call!(cuMemcpy(to.as_mut_ptr() as u64, from.as_ptr() as u64, 64)), 0);
    assert_eq!(to, [7; 64]);
}

#[test]
fn pinned_memory_is_mapped_and_registered_memory_is_unregistered_at_its_start() {
    let (_universe, _gpu) = device();
    let mut pinned = null_mut();
    let mut flags = 9;
    let mut at = 0;
    assert_eq!(call!(cuMemHostAlloc(&mut pinned, 64, 0)), 0);
    assert_eq!(call!(cuMemHostGetFlags(&mut flags, pinned)), 0);
    assert_eq!(flags, 2);
    assert_eq!(call!(cuMemHostGetDevicePointer_v2(&mut at, pinned, 0)), 0);
    assert_eq!(at, pinned as u64);
    assert_eq!(call!(cuMemHostGetDevicePointer_v2(&mut at, pinned, 1)), INVALID_VALUE);
    assert_eq!(call!(cuMemFreeHost(pinned)), 0);
    let mut pages = vec![0_u8; 3 * 4096];
    let start = pages.as_mut_ptr().wrapping_add(pages.as_ptr().align_offset(4096));
    let inside = start.wrapping_add(64).cast::<c_void>();
    let start = start.cast::<c_void>();
    assert_eq!(call!(cuMemHostRegister_v2(start, 8192, 0)), 0);
    assert_eq!(call!(cuMemHostUnregister(inside)), INVALID_VALUE);
    assert_eq!(call!(cuMemHostUnregister(start)), 0);
    assert_eq!(call!(cuMemHostUnregister(start)), NOT_REGISTERED);
    // Memory with a hole, and addresses without memory.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, whose second page nothing has used when it is unmapped.
    let (first, second) = unsafe {
        let first = libc::mmap(null_mut(), 3 * 4096, rights, private, -1, 0);
        let second = first.wrapping_add(4096);
        assert_eq!(libc::munmap(second, 4096), 0);
        (first, second)
    };
    assert_eq!(call!(cuMemHostRegister_v2(first, 3 * 4096, 0)), INVALID_VALUE);
    assert_eq!(call!(cuMemHostRegister_v2(second, 64, 0)), INVALID_VALUE);
}

#[test]
fn managed_memory_is_moved_to_a_device_that_exists() {
    let (_universe, gpu) = device();
    type Prefetch = unsafe extern "C" fn(u64, usize, i32, sys::CUstream) -> i32;
    type Advise = unsafe extern "C" fn(u64, usize, i32, i32) -> i32;
    // SAFETY: the functions have these types.
    let (prefetch, advise) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Prefetch>(function(c"cuMemPrefetchAsync")),
            std::mem::transmute::<*mut c_void, Advise>(function(c"cuMemAdvise")),
        )
    };
    let mut managed = 0;
    let block = gpu::malloc(64).unwrap();
    assert_eq!(call!(cuMemAllocManaged(&mut managed, 64, 1)), 0);
    // SAFETY: the driver checks what is wrong here on purpose, as was observed on an H200.
    unsafe {
        assert_eq!(prefetch(managed, 64, gpu.device, null_mut()), 0);
        assert_eq!(prefetch(managed, 64, 99, null_mut()), INVALID_DEVICE);
        assert_eq!(prefetch(block, 64, gpu.device, null_mut()), INVALID_VALUE);
        assert_eq!(advise(managed, 64, 1, gpu.device), 0);
        assert_eq!(advise(managed, 64, 99, gpu.device), INVALID_VALUE);
    }
    gpu::sync_context().unwrap();
    for at in [managed, block] {
        gpu::free(at).unwrap();
    }
}

/// Returns the bytes of the device's L2 cache.
fn l2_cache(device: sys::CUdevice) -> usize {
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
    let mut bytes = 0;
    assert_eq!(call!(cuDeviceGetAttribute(&mut bytes, attribute, device)), 0);
    usize::try_from(bytes).expect("a size")
}

#[test]
fn limits_have_the_values_of_the_device() {
    let (_universe, gpu) = device();
    type Limit = unsafe extern "C" fn(*mut usize, i32) -> i32;
    // SAFETY: the function has this type.
    let get = unsafe { std::mem::transmute::<*mut c_void, Limit>(function(c"cuCtxGetLimit")) };
    let limit = |number| {
        let mut value = 0;
        // SAFETY: the pointer is to a live local; the driver checks the number.
        match unsafe { get(&mut value, number) } {
            0 => Ok(value),
            code => Err(code),
        }
    };
    let found: Vec<_> = (-1..12).map(limit).collect();
    let sizes = [1024, 8_650_752, 8_388_608].map(Ok);
    // 11,796,480 bytes on an H200, whose cache has 60 MiB, and 9,830,400 on an H100, with 50 MiB.
    let persisting = l2_cache(gpu.device) / 16 * 3;
    let later = [Ok(2048), Ok(64), Ok(persisting), Ok(232_448), Ok(0)];
    assert_eq!(found[0], Err(INVALID_VALUE));
    assert_eq!(found[1..4], sizes);
    assert_eq!(found[4], Err(215));
    assert_eq!(found[5..10], later);
    assert_eq!(found[10..], [Err(215), Err(INVALID_VALUE), Err(INVALID_VALUE)]);
}

const KERNELS: &str = ".version 8.0\n.target sm_80\n.address_size 64
    .const .align 4 .b8 table[1000];
    .visible .entry plain() { ret; }
    .visible .entry with_shared() {
        .shared .align 4 .b8 all[10000]; .reg .b32 %r<2>;
        mov.u32 %r1, all; st.volatile.shared.u32 [%r1], %r1; ret; }
    .visible .entry bounded() .maxntid 128, 1, 1 { ret; }";

fn kernel(name: &str) -> CUfunction {
    gpu::kernel(KERNELS, name).expect(name)
}

fn set_shared(kernel: CUfunction, bytes: i32) {
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!(call!(cuFuncSetAttribute(kernel, attribute, bytes)), 0);
}

#[test]
fn a_function_has_the_constants_of_its_module_and_the_target_of_its_text() {
    use sys::CUfunction_attribute::*;
    let (_universe, _gpu) = device();
    let attribute = |kernel: CUfunction, attribute| {
        let mut value = -9;
        assert_eq!(call!(cuFuncGetAttribute(&mut value, attribute, kernel)), 0);
        value
    };
    for (name, threads, shared) in
        [("plain", 1024, 0), ("with_shared", 1024, 10_000), ("bounded", 128, 0)]
    {
        let kernel = kernel(name);
        assert_eq!(attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), threads, "{name}");
        assert_eq!(attribute(kernel, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), shared, "{name}");
        assert_eq!(attribute(kernel, CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES), 1000, "{name}");
        assert_eq!(attribute(kernel, CU_FUNC_ATTRIBUTE_PTX_VERSION), 80, "{name}");
        let dynamic = attribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
        assert_eq!(dynamic, 49_152 - shared, "{name}");
    }
}

#[test]
fn as_many_blocks_are_active_as_shared_memory_and_threads_allow() {
    let (_universe, _gpu) = device();
    let active = |kernel: CUfunction, threads: i32, shared: usize| {
        let mut blocks = -9;
        let code = call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
            &mut blocks,
            kernel,
            threads,
            shared
        ));
        assert_eq!(code, 0);
        blocks
    };
    let plain = kernel("plain");
    let with_shared = kernel("with_shared");
    assert_eq!(active(plain, 1, 49_153), 0, "more than the function may have");
    set_shared(plain, 200_000);
    set_shared(with_shared, 200_000);
    let sizes = [0, 1000, 1024, 10_000, 49_152, 100_000, 200_000];
    for (kernel, threads, expected) in [
        (plain, 32, [32, 32, 32, 20, 4, 2, 1]),
        (plain, 96, [21, 21, 21, 20, 4, 2, 1]),
        (plain, 1024, [2, 2, 2, 2, 2, 2, 1]),
        (with_shared, 32, [20, 19, 19, 11, 3, 2, 1]),
        (with_shared, 256, [8, 8, 8, 8, 3, 2, 1]),
    ] {
        assert_eq!(sizes.map(|shared| active(kernel, threads, shared)), expected, "{threads}");
    }
    let available = |kernel: CUfunction, blocks: i32| {
        let mut bytes = 0;
        let code = call!(cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, kernel, blocks, 128));
        if code == 0 { Ok(bytes) } else { Err(code) }
    };
    let of = |kernel| [1, 2, 4, 16, 32].map(|blocks| available(kernel, blocks));
    assert_eq!(of(plain), [Ok(200_000), Ok(116_736), Ok(58_368), Ok(14_592), Err(INVALID_VALUE)]);
    assert_eq!(
        of(with_shared),
        [Ok(200_000), Ok(106_736), Ok(48_368), Ok(4592), Err(INVALID_VALUE)]
    );
    let mut grid = 0;
    let mut block = 0;
    let code = call!(cuOccupancyMaxPotentialBlockSize(
        &mut grid,
        &mut block,
        kernel("bounded"),
        None,
        0,
        0
    ));
    assert_eq!((code, grid, block), (0, 16 * 132, 128));
}
