//! Parameters of nodes that are changed, nodes by generic parameters, and captures that a program looks into.
//!
//! The functions are called by name: their bindings depend on the version of CUDA.
#![allow(unsafe_code)] // the driver is called directly

mod support;

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use dmr_sim::ReportKind;
use support::gpu::{self, fill, kinds, machine, malloc};

type Handle = u64;

/// Returns the address of a function of the simulated driver.
fn address(name: &str) -> *const () {
    let mut functions = dmr_sim::driver_functions().into_iter();
    let found = functions.find(|(known, _)| *known == name).unwrap();
    std::ptr::with_exposed_provenance(found.1)
}

/// Calls a function of the simulated driver, which checks its arguments.
macro_rules! call {
    ($name:ident($($argument:expr => $type:ty),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> i32;
        // SAFETY: the function has this type; the simulator checks handles, and pointers are to live locals.
        unsafe { std::mem::transmute::<*const (), Function>(address(stringify!($name)))($($argument),*) }
    }};
}

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

fn new_graph() -> Handle {
    let mut graph = 0;
    assert_eq!(call!(cuGraphCreate(&mut graph => *mut Handle, 0 => u32)), 0);
    graph
}

fn instantiate(graph: Handle) -> Handle {
    /// `CUDA_GRAPH_INSTANTIATE_PARAMS`
    #[repr(C)]
    struct Params {
        flags: u64,
        stream: Handle,
        node: Handle,
        result: i32,
    }
    let mut params = Params { flags: 0, stream: 0, node: 9, result: 9 };
    let mut executable = 0;
    let code = call!(cuGraphInstantiateWithParams(
        &mut executable => *mut Handle, graph => Handle, &mut params => *mut Params
    ));
    assert_eq!((code, params.result, params.node), (0, 0, 0));
    executable
}

fn run(executable: Handle) {
    assert_eq!(call!(cuGraphLaunch(executable => Handle, null_mut() => *mut c_void)), 0);
    gpu::sync_context().unwrap();
}

#[test]
fn sim_the_parameters_of_nodes_are_changed_in_a_graph_and_in_an_executable_one() {
    let (universe, _gpu) = machine();
    let (a, b) = (malloc(64).unwrap(), malloc(64).unwrap());
    let (graph, mut fill, mut copied) = (new_graph(), 0, 0);
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
    let (stream, block) = (gpu::stream(), malloc(64).unwrap());
    let info = |count: &mut usize| {
        let (mut status, mut id, mut graph, mut nodes) = (0, 0u64, 0, null::<Handle>());
        let code = call!(cuStreamGetCaptureInfo_v2(
            stream.cast() => *mut c_void, &mut status => *mut i32, &mut id => *mut u64,
            &mut graph => *mut Handle, &mut nodes => *mut *const Handle, count => *mut usize
        ));
        assert_eq!((code, status), (0, 1));
        // SAFETY: there are as many nodes.
        let first = if *count > 0 { unsafe { nodes.read() } } else { 0 };
        (graph, first)
    };
    let (mut count, mut added) = (9, 0);
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

/// `CUDA_KERNEL_NODE_PARAMS`, version 1.
#[repr(C)]
struct Kernel {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: *const *const c_void,
    extra: *const *const c_void,
}

/// Writes the blocks of its cluster to the word of each block.
const SIZES: &str = ".version 8.0\n.target sm_90\n.address_size 64
    .visible .entry sizes(.param .u64 out) {
        .reg .b32 %r<3>; .reg .b64 %d<3>;
        mov.u32 %r1, %ctaid.x; mov.u32 %r2, %cluster_nctaid.x; ld.param.u64 %d1, [out];
        mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r2; ret; }";

/// The function `sizes`, its memory of 8 words, and parameters of nodes with it.
struct Sizes {
    function: Handle,
    out: u64,
}

impl Sizes {
    fn new() -> Self {
        let function = gpu::kernel(SIZES, "sizes").unwrap() as Handle;
        Self { function, out: malloc(32).unwrap() }
    }

    /// Calls `with` with the parameters of a node of `blocks` blocks.
    fn params<T>(&self, blocks: u32, with: impl FnOnce(*const Kernel) -> T) -> T {
        let argument: [*const c_void; 1] = [(&raw const self.out).cast()];
        let (function, params) = (self.function, argument.as_ptr());
        let (grid, block, shared_bytes, extra) = ([blocks, 1, 1], [1; 3], 0, null());
        with(&Kernel { function, grid, block, shared_bytes, params, extra })
    }

    fn add(&self, graph: Handle, blocks: u32) -> (i32, Handle) {
        let mut node = 0;
        let code = self.params(blocks, |params| {
            call!(cuGraphAddKernelNode(
                &mut node => *mut Handle, graph => Handle, null() => *const Handle, 0 => usize,
                params => *const Kernel
            ))
        });
        (code, node)
    }

    fn set(&self, node: Handle, blocks: u32) -> i32 {
        self.params(
            blocks,
            |params| call!(cuGraphKernelNodeSetParams(node => Handle, params => *const Kernel)),
        )
    }

    fn set_in(&self, executable: Handle, node: Handle, blocks: u32) -> i32 {
        self.params(blocks, |params| {
            call!(cuGraphExecKernelNodeSetParams(
                executable => Handle, node => Handle, params => *const Kernel
            ))
        })
    }

    /// Returns the words, and fills them with zeros.
    fn words(&self) -> Vec<u32> {
        let bytes = gpu::read(self.out, 32).unwrap();
        gpu::fill(self.out, 0, 32, gpu::LEGACY).unwrap();
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }
}

/// The attributes of launches.
const COOPERATIVE: i32 = 2;
const CLUSTER: i32 = 4;

#[test]
fn sim_a_kernel_node_keeps_its_attributes_when_its_parameters_change() {
    /// `CUlaunchConfig` and `CUlaunchAttribute`.
    #[repr(C)]
    struct Config {
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        stream: *mut c_void,
        attributes: *const Attribute,
        count: u32,
    }
    #[repr(C, align(8))]
    struct Attribute {
        id: i32,
        value: [u32; 17],
    }
    let (universe, _gpu) = machine();
    let (stream, sizes) = (gpu::stream(), Sizes::new());
    gpu::fill(sizes.out, 0, 32, gpu::LEGACY).unwrap();
    let mut value = [0; 17];
    value[1..4].copy_from_slice(&[2, 1, 1]);
    let attributes = [Attribute { id: CLUSTER, value }];
    let config = Config {
        grid: [4, 1, 1],
        block: [1; 3],
        shared_bytes: 0,
        stream: stream.cast(),
        attributes: attributes.as_ptr(),
        count: 1,
    };
    assert_eq!(call!(cuStreamBeginCapture_v2(stream.cast() => *mut c_void, 2 => u32)), 0);
    let argument: [*const c_void; 1] = [(&raw const sizes.out).cast()];
    let code = call!(cuLaunchKernelEx(
        &config => *const Config, sizes.function => Handle, argument.as_ptr() => *const *const c_void,
        null() => *const *const c_void
    ));
    assert_eq!(code, 0);
    let (mut graph, mut node, mut count) = (0, 0, 1);
    let code = call!(cuStreamEndCapture(stream.cast() => *mut c_void, &mut graph => *mut Handle));
    assert_eq!(code, 0);
    let code = call!(cuGraphGetNodes(
        graph => Handle, &mut node => *mut Handle, &mut count => *mut usize
    ));
    assert_eq!((code, count), (0, 1));
    let executable = instantiate(graph);
    run(executable);
    assert_eq!(sizes.words(), [2, 2, 2, 2, 0, 0, 0, 0]);
    assert_eq!(sizes.set_in(executable, node, 6), 0);
    run(executable);
    assert_eq!(sizes.words(), [2, 2, 2, 2, 2, 2, 0, 0]);
    assert_eq!(sizes.set_in(executable, node, 5), 912, "no whole clusters");
    assert_eq!(sizes.set(node, 8), 0);
    run(instantiate(graph));
    assert_eq!(sizes.words(), [2; 8]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_the_attributes_of_a_kernel_node_are_set_read_and_copied() {
    type Value = [u32; 16];
    let (_universe, _gpu) = machine();
    let (graph, sizes) = (new_graph(), Sizes::new());
    let (_, node) = sizes.add(graph, 8);
    let (_, other) = sizes.add(graph, 8);
    let set = |node: Handle, id: i32, first: u32| {
        let mut value: Value = [0; 16];
        value[..3].copy_from_slice(&[first, 1, 1]);
        call!(cuGraphKernelNodeSetAttribute(node => Handle, id => i32, &value => *const Value))
    };
    let get = |node: Handle, id: i32| {
        let mut value: Value = [9; 16];
        let code = call!(cuGraphKernelNodeGetAttribute(
            node => Handle, id => i32, &mut value => *mut Value
        ));
        assert_eq!(code, 0);
        value[0]
    };
    assert_eq!((get(node, CLUSTER), get(node, COOPERATIVE)), (0, 0));
    assert_eq!(set(node, CLUSTER, 4), 0);
    assert_eq!(set(node, COOPERATIVE, 1), 0);
    assert_eq!(set(node, CLUSTER, 3), 912, "no whole clusters");
    assert_eq!((get(node, CLUSTER), get(node, COOPERATIVE)), (4, 1));
    let copy = call!(cuGraphKernelNodeCopyAttributes(other => Handle, node => Handle));
    assert_eq!((copy, get(other, CLUSTER), get(other, COOPERATIVE)), (0, 4, 1));
    // More blocks than the device has at a time.
    assert_eq!(sizes.set(node, 132 * 32 + 4), 720);
    run(instantiate(graph));
    assert_eq!(sizes.words(), [4; 8]);
}

#[test]
fn sim_a_kernel_node_with_an_empty_grid_is_launched_when_it_has_blocks() {
    let (universe, _gpu) = machine();
    let (graph, sizes) = (new_graph(), Sizes::new());
    gpu::fill(sizes.out, 0, 32, gpu::LEGACY).unwrap();
    let (code, node) = sizes.add(graph, 0);
    assert_eq!(code, 0);
    let executable = instantiate(graph);
    assert_eq!(call!(cuGraphLaunch(executable => Handle, null_mut() => *mut c_void)), 1);
    assert_eq!(sizes.set_in(executable, node, 2), 0);
    run(executable);
    assert_eq!(sizes.words(), [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(sizes.set(node, 3), 0);
    run(instantiate(graph));
    assert_eq!(sizes.words(), [1, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn sim_a_node_that_is_destroyed_in_a_capture_leaves_its_stream() {
    let (universe, _gpu) = machine();
    let (stream, block) = (gpu::stream(), malloc(64).unwrap());
    assert_eq!(call!(cuStreamBeginCapture_v2(stream.cast() => *mut c_void, 2 => u32)), 0);
    fill(block, 1, 64, stream).unwrap();
    fill(block, 2, 64, stream).unwrap();
    let tail = || {
        let (mut status, mut count, mut nodes) = (0, 9, null::<Handle>());
        let code = call!(cuStreamGetCaptureInfo_v2(
            stream.cast() => *mut c_void, &mut status => *mut i32, null_mut() => *mut u64,
            null_mut() => *mut Handle, &mut nodes => *mut *const Handle, &mut count => *mut usize
        ));
        assert_eq!((code, status), (0, 1));
        if count == 0 {
            return Vec::new();
        }
        // SAFETY: there are as many nodes.
        unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec()
    };
    let last = tail();
    assert_eq!(last.len(), 1);
    assert_eq!(call!(cuGraphDestroyNode(last[0] => Handle)), 0);
    assert_eq!(tail(), [] as [Handle; 0]);
    let (mut graph, mut nodes, mut edges) = (0, 0, 0);
    fill(block, 3, 64, stream).unwrap();
    let code = call!(cuStreamEndCapture(stream.cast() => *mut c_void, &mut graph => *mut Handle));
    assert_eq!(code, 0);
    let code = call!(cuGraphGetNodes(
        graph => Handle, null_mut() => *mut Handle, &mut nodes => *mut usize
    ));
    assert_eq!((code, nodes), (0, 2));
    let code = call!(cuGraphGetEdges(
        graph => Handle, null_mut() => *mut Handle, null_mut() => *mut Handle, &mut edges => *mut usize
    ));
    assert_eq!((code, edges), (0, 0));
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
    let (stream, block) = (gpu::stream(), malloc(64).unwrap());
    assert_eq!(call!(cuStreamBeginCapture_v2(stream.cast() => *mut c_void, 2 => u32)), 0);
    let (mut status, mut graph, mut added) = (0, 0, 0);
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
