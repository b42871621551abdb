//! Facts about user objects of graphs that the simulator models. Each test checks one on the driver
//! that this process uses, simulated or not.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::gpu::{self, device};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUresult, CUstream, CUuserObject};

use CUresult::{CUDA_ERROR_INVALID_VALUE as INVALID, CUDA_SUCCESS as DONE};

const NO_SYNC: u32 = 1;
const MOVE: u32 = 1;

/// The number of runs of the destructor. It stays until the process ends, because destructors run
/// at any time.
type Count = &'static AtomicUsize;

fn count() -> Count {
    Box::leak(Box::default())
}

unsafe extern "C" fn destroy(data: *mut c_void) {
    // SAFETY: a `Count`.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

fn create(count: Count, references: u32, flags: u32) -> (CUresult, CUuserObject) {
    let mut object = null_mut();
    let data = (&raw const *count).cast_mut().cast();
    // SAFETY: the count lives until the process ends, and the out-pointer is to a live local; so
    // for all calls here.
    let code =
        unsafe { sys::cuUserObjectCreate(&mut object, data, Some(destroy), references, flags) };
    (code, object)
}

fn made(count: Count, references: u32) -> CUuserObject {
    let (code, object) = create(count, references, NO_SYNC);
    assert_eq!(code, DONE);
    object
}

fn release(object: CUuserObject, references: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { sys::cuUserObjectRelease(object, references) }
}

fn graph() -> CUgraph {
    let mut graph = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphCreate(&mut graph, 0) }, DONE);
    graph
}

fn retain_in(graph: CUgraph, object: CUuserObject, references: u32, flags: u32) -> CUresult {
    // SAFETY: as above.
    unsafe { sys::cuGraphRetainUserObject(graph, object, references, flags) }
}

fn destroy_graph(graph: CUgraph) {
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphDestroy(graph) }, DONE);
}

fn instantiate(graph: CUgraph) -> CUgraphExec {
    let mut executable = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) }, DONE);
    executable
}

fn destroy_executable(executable: CUgraphExec) {
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphExecDestroy(executable) }, DONE);
}

/// The destructor runs on another thread, so a test waits for it.
fn runs(count: Count) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while count.load(Ordering::SeqCst) == 0 && Instant::now() < end {
        std::thread::yield_now();
    }
    count.load(Ordering::SeqCst) == 1
}

fn has_not_run(count: Count) -> bool {
    std::thread::sleep(Duration::from_millis(20));
    count.load(Ordering::SeqCst) == 0
}

#[test]
fn the_destructor_runs_after_the_last_release() {
    let (_universe, _gpu) = device();
    let count = count();
    let object = made(count, 2);
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuUserObjectRetain(object, 3) }, DONE);
    assert_eq!(release(object, 4), DONE);
    assert!(has_not_run(count));
    assert_eq!(release(object, 1), DONE);
    assert!(runs(count));
}

#[test]
fn a_graph_its_copies_and_what_is_made_of_them_keep_an_object() {
    let (_universe, _gpu) = device();
    let count = count();
    let object = made(count, 1);
    let first = graph();
    assert_eq!(retain_in(first, object, 1, MOVE), DONE);
    let mut copy = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphClone(&mut copy, first) }, DONE);
    destroy_graph(first);
    assert!(has_not_run(count), "the copy keeps it");
    let parent = graph();
    let mut node = null_mut();
    // SAFETY: as above.
    let code =
        unsafe { sys::cuGraphAddChildGraphNode(&mut node, parent, std::ptr::null(), 0, copy) };
    assert_eq!(code, DONE);
    destroy_graph(copy);
    assert!(has_not_run(count), "the child graph keeps it");
    let executable = instantiate(parent);
    destroy_graph(parent);
    assert!(has_not_run(count), "the executable graph keeps it");
    destroy_executable(executable);
    assert!(runs(count));
}

#[test]
fn a_graph_gives_references_back() {
    let (_universe, _gpu) = device();
    let count = count();
    let object = made(count, 1);
    let graph = graph();
    assert_eq!(retain_in(graph, object, 2, 0), DONE);
    assert_eq!(release(object, 1), DONE);
    assert!(has_not_run(count));
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphReleaseUserObject(graph, object, 2) }, DONE);
    assert!(runs(count));
    destroy_graph(graph);
}

/// Launches an empty graph with an object behind a host function that waits, and destroys it.
fn launch_and_destroy(stream: CUstream, count: Count) {
    let object = made(count, 1);
    let graph = graph();
    assert_eq!(retain_in(graph, object, 1, MOVE), DONE);
    let mut node = null_mut();
    // SAFETY: as above.
    let code = unsafe { sys::cuGraphAddEmptyNode(&mut node, graph, std::ptr::null(), 0) };
    assert_eq!(code, DONE);
    let executable = instantiate(graph);
    destroy_graph(graph);
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphLaunch(executable, stream) }, DONE);
    destroy_executable(executable);
}

static MAY_GO_ON: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn wait(_: *mut c_void) {
    while MAY_GO_ON.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_launch_keeps_the_objects_of_a_destroyed_graph_until_it_is_complete() {
    let (_universe, _gpu) = device();
    let stream = gpu::stream();
    let count = count();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuLaunchHostFunc(stream, Some(wait), null_mut()) }, DONE);
    launch_and_destroy(stream, count);
    let is_kept = has_not_run(count);
    MAY_GO_ON.store(1, Ordering::SeqCst);
    gpu::sync(stream).unwrap();
    assert!(is_kept);
    assert!(runs(count));
}

#[test]
fn wrong_numbers_and_flags_are_refused() {
    let (_universe, _gpu) = device();
    let count = count();
    assert_eq!(create(count, 1, 0).0, INVALID, "destructors are not waited for");
    assert_eq!(create(count, 0, NO_SYNC).0, INVALID);
    let object = made(count, 1);
    let graph = graph();
    assert_eq!(retain_in(graph, object, 0, 0), INVALID);
    assert_eq!(retain_in(graph, object, 1 << 31, 0), INVALID);
    assert_eq!(retain_in(graph, object, 1, 2), INVALID);
    assert_eq!(release(object, 0), INVALID);
    assert!(has_not_run(count));
    assert_eq!(release(object, 1), DONE);
    assert!(runs(count));
    destroy_graph(graph);
}
