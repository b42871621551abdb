//! User objects where the simulator is stricter than a device, and their end with a universe.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::gpu::machine;
use cudarc::driver::sys::{self, CUgraph, CUresult, CUuserObject};

use CUresult::{CUDA_ERROR_INVALID_VALUE as INVALID, CUDA_SUCCESS as DONE};

const MOVE: u32 = 1;

unsafe extern "C" fn destroy(data: *mut c_void) {
    // SAFETY: the tests pass a static.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

fn create(count: &'static AtomicUsize, references: u32) -> CUuserObject {
    let mut object = null_mut();
    let data = (&raw const *count).cast_mut().cast();
    // SAFETY: the simulator checks its arguments, and out-pointers are to live locals; so for all
    // calls here.
    let code = unsafe { sys::cuUserObjectCreate(&mut object, data, Some(destroy), references, 1) };
    assert_eq!(code, DONE);
    object
}

fn graph() -> CUgraph {
    let mut graph = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphCreate(&mut graph, 0) }, DONE);
    graph
}

fn has_run(count: &AtomicUsize) -> bool {
    std::thread::sleep(Duration::from_millis(20));
    count.load(Ordering::SeqCst) > 0
}

#[test]
fn sim_more_references_than_there_are_is_an_error_without_an_effect() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (_universe, _gpu) = machine();
    let object = create(&COUNT, 2);
    let graph = graph();
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuUserObjectRelease(object, 3), INVALID);
        assert_eq!(sys::cuGraphReleaseUserObject(graph, object, 1), INVALID);
        assert_eq!(sys::cuGraphRetainUserObject(graph, object, 3, MOVE), INVALID);
        assert_eq!(sys::cuGraphReleaseUserObject(graph, object, 1), INVALID, "nothing has moved");
        // 2^31 - 1 twice and one more is all that a count can have.
        let most = i32::MAX as u32;
        assert_eq!(sys::cuGraphRetainUserObject(graph, object, most, 0), DONE);
        assert_eq!(sys::cuGraphRetainUserObject(graph, object, most, 0), DONE);
        assert_eq!(sys::cuGraphRetainUserObject(graph, object, 1, 0), DONE);
        assert_eq!(sys::cuGraphRetainUserObject(graph, object, 1, MOVE), INVALID);
        assert_eq!(sys::cuGraphDestroy(graph), DONE);
        assert_eq!(sys::cuUserObjectRelease(object, 1), DONE);
        assert!(!has_run(&COUNT), "the program has the other reference");
        assert_eq!(sys::cuUserObjectRelease(object, 1), DONE);
    }
    assert!(has_run(&COUNT));
}

#[test]
fn sim_the_end_of_a_universe_runs_no_destructor() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (universe, gpu) = machine();
    let object = create(&COUNT, 2);
    let graph = graph();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphRetainUserObject(graph, object, 1, MOVE) }, DONE);
    drop(gpu);
    drop(universe);
    assert!(!has_run(&COUNT), "the object may be gone");
}
