//! Graph management: the nodes of graphs, by kind.

use std::ffi::c_void;

use super::copies_3d::Copy3D;
use super::graph::{graph_of, read_nodes};
use super::graph_params::{
    AllocParams, HostParams, MemsetParams, NodeParams, alloc_node, child_node, copy_node,
    fill_node, free_node, host_node,
};
use super::launch::{KernelParams, LaunchAttributes};
use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Node, NodeWork, Session};

chapter![
    cuGraphAddEmptyNode,
    cuGraphAddKernelNode,
    cuGraphAddKernelNode_v2,
    cuGraphAddMemcpyNode,
    cuGraphAddMemsetNode,
    cuGraphAddHostNode,
    cuGraphAddEventRecordNode,
    cuGraphAddEventWaitNode,
    cuGraphAddChildGraphNode,
    cuGraphAddMemAllocNode,
    cuGraphAddMemFreeNode,
    cuGraphAddNode,
    cuGraphAddNode_v2,
];

/// The place of a new node: its graph and the nodes that come before it, as the program passes
/// them.
#[derive(Clone, Copy)]
struct Place {
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
}

impl Place {
    /// Adds a node.
    ///
    /// # Safety
    ///
    /// The driver's contract: there are `count` nodes at `after`, and `node` is null or writable.
    unsafe fn add(
        self,
        name: &'static str,
        work: impl FnOnce(&mut Session<'_>) -> Outcome<NodeWork>,
    ) -> Code {
        driver_call(name, Scope::Context, |session| {
            required(self.node)?;
            let work = work(session)?;
            // SAFETY: by this function's contract.
            let after = unsafe { read_nodes(session, self.after, self.count)? };
            let graph = graph_of(session, self.graph)?;
            if !after.iter().all(|before| graph.nodes.contains_key(before)) {
                return Err(ERROR_INVALID_VALUE);
            }
            let id = session.graphs.new_node();
            let node = Node { work, after, original: None, captured_on: None };
            graph_of(session, self.graph)?.nodes.insert(id, node);
            // SAFETY: by this function's contract.
            unsafe { put(self.node, session.handle(Kind::GraphNode, id)) }
        })
    }
}

/// Defines functions that add a node with the work that a closure returns.
macro_rules! add_nodes {
    ($($(#[$doc:meta])* $name:ident($($param:ident: $type:ty),*) = $work:expr;)+) => {$(
        $(#[$doc])*
        unsafe extern "C" fn $name(
            node: *mut Handle,
            graph: Handle,
            after: *const Handle,
            count: usize,
            $($param: $type),*
        ) -> Code {
            let place = Place { node, graph, after, count };
            // SAFETY: the driver's contract is that of `add`, and its parameters are null or valid.
            unsafe { place.add(stringify!($name), $work) }
        }
    )+};
}

add_nodes! {
    cuGraphAddEmptyNode() = |_| Ok(NodeWork::Empty);
    cuGraphAddKernelNode(params: *const KernelParams) =
        |session| KernelParams::work(params, session, LaunchAttributes::default());
    /// The later version has more parameters at the end: a kernel of a library in place of the
    /// function, and a context.
    cuGraphAddKernelNode_v2(params: *const KernelParams) =
        |session| KernelParams::work_v2(params, session, LaunchAttributes::default());
    cuGraphAddMemcpyNode(copy: *const Copy3D, _context: Handle) = |session| copy_node(copy, session);
    cuGraphAddMemsetNode(params: *const MemsetParams, _context: Handle) = |_| fill_node(params);
    cuGraphAddHostNode(params: *const HostParams) = |_| host_node(params);
    cuGraphAddEventRecordNode(event: Handle) =
        |session| session.event_index(event).map(NodeWork::Record);
    cuGraphAddEventWaitNode(event: Handle) =
        |session| session.event_index(event).map(NodeWork::Wait);
    /// The child is copied: later changes of it have no effect on the node.
    cuGraphAddChildGraphNode(child: Handle) = |session| child_node(child, session);
    cuGraphAddMemAllocNode(params: *mut AllocParams) = |session| alloc_node(params, session);
    cuGraphAddMemFreeNode(at: CUdeviceptr) = |session| free_node(at, session);
    cuGraphAddNode(params: *mut NodeParams) =
        |session| NodeParams::work(params, session, LaunchAttributes::default());
}

/// Edges with data, which say that a node need not wait for all of another, order as whole edges
/// do.
unsafe extern "C" fn cuGraphAddNode_v2(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    _data: *const c_void,
    count: usize,
    params: *mut NodeParams,
) -> Code {
    let place = Place { node, graph, after, count };
    let attributes = LaunchAttributes::default();
    let work = |session: &mut Session<'_>| {
        // SAFETY: the driver's contract, as above.
        unsafe { NodeParams::work(params, session, attributes) }
    };
    // SAFETY: the driver's contract is that of `add`.
    unsafe { place.add("cuGraphAddNode_v2", work) }
}
