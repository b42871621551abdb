//! Memory that the nodes of a graph allocate and free.
#![allow(unsafe_code)] // the driver is called directly

use std::ptr::{null, null_mut};

use crate::support::gpu::{self, Gpu, copy, fill, kinds, machine, malloc, record, wait};
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream};
use dmr_sim::{ReportKind, Universe};

use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS};

const AUTO_FREE: u64 = 1;

fn begin(stream: CUstream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the simulator checks its arguments, and out-pointers are to live locals; so for all
    // calls here.
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
    let stream = gpu::stream();
    let out = malloc(64).unwrap();
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
    let a = gpu::stream();
    let b = gpu::stream();
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
    let mut second = null_mut();
    // SAFETY: as above.
    unsafe {
        let again = sys::cuGraphInstantiateWithFlags(&mut second, graph, AUTO_FREE);
        assert_eq!(again, CUDA_ERROR_NOT_SUPPORTED, "one at a time");
        assert_eq!(sys::cuGraphExecDestroy(executable), CUDA_SUCCESS);
    }
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
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
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
fn sim_a_launch_that_is_not_ordered_after_the_free_of_its_memory_is_found() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    begin(a);
    let memory = allocate(64, a);
    fill(memory, 7, 64, a).unwrap();
    let executable = instantiate(end(a), 0);
    for ordered in [true, false] {
        assert_eq!(run(executable, a), CUDA_SUCCESS);
        fill(memory, 1, 64, a).unwrap();
        assert_eq!(free(memory, a), CUDA_SUCCESS);
        if ordered {
            gpu::order(a, b);
        }
        assert_eq!(run(executable, b), CUDA_SUCCESS);
        assert_eq!(kinds(&universe).is_empty(), ordered);
        assert_eq!(free(memory, b), CUDA_SUCCESS);
        gpu::order(b, a);
    }
    let found = universe.reports();
    assert_eq!(found.iter().map(|it| it.kind).collect::<Vec<_>>(), [ReportKind::FreeBeforeUse]);
    let text = found[0].to_string();
    assert!(text.contains("allocate (node 1") && text.contains("free (operation"), "{text}");
}

#[test]
fn sim_nodes_of_memory_are_made_by_calls() {
    let (universe, gpu) = machine();
    let stream = gpu::stream();
    let mut graph = null_mut();
    let mut other = null_mut();
    let mut made: CUgraphNode = null_mut();
    let mut freed: CUgraphNode = null_mut();
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

const MIB: usize = 1 << 20;

/// Returns the free bytes of the device.
fn free_bytes() -> usize {
    let mut free = 0;
    let mut total = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, CUDA_SUCCESS);
    free
}

/// Returns what graphs have of a device, in MiB: used and reserved, each now and at most.
fn usage(device: i32) -> [u64; 4] {
    use sys::CUgraphMem_attribute::*;
    let all = [
        CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT,
        CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
        CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
    ];
    all.map(|attribute| {
        let mut bytes = 0_u64;
        // SAFETY: as above.
        let code = unsafe {
            sys::cuDeviceGetGraphMemAttribute(device, attribute, (&raw mut bytes).cast())
        };
        assert_eq!(code, CUDA_SUCCESS);
        bytes / MIB as u64
    })
}

/// Captures an allocation of 64 MiB, and one of 32 MiB that is made when the first was freed.
/// Returns the graph and the second address, whose memory stays allocated.
fn two_blocks(stream: CUstream) -> (CUgraph, u64) {
    begin(stream);
    let first = allocate(64 * MIB, stream);
    assert_eq!(free(first, stream), CUDA_SUCCESS);
    let second = allocate(32 * MIB, stream);
    (end(stream), second)
}

/// As on an H200.
#[test]
fn sim_the_memory_of_nodes_is_reserved_from_an_upload_or_launch_to_a_trim() {
    let (_universe, gpu) = machine();
    let stream = gpu::stream();
    let before = free_bytes();
    // SAFETY: as above; so for the calls below.
    let trim = || assert_eq!(unsafe { sys::cuDeviceGraphMemTrim(gpu.device) }, CUDA_SUCCESS);
    let (graph, left) = two_blocks(stream);
    let executable = instantiate(graph, 0);
    assert_eq!((free_bytes(), usage(gpu.device)), (before, [0; 4]));
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphUpload(executable, stream) }, CUDA_SUCCESS);
    assert_eq!((free_bytes(), usage(gpu.device)), (before - 64 * MIB, [64; 4]));
    assert_eq!(run(executable, stream), CUDA_SUCCESS);
    assert_eq!((free_bytes(), usage(gpu.device)), (before - 64 * MIB, [64; 4]));
    trim();
    assert_eq!((free_bytes(), usage(gpu.device)), (before - 32 * MIB, [32, 64, 32, 64]));
    assert_eq!(free(left, stream), CUDA_SUCCESS);
    assert_eq!((free_bytes(), usage(gpu.device)), (before - 32 * MIB, [32, 64, 32, 64]));
    assert_eq!(run(executable, stream), CUDA_SUCCESS);
    gpu::free(left).unwrap();
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuGraphExecDestroy(executable), CUDA_SUCCESS);
        assert_eq!(sys::cuGraphDestroy(graph), CUDA_SUCCESS);
    }
    assert_eq!((free_bytes(), usage(gpu.device)), (before - 64 * MIB, [64; 4]));
    trim();
    assert_eq!((free_bytes(), usage(gpu.device)), (before, [0, 64, 0, 64]));
    let set = |attribute, mut value: u64| {
        // SAFETY: as above.
        unsafe { sys::cuDeviceSetGraphMemAttribute(gpu.device, attribute, (&raw mut value).cast()) }
    };
    use sys::CUgraphMem_attribute::*;
    assert_eq!(set(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, 1), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, 0), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(set(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, 0), CUDA_SUCCESS);
    assert_eq!(usage(gpu.device), [0, 0, 0, 64]);
}

#[test]
fn sim_other_allocations_get_the_memory_that_graphs_have_left() {
    let universe = Universe::builder().capacity(96 << 20).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let stream = gpu::stream();
    let (graph, left) = two_blocks(stream);
    let executable = instantiate(graph, 0);
    let block = malloc(40 * MIB).unwrap();
    assert_eq!(run(executable, stream), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(free_bytes(), 56 * MIB, "a refused launch reserves nothing");
    fill(left, 1, 64, stream).unwrap_err();
    gpu::free(block).unwrap();
    assert_eq!(run(executable, stream), CUDA_SUCCESS);
    // 64 MiB are reserved, and 32 of them in use.
    gpu::free(malloc(64 * MIB).unwrap()).unwrap();
    assert!(malloc(65 * MIB).is_err());
    assert_eq!(free(left, stream), CUDA_SUCCESS);
    gpu::free(malloc(96 * MIB).unwrap()).unwrap();
    gpu::sync(stream).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::OutOfBounds], "nothing was allocated");
}

#[test]
fn sim_the_addresses_of_destroyed_nodes_are_used_again() {
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    // More addresses than a device has, if each graph had its own.
    for round in 0..300 {
        begin(stream);
        let memory = allocate(16 << 30, stream);
        fill(memory, 7, 64, stream).unwrap();
        assert_eq!(free(memory, stream), CUDA_SUCCESS);
        let graph = end(stream);
        let executable = instantiate(graph, 0);
        assert_eq!(run(executable, stream), CUDA_SUCCESS, "{round}");
        // SAFETY: as above.
        unsafe {
            assert_eq!(sys::cuGraphDestroy(graph), CUDA_SUCCESS);
            gpu::sync(stream).unwrap();
            assert_eq!(sys::cuGraphExecDestroy(executable), CUDA_SUCCESS);
        }
    }
    assert_eq!(kinds(&universe), []);
}
