//! Graphs: captured and made node by node; their launches, updates and races.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::gpu::{
    self, Gpu, fill, kernel, kinds, launch, machine, malloc, order, ptx, record, wait,
};
use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphExec, CUgraphNode,
    CUresult, CUstream, CUstreamCaptureMode,
};
use dmr_sim::{Footprint, Policy, ReportKind, Universe};

use CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS};

fn begin(stream: CUstream) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the simulator checks its arguments, and out-pointers are to live locals; so for all
    // calls here.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, CUDA_SUCCESS);
}

fn end(stream: CUstream) -> Result<CUgraph, CUresult> {
    let mut graph = null_mut();
    // SAFETY: as above.
    match unsafe { sys::cuStreamEndCapture(stream, &mut graph) } {
        CUDA_SUCCESS => Ok(graph),
        code => Err(code),
    }
}

fn instantiate(graph: CUgraph) -> Result<CUgraphExec, CUresult> {
    let mut executable = null_mut();
    // SAFETY: as above.
    match unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) } {
        CUDA_SUCCESS => Ok(executable),
        code => Err(code),
    }
}

fn run(executable: CUgraphExec, stream: CUstream) {
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphLaunch(executable, stream) }, CUDA_SUCCESS);
}

fn graph() -> CUgraph {
    let mut graph = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { sys::cuGraphCreate(&mut graph, 0) }, CUDA_SUCCESS);
    graph
}

/// Adds a memset of `len` bytes.
fn fill_node(graph: CUgraph, after: &[CUgraphNode], at: u64, byte: u8, len: usize) -> CUgraphNode {
    let value = u32::from(byte);
    let params =
        CUDA_MEMSET_NODE_PARAMS { dst: at, pitch: 0, value, elementSize: 1, width: len, height: 1 };
    let mut node = null_mut();
    let context = null_mut();
    // SAFETY: as above.
    let code = unsafe {
        sys::cuGraphAddMemsetNode(&mut node, graph, after.as_ptr(), after.len(), &params, context)
    };
    assert_eq!(code, CUDA_SUCCESS);
    node
}

#[test]
fn sim_captured_work_runs_at_each_launch() {
    for policy in [Policy::Eager, Policy::Lazy, Policy::Random] {
        let universe = Universe::builder().policy(policy).build().unwrap();
        let _gpu = Gpu::new(&universe);
        let a = gpu::stream();
        let from = malloc(64).unwrap();
        let to = malloc(64).unwrap();
        begin(a);
        fill(from, 7, 64, a).unwrap();
        gpu::copy(to, from, 64, a).unwrap();
        let executable = instantiate(end(a).unwrap()).unwrap();
        for _ in 0..3 {
            fill(to, 0, 64, a).unwrap();
            assert_eq!(gpu::sync(a), Ok(()));
            assert_eq!(gpu::read(to, 64).unwrap(), [0; 64]);
            run(executable, a);
            assert_eq!(gpu::sync(a), Ok(()));
            assert_eq!(gpu::read(to, 64).unwrap(), [7; 64]);
        }
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn sim_a_launch_is_one_operation_of_its_stream() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    begin(a);
    fill(block, 7, 64, a).unwrap();
    let executable = instantiate(end(a).unwrap()).unwrap();
    fill(block, 1, 64, b).unwrap();
    run(executable, b);
    fill(block, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [], "the launch is on b, where it was captured has no effect");
    gpu::sync(b).unwrap();
    run(executable, b);
    fill(block, 3, 64, a).unwrap();
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_work_that_waits_for_the_stream_of_a_launch_comes_after_all_its_nodes() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let first = malloc(64).unwrap();
    let second = malloc(64).unwrap();
    let graph = graph();
    fill_node(graph, &[], first, 1, 64);
    fill_node(graph, &[], second, 1, 64);
    run(instantiate(graph).unwrap(), a);
    order(a, b);
    fill(first, 2, 64, b).unwrap();
    fill(second, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), []);
    gpu::sync(b).unwrap();
    assert_eq!(gpu::read(first, 64).unwrap(), [2; 64]);
}

#[test]
fn sim_nodes_without_an_edge_between_them_race() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let racy = graph();
    fill_node(racy, &[], block, 1, 64);
    fill_node(racy, &[], block, 2, 64);
    let ordered = graph();
    let first = fill_node(ordered, &[], block, 1, 64);
    fill_node(ordered, &[first], block, 2, 64);
    run(instantiate(ordered).unwrap(), a);
    assert_eq!(kinds(&universe), []);
    run(instantiate(racy).unwrap(), a);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_a_node_waits_for_all_of_its_dependencies() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    let graph = graph();
    let left = fill_node(graph, &[], block, 1, 32);
    let right = fill_node(graph, &[], block + 32, 2, 32);
    let both = fill_node(graph, &[left, right], block, 3, 64);
    let mut from = [null_mut(); 4];
    let mut to = [null_mut(); 4];
    let mut count = 4;
    // SAFETY: as above.
    let code = unsafe {
        let from = from.as_mut_ptr();
        let to = to.as_mut_ptr();
        sys::cuGraphGetEdges_v2(graph, from, to, null_mut(), &mut count)
    };
    assert_eq!((code, count), (CUDA_SUCCESS, 2));
    assert_eq!((&from[..2], &to[..2]), (&[left, right][..], &[both, both][..]));
    run(instantiate(graph).unwrap(), a);
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [3; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_stream_that_joined_a_capture_is_ordered_by_its_events_only() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let forked = gpu::event();
    let joined = gpu::event();
    let first = malloc(64).unwrap();
    let second = malloc(64).unwrap();
    let capture = |on_b: u64| {
        begin(a);
        fill(first, 1, 64, a).unwrap();
        record(forked, a).unwrap();
        wait(b, forked).unwrap();
        fill(first, 2, 64, a).unwrap();
        fill(on_b, 3, 64, b).unwrap();
        record(joined, b).unwrap();
        wait(a, joined).unwrap();
        fill(on_b, 4, 64, a).unwrap();
        instantiate(end(a).unwrap()).unwrap()
    };
    let disjoint = capture(second);
    let racy = capture(first);
    run(disjoint, a);
    run(disjoint, a);
    assert_eq!(kinds(&universe), []);
    run(racy, a);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_a_capture_with_work_that_was_not_joined_fails() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let forked = gpu::event();
    let block = malloc(64).unwrap();
    begin(a);
    record(forked, a).unwrap();
    wait(b, forked).unwrap();
    fill(block, 3, 64, b).unwrap();
    assert_eq!(end(a), Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    begin(a);
    assert!(end(a).is_ok(), "the capture has ended");
}

#[test]
fn sim_launches_of_one_executable_graph_come_after_each_other() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    let graph = graph();
    let other = malloc(64).unwrap();
    let root = fill_node(graph, &[], block, 1, 64);
    fill_node(graph, &[root], other, 2, 64);
    fill_node(graph, &[root], block, 3, 64); // which the root of the next launch comes after
    let first = instantiate(graph).unwrap();
    let second = instantiate(graph).unwrap();
    run(first, a);
    run(first, b);
    assert_eq!(kinds(&universe), []);
    run(second, a);
    assert!(!kinds(&universe).is_empty(), "another executable graph is not ordered with it");
}

#[test]
fn sim_a_graph_that_follows_a_destroyed_one_is_not_ordered_after_its_work() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc(64).unwrap();
    let launched_on = |stream, byte| {
        let one = graph();
        fill_node(one, &[], block, byte, 64);
        let executable = instantiate(one).unwrap();
        run(executable, stream);
        // SAFETY: as above.
        assert_eq!(unsafe { sys::cuGraphExecDestroy(executable) }, CUDA_SUCCESS);
    };
    launched_on(a, 1);
    launched_on(b, 2);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
    // The host has waited for the work of both.
    gpu::sync_context().unwrap();
    launched_on(a, 3);
    assert_eq!(kinds(&universe), [ReportKind::WriteAfterWrite]);
}

#[test]
fn sim_flags_that_exclude_each_other_are_refused() {
    let (_universe, _gpu) = machine();
    let graph = graph();
    let mut executable = null_mut();
    let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    for (flags, expected) in [
        (0, CUDA_SUCCESS),
        (1 | 2 | 8, CUDA_SUCCESS),
        (16, CUDA_ERROR_INVALID_VALUE),
        (1 | 4, CUDA_ERROR_INVALID_VALUE),
        (4, unsupported),
    ] {
        // SAFETY: as above.
        let code = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, flags) };
        assert_eq!(code, expected, "flags {flags}");
    }
}

#[test]
fn sim_a_cycle_is_refused() {
    let (_universe, _gpu) = machine();
    let block = malloc(64).unwrap();
    let graph = graph();
    let first = fill_node(graph, &[], block, 1, 64);
    let second = fill_node(graph, &[first], block, 2, 64);
    // SAFETY: as above.
    let code = unsafe { sys::cuGraphAddDependencies_v2(graph, &second, &first, null(), 1) };
    assert_eq!(code, CUDA_SUCCESS);
    assert_eq!(instantiate(graph), Err(CUDA_ERROR_INVALID_VALUE));
}

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
