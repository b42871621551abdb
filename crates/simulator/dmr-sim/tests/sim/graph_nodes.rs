//! The nodes of graphs: kernels, child graphs and host functions; clones, updates and findings.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::gpu::{self, fill, kernel, kinds, launch, machine, malloc, ptx};
use crate::support::graphs::{begin, end, fill_node, graph, instantiate, run};
use cudarc::driver::sys::{self, CUDA_KERNEL_NODE_PARAMS, CUgraph, CUgraphNode, CUresult};
use dmr_sim::{Footprint, Universe};

use CUresult::CUDA_SUCCESS;

/// Registers a kernel that fills 64 bytes at its first argument with its second.
fn register(universe: &Universe) -> sys::CUfunction {
    universe.register_kernel(
        "write",
        |args| Footprint::new().writes(args.u64(0), 64),
        |args, memory| memory.fill(args.u64(0), 64, args.u64(1) as u8),
    );
    kernel(&ptx("write", &["u64", "u64"]), "write").unwrap()
}

fn only_node(graph: CUgraph) -> CUgraphNode {
    let mut node = null_mut();
    let mut count = 1;
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphGetNodes(graph, &mut node, &mut count) }, CUDA_SUCCESS);
    assert_eq!(count, 1);
    node
}

#[test]
fn sim_a_kernel_node_keeps_its_arguments_until_they_are_replaced() {
    let (universe, _gpu) = machine();
    let write = register(&universe);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    begin(a);
    launch(write, &[block, 5], a).unwrap();
    let graph = end(a).unwrap();
    let executable = instantiate(graph).unwrap();
    run(executable, a);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [5; 64]);
    let mut at = block;
    let mut byte = 9u64;
    let mut values: [*mut c_void; 2] = [(&raw mut at).cast(), (&raw mut byte).cast()];
    let params = CUDA_KERNEL_NODE_PARAMS {
        func: write,
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: values.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    };
    let node = only_node(graph);
    // SAFETY: as above.
    let code = unsafe { sys::cuGraphExecKernelNodeSetParams_v2(executable, node, &params) };
    assert_eq!(code, CUDA_SUCCESS);
    run(executable, a);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [9; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_an_executable_graph_takes_over_a_graph_of_the_same_shape() {
    let (universe, _gpu) = machine();
    let write = register(&universe);
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let capture = |values: &[u64]| {
        begin(a);
        for value in values {
            launch(write, &[block, *value], a).unwrap();
        }
        end(a).unwrap()
    };
    let executable = instantiate(capture(&[1])).unwrap();
    let same = capture(&[2]);
    let longer = capture(&[3, 4]);
    let update = |graph| {
        // SAFETY: plain data, for which zero is valid.
        let mut info: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        unsafe { sys::cuGraphExecUpdate_v2(executable, graph, &mut info) }
    };
    assert_eq!(update(same), CUDA_SUCCESS);
    assert_eq!(update(longer), CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    run(executable, a);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [2; 64]);
}

#[test]
fn sim_a_child_graph_runs_between_its_neighbours() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let parent = graph();
    let child = graph();
    fill_node(child, &[], block, 2, 32);
    fill_node(child, &[], block + 32, 2, 32);
    let first = fill_node(parent, &[], block, 1, 64);
    let mut node = null_mut();
    // SAFETY: as above.
    let code = unsafe { sys::cuGraphAddChildGraphNode(&mut node, parent, &first, 1, child) };
    assert_eq!(code, CUDA_SUCCESS);
    fill_node(parent, &[node], block, 3, 16);
    fill_node(parent, &[node], block + 32, 3, 16);
    run(instantiate(parent).unwrap(), a);
    gpu::sync(a).unwrap();
    let half: Vec<u8> = [[3; 16], [2; 16]].concat();
    assert_eq!(gpu::read(block, 64).unwrap(), half.repeat(2));
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_host_node_is_called_at_each_launch_after_what_comes_before() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn count(_: *mut c_void) {
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    begin(a);
    fill(block, 1, 64, a).unwrap();
    // SAFETY: as above; the function needs no data.
    assert_eq!(unsafe { sys::cuLaunchHostFunc(a, Some(count), null_mut()) }, CUDA_SUCCESS);
    let executable = instantiate(end(a).unwrap()).unwrap();
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    run(executable, a);
    run(executable, a);
    gpu::sync(a).unwrap();
    assert_eq!(CALLS.load(Ordering::SeqCst), 2);
}

#[test]
fn sim_a_clone_is_independent_of_its_original() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let original = graph();
    let node = fill_node(original, &[], block, 1, 64);
    let mut clone = null_mut();
    let mut copy = null_mut();
    // SAFETY: as above.
    unsafe {
        assert_eq!(sys::cuGraphClone(&mut clone, original), CUDA_SUCCESS);
        assert_eq!(sys::cuGraphNodeFindInClone(&mut copy, node, clone), CUDA_SUCCESS);
        assert_eq!(sys::cuGraphDestroy(original), CUDA_SUCCESS);
    }
    assert_eq!(only_node(clone), copy);
    assert_ne!(node, copy);
    run(instantiate(clone).unwrap(), a);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [1; 64]);
}

#[test]
fn sim_a_finding_in_a_graph_names_the_node_and_the_streams_of_the_program() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    let other = malloc(64).unwrap();
    begin(a);
    fill(other, 1, 64, a).unwrap();
    fill(block, 1, 64, a).unwrap();
    let captured = instantiate(end(a).unwrap()).unwrap();
    run(captured, b);
    fill(block, 2, 64, a).unwrap();
    let graph = graph();
    let first = fill_node(graph, &[], block, 3, 64);
    fill_node(graph, &[first], block, 4, 64);
    gpu::sync(a).unwrap();
    gpu::sync(b).unwrap();
    run(instantiate(graph).unwrap(), a);
    fill(block, 5, 64, b).unwrap();
    let found: Vec<String> = universe.reports().iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    let stream_a = 1;
    let stream_b = 2;
    let captured = format!(
        "first:  memset (node 2 of the graph that is operation 1 of stream {stream_b}, captured on stream {stream_a})"
    );
    assert!(found[0].contains(&captured), "{}", found[0]);
    assert!(found[0].contains("second: memset (operation 1 of stream 1)"), "{}", found[0]);
    assert!(
        found[1].contains("first:  memset (node 2 of the graph that is operation 2 of stream 1)\n"),
        "{}",
        found[1]
    );
}
