//! Parameters of nodes that are changed, nodes by generic parameters, and captures that a program
//! looks into.
//!
//! The functions are called by name: their bindings depend on the version of CUDA.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use crate::support::gpu::{self, fill, kinds, machine, malloc};
use crate::support::named::{Handle, call, instantiate, new_graph, run};
use dmr_sim::ReportKind;

/// `CUDA_MEMSET_NODE_PARAMS`
#[repr(C)]
struct Memset {
    at: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
    context: Handle,
}

fn memset(at: u64, byte: u32) -> Memset {
    Memset { at, pitch: 0, value: byte, element: 1, width: 64, height: 1, context: 0 }
}

/// `CUgraphNodeParams` of a memset.
#[repr(C)]
struct NodeParams {
    kind: i32,
    reserved: [i32; 3],
    memset: Memset,
    rest: [u64; 23],
}

fn node_params(at: u64, byte: u32) -> NodeParams {
    NodeParams { kind: 2, reserved: [0; 3], memset: memset(at, byte), rest: [0; 23] }
}

/// `CUDA_MEMCPY3D` of 64 bytes.
#[repr(C)]
#[derive(Default)]
struct Copy {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Default)]
struct Side {
    place: [usize; 4],
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

fn copy(from: u64, to: u64) -> Copy {
    const DEVICE: u32 = 2;
    let side = |device| Side { kind: DEVICE, device, pitch: 64, height: 1, ..Side::default() };
    Copy { from: side(from), to: side(to), width: 64, height: 1, depth: 1 }
}

#[test]
fn sim_the_parameters_of_nodes_are_changed_in_a_graph_and_in_an_executable_one() {
    let (universe, _gpu) = machine();
    let a = malloc(64).unwrap();
    let b = malloc(64).unwrap();
    let graph = new_graph();
    let mut fill = 0;
    let mut copied = 0;
    let mut params = node_params(a, 1);
    let code = call!(cuGraphAddNode(
        &mut fill => *mut Handle, graph => Handle, null() => *const Handle, 0 => usize,
        &mut params => *mut NodeParams
    ));
    assert_eq!(code, 0);
    let code = call!(cuGraphAddMemcpyNode(
        &mut copied => *mut Handle, graph => Handle, &fill => *const Handle, 1 => usize,
        &copy(a, b) => *const Copy, 0 => Handle
    ));
    assert_eq!(code, 0);
    let executable = instantiate(graph);
    run(executable);
    assert_eq!((gpu::read(a, 64).unwrap(), gpu::read(b, 64).unwrap()), (vec![1; 64], vec![1; 64]));
    // In the executable graph: the other way round.
    let set = |node: Handle, params: &Memset| {
        call!(cuGraphExecMemsetNodeSetParams(
            executable => Handle, node => Handle, params => *const Memset, 0 => Handle
        ))
    };
    assert_eq!(set(fill, &memset(b, 2)), 0);
    assert_eq!(set(copied, &memset(b, 2)), 1, "a copy is no memset");
    let code = call!(cuGraphExecMemcpyNodeSetParams(
        executable => Handle, copied => Handle, &copy(b, a) => *const Copy, 0 => Handle
    ));
    assert_eq!(code, 0);
    run(executable);
    assert_eq!((gpu::read(a, 64).unwrap(), gpu::read(b, 64).unwrap()), (vec![2; 64], vec![2; 64]));
    // In the graph: only graphs that are instantiated later have it.
    let mut params = node_params(a, 3);
    let code = call!(cuGraphNodeSetParams(fill => Handle, &mut params => *mut NodeParams));
    assert_eq!(code, 0);
    run(executable);
    assert_eq!(gpu::read(a, 64).unwrap(), [2; 64]);
    run(instantiate(graph));
    assert_eq!((gpu::read(a, 64).unwrap(), gpu::read(b, 64).unwrap()), (vec![3; 64], vec![3; 64]));
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_program_adds_a_node_to_the_graph_that_a_stream_captures() {
    const SET: u32 = 1;
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    let info = |count: &mut usize| {
        let mut status = 0;
        let mut id = 0u64;
        let mut graph = 0;
        let mut nodes = null::<Handle>();
        let code = call!(cuStreamGetCaptureInfo_v2(
            stream.cast() => *mut c_void, &mut status => *mut i32, &mut id => *mut u64,
            &mut graph => *mut Handle, &mut nodes => *mut *const Handle, count => *mut usize
        ));
        assert_eq!((code, status), (0, 1));
        // SAFETY: there are as many nodes.
        let first = if *count > 0 { unsafe { nodes.read() } } else { 0 };
        (graph, first)
    };
    let mut count = 9;
    let mut added = 0;
    assert_eq!(call!(cuStreamBeginCapture_v2(stream.cast() => *mut c_void, 2 => u32)), 0);
    assert_eq!((info(&mut count).1, count), (0, 0));
    fill(block, 1, 64, stream).unwrap();
    let (graph, node) = info(&mut count);
    assert_eq!(count, 1);
    let mut params = node_params(block, 2);
    let code = call!(cuGraphAddNode_v2(
        &mut added => *mut Handle, graph => Handle, &node => *const Handle, null() => *const c_void,
        1 => usize, &mut params => *mut NodeParams
    ));
    assert_eq!(code, 0);
    let code = call!(cuStreamUpdateCaptureDependencies(
        stream.cast() => *mut c_void, &mut added => *mut Handle, 1 => usize, SET => u32
    ));
    assert_eq!(code, 0);
    assert_eq!((info(&mut count), count), ((graph, added), 1));
    fill(block, 3, 32, stream).unwrap();
    let mut ended = 0;
    let code = call!(cuStreamEndCapture(stream.cast() => *mut c_void, &mut ended => *mut Handle));
    assert_eq!((code, ended), (0, graph), "the graph is the same");
    run(instantiate(graph));
    let expected = [vec![3; 32], vec![2; 32]].concat();
    assert_eq!(gpu::read(block, 64).unwrap(), expected);
    assert_eq!(kinds(&universe), [] as [ReportKind; 0]);
}

/// The codes of an H200.
#[test]
fn sim_a_node_of_a_capture_in_progress_is_not_destroyed() {
    let (universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    assert_eq!(call!(cuStreamBeginCapture_v2(stream.cast() => *mut c_void, 2 => u32)), 0);
    fill(block, 1, 64, stream).unwrap();
    fill(block, 2, 64, stream).unwrap();
    let tail = || {
        let mut status = 0;
        let mut count = 9;
        let mut nodes = null::<Handle>();
        let code = call!(cuStreamGetCaptureInfo_v2(
            stream.cast() => *mut c_void, &mut status => *mut i32, null_mut() => *mut u64,
            null_mut() => *mut Handle, &mut nodes => *mut *const Handle, &mut count => *mut usize
        ));
        assert_eq!((code, status, count), (0, 1, 1));
        // SAFETY: there is one node.
        unsafe { nodes.read() }
    };
    let last = tail();
    assert_eq!(call!(cuGraphDestroyNode(last => Handle)), 401);
    assert_eq!(tail(), last);
    let mut graph = 0;
    let mut edges = 0;
    fill(block, 3, 64, stream).unwrap();
    let code = call!(cuStreamEndCapture(stream.cast() => *mut c_void, &mut graph => *mut Handle));
    assert_eq!(code, 0);
    let mut count = || {
        let code = call!(cuGraphGetEdges(
            graph => Handle, null_mut() => *mut Handle, null_mut() => *mut Handle,
            &mut edges => *mut usize
        ));
        assert_eq!(code, 0);
        edges
    };
    assert_eq!(count(), 2);
    assert_eq!(call!(cuGraphDestroyNode(last => Handle)), 0);
    assert_eq!(count(), 0);
    run(instantiate(graph));
    assert_eq!(
        kinds(&universe),
        [ReportKind::WriteAfterWrite],
        "nothing orders the two that are left"
    );
}

#[test]
fn sim_a_node_that_a_program_adds_to_a_capture_need_not_be_joined() {
    let (_universe, _gpu) = machine();
    let stream = gpu::stream();
    let block = malloc(64).unwrap();
    assert_eq!(call!(cuStreamBeginCapture_v2(stream.cast() => *mut c_void, 2 => u32)), 0);
    let mut status = 0;
    let mut graph = 0;
    let mut added = 0;
    let code = call!(cuStreamGetCaptureInfo_v2(
        stream.cast() => *mut c_void, &mut status => *mut i32, null_mut() => *mut u64,
        &mut graph => *mut Handle, null_mut() => *mut *const Handle, null_mut() => *mut usize
    ));
    assert_eq!(code, 0);
    let code = call!(cuGraphAddMemsetNode(
        &mut added => *mut Handle, graph => Handle, null() => *const Handle, 0 => usize,
        &memset(block, 7) => *const Memset, 0 => Handle
    ));
    assert_eq!(code, 0);
    let mut ended = 0;
    let code = call!(cuStreamEndCapture(stream.cast() => *mut c_void, &mut ended => *mut Handle));
    assert_eq!((code, ended), (0, graph));
    run(instantiate(graph));
    assert_eq!(gpu::read(block, 64).unwrap(), [7; 64]);
}
