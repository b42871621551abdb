//! Contexts: each thread's stack of them, primary contexts, limits and flags.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{self, Gpu, fill, kinds, machine, malloc};
use cudarc::driver::sys::{self, CUcontext, CUlimit, CUresult};
use dmr_sim::Universe;

use CUresult::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_UNSUPPORTED_LIMIT, CUDA_SUCCESS};

const NONE: CUcontext = std::ptr::null_mut();

fn current() -> CUcontext {
    let mut context = NONE;
    // SAFETY: the pointer is to a live local; so for all out-pointers here.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut context) }, CUDA_SUCCESS);
    context
}

fn push(context: CUcontext) {
    // SAFETY: the simulator checks the handle.
    assert_eq!(unsafe { sys::cuCtxPushCurrent_v2(context) }, CUDA_SUCCESS);
}

fn pop() -> Result<CUcontext, CUresult> {
    let mut context = NONE;
    // SAFETY: as above.
    match unsafe { sys::cuCtxPopCurrent_v2(&mut context) } {
        CUDA_SUCCESS => Ok(context),
        code => Err(code),
    }
}

#[test]
fn sim_a_popped_context_uncovers_the_one_below() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    let first = first.context;
    let second = second.context;
    // SAFETY: as above.
    unsafe { sys::cuCtxSetCurrent(first) };
    push(second);
    push(second);
    assert_eq!(current(), second);
    assert_eq!(pop(), Ok(second));
    assert_eq!(pop(), Ok(second));
    assert_eq!(current(), first);
    assert_eq!(pop(), Ok(first));
    assert_eq!(current(), NONE);
    assert_eq!(pop(), Err(CUDA_ERROR_INVALID_CONTEXT));
}

#[test]
fn sim_setting_a_context_replaces_the_top_and_setting_none_pops_it() {
    let universe = Universe::new().unwrap();
    let first = Gpu::of(&universe, 0);
    let second = Gpu::of(&universe, 1);
    first.bind();
    push(first.context);
    second.bind();
    assert_eq!(current(), second.context);
    // SAFETY: as above.
    unsafe { sys::cuCtxSetCurrent(NONE) };
    assert_eq!(current(), first.context);
}

#[test]
fn sim_a_new_context_is_current_until_it_is_destroyed() {
    let (_universe, gpu) = machine();
    let mut made = NONE;
    // SAFETY: as above.
    unsafe {
        assert_eq!(
            sys::cuCtxCreate_v4(&mut made, std::ptr::null_mut(), 4, gpu.device),
            CUDA_SUCCESS
        );
        assert_eq!(current(), made);
        let mut flags = 0;
        assert_eq!(sys::cuCtxGetFlags(&mut flags), CUDA_SUCCESS);
        assert_eq!(flags, 4);
        assert_eq!(sys::cuCtxDestroy_v2(made), CUDA_SUCCESS);
    }
    assert_eq!(current(), gpu.context);
}

#[test]
fn sim_a_limit_keeps_its_value() {
    let (_universe, _gpu) = machine();
    let limit = CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE;
    let mut value = 0;
    // SAFETY: as above; the last two limits are one that the device does not have, and one that
    // does not exist.
    unsafe {
        assert_eq!(sys::cuCtxGetLimit(&mut value, limit), CUDA_SUCCESS);
        assert_eq!(value, 8 << 20);
        assert_eq!(sys::cuCtxSetLimit(limit, 64 << 20), CUDA_SUCCESS);
        assert_eq!(sys::cuCtxGetLimit(&mut value, limit), CUDA_SUCCESS);
        assert_eq!(value, 64 << 20);
        let depth = CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH;
        assert_eq!(sys::cuCtxSetLimit(depth, 1), CUDA_ERROR_UNSUPPORTED_LIMIT);
        let unknown = sys::cuCtxSetLimit(CUlimit::CU_LIMIT_MAX, 1);
        assert_eq!(unknown, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

/// The codes of an H200.
#[test]
fn sim_a_reset_ends_the_context_until_it_is_retained_again() {
    const DESTROYED: Option<i32> = Some(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as i32);
    let (universe, gpu) = machine();
    let a = gpu::stream();
    let event = gpu::event();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    gpu::record(event, a).unwrap();
    let mut flags = 0;
    let mut active = 1;
    // SAFETY: as above; so for the other calls.
    unsafe {
        assert_eq!(sys::cuDevicePrimaryCtxReset_v2(gpu.device), CUDA_SUCCESS);
        sys::cuDevicePrimaryCtxGetState(gpu.device, &mut flags, &mut active).result().unwrap();
    }
    assert_eq!((current(), active), (gpu.context, 0));
    assert_eq!(gpu::code(gpu::free(block)), DESTROYED);
    assert_eq!(gpu::code(malloc(64)), DESTROYED);
    assert_eq!(gpu::code(gpu::sync_context()), DESTROYED);
    assert_eq!(gpu::code(gpu::sync(a)), DESTROYED);
    assert_eq!(gpu::code(gpu::sync_event(event)), DESTROYED);
    let again = Gpu::new(&universe);
    let b = gpu::stream();
    let fresh = malloc(64).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(fresh, 3, 64, b).unwrap();
    gpu::sync(b).unwrap();
    assert_eq!(gpu::read(fresh, 64).unwrap(), [3; 64]);
    gpu::free(fresh).unwrap();
    // Retained twice, and released as often.
    drop(gpu);
    malloc(64).map(gpu::free).unwrap().unwrap();
    drop(again);
    assert_eq!(gpu::code(malloc(64)), DESTROYED);
    assert!(universe.finish().is_clean(), "the reset has freed the memory");
}

#[test]
fn sim_a_reset_ends_captures_and_gives_back_the_memory_of_pools_and_modules() {
    const TEXT: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .align 16 .b8 table[64];\0";
    let (universe, gpu) = machine();
    let free = || {
        let mut free = 0;
        let mut total = 0;
        // SAFETY: as above.
        unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }.result().unwrap();
        free
    };
    let before = free();
    let stream = gpu::stream();
    let mut module = std::ptr::null_mut();
    let mut pooled = 0;
    // SAFETY: as above.
    unsafe {
        sys::cuModuleLoadData(&mut module, TEXT.as_ptr().cast()).result().unwrap();
        sys::cuMemAllocAsync(&mut pooled, 1 << 20, stream).result().unwrap();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        sys::cuStreamBeginCapture_v2(stream, mode).result().unwrap();
        assert_eq!(sys::cuDevicePrimaryCtxReset_v2(gpu.device), CUDA_SUCCESS);
    }
    let _again = Gpu::new(&universe);
    assert_eq!(free(), before);
    let block = malloc(64).unwrap();
    // The module has no memory any more: its unload frees no block of the program.
    // SAFETY: as above.
    unsafe { sys::cuModuleUnload(module) }.result().unwrap();
    gpu::free(block).unwrap();
    assert!(universe.finish().is_clean());
}

/// The codes of an H200.
#[test]
fn sim_a_reset_ends_a_fault_of_the_device() {
    let (universe, gpu) = machine();
    universe.lose_device(0, 700);
    assert_eq!(gpu::code(malloc(64)), Some(700));
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuDevicePrimaryCtxReset_v2(gpu.device) }, CUDA_SUCCESS);
    assert_eq!(gpu::code(malloc(64)), Some(709));
    let _again = Gpu::new(&universe);
    gpu::free(malloc(64).unwrap()).unwrap();
}
