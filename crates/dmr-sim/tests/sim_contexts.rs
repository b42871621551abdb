//! Contexts: each thread's stack of them, primary contexts, limits and flags.
#![allow(unsafe_code)] // the driver is called directly

mod support;

use cudarc::driver::sys::{self, CUcontext, CUlimit, CUresult};
use dmr_sim::{ReportKind, Universe};
use support::gpu::{self, Gpu, fill, kinds, machine, malloc};

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
    let (first, second) = (Gpu::of(&universe, 0), Gpu::of(&universe, 1));
    let (first, second) = (first.context, second.context);
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
    let (first, second) = (Gpu::of(&universe, 0), Gpu::of(&universe, 1));
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
    // SAFETY: as above; the last limit is one that does not exist.
    unsafe {
        assert_eq!(sys::cuCtxGetLimit(&mut value, limit), CUDA_SUCCESS);
        assert_eq!(value, 8 << 20);
        assert_eq!(sys::cuCtxSetLimit(limit, 64 << 20), CUDA_SUCCESS);
        assert_eq!(sys::cuCtxGetLimit(&mut value, limit), CUDA_SUCCESS);
        assert_eq!(value, 64 << 20);
        let unknown = sys::cuCtxSetLimit(CUlimit::CU_LIMIT_MAX, 1);
        assert_eq!(unknown, CUDA_ERROR_UNSUPPORTED_LIMIT);
    }
}

#[test]
fn sim_a_reset_ends_streams_and_memory_and_leaves_the_context_retained() {
    let (universe, gpu) = machine();
    let (a, block) = (gpu::stream(), malloc(64).unwrap());
    fill(block, 1, 64, a).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuDevicePrimaryCtxReset_v2(gpu.device) }, CUDA_SUCCESS);
    assert_eq!(gpu::code(gpu::sync(a)), Some(CUresult::CUDA_ERROR_INVALID_HANDLE as i32));
    let b = gpu::stream();
    assert_eq!(kinds(&universe), []);
    assert!(fill(block, 2, 64, b).is_err());
    assert_eq!(kinds(&universe), [ReportKind::UseAfterFree]);
    let fresh = malloc(64).unwrap();
    fill(fresh, 3, 64, gpu::LEGACY).unwrap();
    assert_eq!(gpu::read(fresh, 64).unwrap(), [3; 64]);
    gpu::free(fresh).unwrap();
    assert_eq!(universe.finish().reports.len(), 1, "the reset has freed the memory");
}
