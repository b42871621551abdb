//! A forked child has no driver: every call is refused, and none waits for a lock that no thread
//! holds.
#![allow(unsafe_code)] // forks

use crate::support::gpu::{self, machine, malloc};
use cudarc::driver::sys::{self, CUresult};

#[test]
fn a_forked_child_is_refused() {
    let (_universe, gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    // SAFETY: the child calls the driver, which the simulator allows, and ends without running
    // anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut value = 0;
        let mut address = 0;
        // SAFETY: the simulated driver checks its arguments; out-parameters are live locals.
        let codes = unsafe {
            [
                sys::cuInit(0),
                sys::cuDeviceGetCount(&mut value),
                sys::cuDeviceGet(&mut value, gpu.device),
                sys::cuMemAlloc_v2(&mut address, 64),
                sys::cuMemFree_v2(block),
                sys::cuStreamSynchronize(stream),
            ]
        };
        let refused = codes.iter().all(|code| *code == CUresult::CUDA_ERROR_NOT_INITIALIZED);
        let counted = dmr_sim::calls_of_forked_child() == codes.len() as u64;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!refused || !counted)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(dmr_sim::calls_of_forked_child(), 0);
    gpu::sync(stream).unwrap(); // the parent continues
    gpu::free(block).unwrap();
}
