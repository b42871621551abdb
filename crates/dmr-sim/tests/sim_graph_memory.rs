//! Memory that the nodes of a graph allocate and free.
#![allow(unsafe_code)] // the driver is called directly

mod support;

use std::ptr::{null, null_mut};

use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream};
use dmr_sim::ReportKind;
use support::gpu::{self, copy, fill, kinds, machine, malloc, record, wait};

use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS};

const AUTO_FREE: u64 = 1;

fn begin(stream: CUstream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the simulator checks its arguments, and out-pointers are to live locals; so for all calls here.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, CUDA_SUCCESS);
}

fn end(stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuStreamEndCapture(stream, &mut graph) }, CUDA_SUCCESS);
    graph
}

fn instantiate(graph: CUgraph, flags: u64) -> CUgraphExec {
    let mut executable = null_mut();
    // SAFETY: as above.
    let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, flags) };
    assert_eq!(code, CUDA_SUCCESS);
    executable
}

fn run(executable: CUgraphExec, stream: CUstream) -> CUresult {
    // SAFETY: as above.
    unsafe { sys::cuGraphLaunch(executable, stream) }
}

fn allocate(bytes: usize, stream: CUstream) -> u64 {
    let mut at = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuMemAllocAsync(&mut at, bytes, stream) }, CUDA_SUCCESS);
    at
}

fn free(at: u64, stream: CUstream) -> CUresult {
    // SAFETY: as above.
    unsafe { sys::cuMemFreeAsync(at, stream) }
}

#[test]
fn sim_captured_allocations_are_made_and_freed_at_each_launch() {
    let (universe, _gpu) = machine();
    let (stream, out) = (gpu::stream(), malloc(64).unwrap());
    begin(stream);
    let memory = allocate(64, stream);
    fill(memory, 7, 64, stream).unwrap();
    copy(out, memory, 64, stream).unwrap();
    assert_eq!(free(memory, stream), CUDA_SUCCESS);
    let executable = instantiate(end(stream), 0);
    for _ in 0..3 {
        fill(out, 0, 64, stream).unwrap();
        assert_eq!(run(executable, stream), CUDA_SUCCESS);
        gpu::sync(stream).unwrap();
        assert_eq!(gpu::read(out, 64).unwrap(), [7; 64]);
    }
    assert_eq!(kinds(&universe), []);
    fill(memory, 1, 64, stream).unwrap_err();
    assert_eq!(kinds(&universe), [ReportKind::UseAfterFree]);
    gpu::free(out).unwrap();
    assert_eq!(universe.finish().reports.len(), 1, "the memory is no leak");
}

#[test]
fn sim_memory_that_a_launch_leaves_is_the_programs_to_free_or_the_next_launches() {
    let (universe, _gpu) = machine();
    let (a, b) = (gpu::stream(), gpu::stream());
    begin(a);
    let memory = allocate(64, a);
    fill(memory, 7, 64, a).unwrap();
    let graph = end(a);
    let executable = instantiate(graph, 0);
    assert_eq!(run(executable, a), CUDA_SUCCESS);
    assert_eq!(run(executable, a), CUDA_ERROR_INVALID_VALUE, "it is still allocated");
    fill(memory, 8, 64, a).unwrap();
    assert_eq!(free(memory, a), CUDA_SUCCESS);
    assert_eq!(run(executable, a), CUDA_SUCCESS);
    assert_eq!(free(memory, a), CUDA_SUCCESS);
    let freeing = instantiate(graph, AUTO_FREE);
    for _ in 0..3 {
        assert_eq!(run(freeing, a), CUDA_SUCCESS);
    }
    assert_eq!(kinds(&universe), []);
    assert_eq!(free(memory, b), CUDA_SUCCESS);
    assert!(kinds(&universe).iter().all(|kind| kind.is_race()), "the stream has not waited");
    assert!(!kinds(&universe).is_empty());
}

#[test]
fn sim_a_free_node_that_is_not_ordered_after_a_use_is_found() {
    let (universe, _gpu) = machine();
    let (a, b, event) = (gpu::stream(), gpu::stream(), gpu::event());
    begin(a);
    let memory = allocate(64, a);
    record(event, a).unwrap();
    wait(b, event).unwrap();
    fill(memory, 7, 64, b).unwrap();
    assert_eq!(free(memory, a), CUDA_SUCCESS);
    record(event, b).unwrap();
    wait(a, event).unwrap();
    assert_eq!(run(instantiate(end(a), 0), a), CUDA_SUCCESS);
    let found = universe.reports();
    assert!(!found.is_empty());
    let is_about_both =
        |text: &str| text.contains("free (node 3") && text.contains("memset (node 2");
    assert!(found.iter().all(|it| is_about_both(&it.to_string())), "{found:?}");
}

#[test]
fn sim_nodes_of_memory_are_made_by_calls() {
    let (universe, gpu) = machine();
    let (stream, mut graph, mut other) = (gpu::stream(), null_mut(), null_mut());
    let (mut made, mut freed): (CUgraphNode, CUgraphNode) = (null_mut(), null_mut());
    // SAFETY: plain data, for which zero is valid.
    let mut params: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    // SAFETY: the location has this field in every version.
    unsafe { (&raw mut params.poolProps.location).cast::<i32>().add(1).write(gpu.device) };
    params.bytesize = 64;
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuGraphCreate(&mut graph, 0), CUDA_SUCCESS);
        let code = sys::cuGraphAddMemAllocNode(&mut made, graph, null(), 0, &mut params);
        assert_eq!(code, CUDA_SUCCESS);
        let foreign = malloc(64).unwrap();
        let code = sys::cuGraphAddMemFreeNode(&mut freed, graph, &made, 1, foreign);
        assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
        gpu::free(foreign).unwrap();
        let code = sys::cuGraphAddMemFreeNode(&mut freed, graph, &made, 1, params.dptr);
        assert_eq!(code, CUDA_SUCCESS);
        assert_eq!(sys::cuGraphClone(&mut other, graph), CUDA_ERROR_NOT_SUPPORTED);
    }
    let executable = instantiate(graph, 0);
    for _ in 0..2 {
        assert_eq!(run(executable, stream), CUDA_SUCCESS);
    }
    assert!(universe.finish().is_clean());
}
