//! Graph management: the nodes of graphs, by kind.

use std::ffi::c_void;

use super::copies_3d::Copy3D;
use super::graph::{graph_of, read_nodes};
use super::graph_params::{
    AllocParams, HostParams, MemsetParams, NodeParams, alloc_node, child_node, copy_node,
    fill_node, free_node, host_node,
};
use super::launch::{KernelParams, LaunchAttributes};
use super::{chapter, put, required};
use crate::abi::*;
use crate::graph::{Node, NodeWork};
use crate::handle::Kind;
use crate::session::{Scope, Session, driver_call};

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

/// The place of a new node: its graph and the nodes that come before it, as the program passes them.
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

unsafe extern "C" fn cuGraphAddEmptyNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: the driver's contract is that of `add`; so for all nodes here.
    unsafe { place.add("cuGraphAddEmptyNode", |_| Ok(NodeWork::Empty)) }
}

unsafe extern "C" fn cuGraphAddKernelNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    params: *const KernelParams,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above; the parameters are null or those of a launch.
    unsafe {
        place.add("cuGraphAddKernelNode", |session| {
            KernelParams::work(params, session, LaunchAttributes::default())
        })
    }
}

/// The later version has more parameters at the end: a kernel of a library in place of the function, and a context.
unsafe extern "C" fn cuGraphAddKernelNode_v2(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    params: *const KernelParams,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above.
    unsafe {
        place.add("cuGraphAddKernelNode_v2", |session| {
            KernelParams::work_v2(params, session, LaunchAttributes::default())
        })
    }
}

unsafe extern "C" fn cuGraphAddMemcpyNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    copy: *const Copy3D,
    _context: Handle,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above; the description is null or valid.
    unsafe { place.add("cuGraphAddMemcpyNode", |session| copy_node(copy, session)) }
}

unsafe extern "C" fn cuGraphAddMemsetNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    params: *const MemsetParams,
    _context: Handle,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above; the parameters are null or valid.
    unsafe { place.add("cuGraphAddMemsetNode", |_| fill_node(params)) }
}

unsafe extern "C" fn cuGraphAddHostNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    params: *const HostParams,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above.
    unsafe { place.add("cuGraphAddHostNode", |_| host_node(params)) }
}

unsafe extern "C" fn cuGraphAddEventRecordNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    event: Handle,
) -> Code {
    let place = Place { node, graph, after, count };
    let work = |session: &mut Session<'_>| session.event_index(event).map(NodeWork::Record);
    // SAFETY: as above.
    unsafe { place.add("cuGraphAddEventRecordNode", work) }
}

unsafe extern "C" fn cuGraphAddEventWaitNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    event: Handle,
) -> Code {
    let place = Place { node, graph, after, count };
    let work = |session: &mut Session<'_>| session.event_index(event).map(NodeWork::Wait);
    // SAFETY: as above.
    unsafe { place.add("cuGraphAddEventWaitNode", work) }
}

unsafe extern "C" fn cuGraphAddChildGraphNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    child: Handle,
) -> Code {
    let place = Place { node, graph, after, count };
    // The child is copied: later changes of it have no effect on the node.
    let work = |session: &mut Session<'_>| child_node(child, session);
    // SAFETY: as above.
    unsafe { place.add("cuGraphAddChildGraphNode", work) }
}

unsafe extern "C" fn cuGraphAddMemAllocNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    params: *mut AllocParams,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above.
    unsafe { place.add("cuGraphAddMemAllocNode", |session| alloc_node(params, session)) }
}

unsafe extern "C" fn cuGraphAddMemFreeNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    at: CUdeviceptr,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above.
    unsafe { place.add("cuGraphAddMemFreeNode", |session| free_node(at, session)) }
}

unsafe extern "C" fn cuGraphAddNode(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    params: *mut NodeParams,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above.
    unsafe {
        place.add("cuGraphAddNode", |session| {
            NodeParams::work(params, session, LaunchAttributes::default())
        })
    }
}

/// Edges with data, which say that a node need not wait for all of another, order as whole edges do.
unsafe extern "C" fn cuGraphAddNode_v2(
    node: *mut Handle,
    graph: Handle,
    after: *const Handle,
    _data: *const c_void,
    count: usize,
    params: *mut NodeParams,
) -> Code {
    let place = Place { node, graph, after, count };
    // SAFETY: as above.
    unsafe {
        place.add("cuGraphAddNode_v2", |session| {
            NodeParams::work(params, session, LaunchAttributes::default())
        })
    }
}
