//! Kernels as nodes of graphs: their attributes and grids.
//!
//! The functions are called by name: their bindings depend on the version of CUDA.
#![allow(unsafe_code)] // the driver is called directly

use crate::support;
use std::ffi::c_void;
use std::ptr::null;

use crate::support::gpu::{self, kinds, machine, malloc};
use crate::support::named::{Handle, call, instantiate, new_graph, run};

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
        let function = self.function;
        let params = argument.as_ptr();
        let grid = [blocks, 1, 1];
        let block = [1; 3];
        let shared_bytes = 0;
        let extra = null();
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
    let stream = gpu::stream();
    let sizes = Sizes::new();
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
    let mut graph = 0;
    let mut node = 0;
    let mut count = 1;
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
    let (universe, _gpu) = machine();
    let graph = new_graph();
    let sizes = Sizes::new();
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
    // No edge orders the two nodes, which write the same words.
    assert_eq!(support::gpu::kinds(&universe), [dmr_sim::ReportKind::WriteAfterWrite]);
}

/// The codes of an H200.
#[test]
fn sim_a_kernel_node_has_a_grid_when_it_is_made_and_when_it_is_changed() {
    let (universe, _gpu) = machine();
    let graph = new_graph();
    let sizes = Sizes::new();
    gpu::fill(sizes.out, 0, 32, gpu::LEGACY).unwrap();
    assert_eq!(sizes.add(graph, 0), (1, 0));
    let (_, node) = sizes.add(graph, 2);
    let executable = instantiate(graph);
    assert_eq!((sizes.set(node, 0), sizes.set_in(executable, node, 0)), (1, 1));
    run(executable);
    assert_eq!(sizes.words(), [1, 1, 0, 0, 0, 0, 0, 0]);
    run(instantiate(graph));
    assert_eq!(sizes.words(), [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(kinds(&universe), []);
}
