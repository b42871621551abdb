//! Graph management: graphs, and the edges between their nodes.

use std::ffi::{c_int, c_uint, c_void};

use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Graph, Session};

chapter![
    cuGraphCreate,
    cuGraphDestroy,
    cuGraphClone,
    cuGraphNodeFindInClone,
    cuGraphAddDependencies,
    cuGraphAddDependencies_v2,
    cuGraphDestroyNode,
    cuGraphGetNodes,
    cuGraphGetRootNodes,
    cuGraphGetEdges,
    cuGraphGetEdges_v2,
    cuGraphNodeGetType,
];

unsafe extern "C" fn cuGraphCreate(graph: *mut Handle, flags: c_uint) -> Code {
    driver_call("cuGraphCreate", Scope::Context, |session| {
        required(graph)?;
        if flags != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put_graph(session, graph, Graph::default()) }
    })
}

/// Keeps a graph, and writes its handle.
///
/// # Safety
///
/// `to` is null, or valid for writing a handle.
pub(super) unsafe fn put_graph(
    session: &mut Session<'_>,
    to: *mut Handle,
    graph: Graph,
) -> Outcome {
    session.captures += 1;
    let index = session.captures;
    session.graphs.graphs.insert(index, graph);
    // SAFETY: by this function's contract.
    unsafe { put(to, session.handle(Kind::Graph, index)) }
}

extern "C" fn cuGraphDestroy(graph: Handle) -> Code {
    driver_call("cuGraphDestroy", Scope::Context, |session| {
        let index = session.graph_index(graph)?;
        session.graphs.graphs.remove(&index).map(drop).ok_or(ERROR_INVALID_VALUE)?;
        session.release_graph_addresses();
        Ok(())
    })
}

impl Session<'_> {
    /// Returns the index of a graph. A handle of anything else is an invalid value (as observed on
    /// an H200, of null).
    pub(super) fn graph_index(&self, graph: Handle) -> Outcome<u32> {
        self.index_of(Kind::Graph, graph).map_err(|_| ERROR_INVALID_VALUE)
    }

    /// Returns the index of a node, as [`graph_index`](Self::graph_index) does of a graph.
    pub(super) fn node_index(&self, node: Handle) -> Outcome<u32> {
        self.index_of(Kind::GraphNode, node).map_err(|_| ERROR_INVALID_VALUE)
    }

    /// Returns the index of an executable graph, as [`graph_index`](Self::graph_index) does of a
    /// graph.
    pub(super) fn executable_index(&self, executable: Handle) -> Outcome<u32> {
        self.index_of(Kind::GraphExec, executable).map_err(|_| ERROR_INVALID_VALUE)
    }
}

unsafe extern "C" fn cuGraphClone(copy: *mut Handle, graph: Handle) -> Code {
    driver_call("cuGraphClone", Scope::Context, |session| {
        required(copy)?;
        let original = graph_of(session, graph)?.clone();
        if original.has_memory() {
            return Err(ERROR_NOT_SUPPORTED); // as the manual says
        }
        let copied = session.graphs.copy(&original);
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put_graph(session, copy, copied) }
    })
}

/// Returns the graph of a handle.
pub(super) fn graph_of<'a>(session: &'a mut Session<'_>, graph: Handle) -> Outcome<&'a mut Graph> {
    let index = session.graph_index(graph)?;
    session.graphs.graph(index)
}

unsafe extern "C" fn cuGraphNodeFindInClone(
    found: *mut Handle,
    node: Handle,
    clone: Handle,
) -> Code {
    driver_call("cuGraphNodeFindInClone", Scope::Context, |session| {
        let node = session.node_index(node)?;
        let mut nodes = graph_of(session, clone)?.nodes.iter();
        let copy = nodes.find(|(_, copy)| copy.original == Some(node)).map(|(id, _)| *id);
        let copy = copy.ok_or(ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(found, session.handle(Kind::GraphNode, copy)) }
    })
}

/// # Safety
///
/// There are `count` handles at `nodes`.
pub(super) unsafe fn read_nodes(
    session: &Session<'_>,
    nodes: *const Handle,
    count: usize,
) -> Outcome<Vec<u32>> {
    if count > 0 && nodes.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    let read = |i| session.node_index(unsafe { nodes.add(i).read_unaligned() });
    (0..count).map(read).collect()
}

unsafe extern "C" fn cuGraphAddDependencies(
    graph: Handle,
    from: *const Handle,
    to: *const Handle,
    count: usize,
) -> Code {
    // SAFETY: by the driver's contract there are `count` nodes at both.
    unsafe { add_edges("cuGraphAddDependencies", graph, from, to, count) }
}

/// Edges with data, which say that a node need not wait for all of another, order as whole edges
/// do.
unsafe extern "C" fn cuGraphAddDependencies_v2(
    graph: Handle,
    from: *const Handle,
    to: *const Handle,
    _data: *const c_void,
    count: usize,
) -> Code {
    // SAFETY: as above.
    unsafe { add_edges("cuGraphAddDependencies_v2", graph, from, to, count) }
}

/// # Safety
///
/// There are `count` handles at `from` and at `to`.
unsafe fn add_edges(
    name: &'static str,
    graph: Handle,
    from: *const Handle,
    to: *const Handle,
    count: usize,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        // SAFETY: by this function's contract.
        let (from, to) =
            unsafe { (read_nodes(session, from, count)?, read_nodes(session, to, count)?) };
        let graph = graph_of(session, graph)?;
        let is_known = |(from, to): (&u32, &u32)| {
            from != to && graph.nodes.contains_key(from) && graph.nodes.contains_key(to)
        };
        if !from.iter().zip(&to).all(is_known) {
            return Err(ERROR_INVALID_VALUE);
        }
        for (from, to) in from.into_iter().zip(to) {
            if let Some(node) = graph.nodes.get_mut(&to).filter(|node| !node.after.contains(&from))
            {
                node.after.push(from);
            }
        }
        Ok(())
    })
}

/// Removes a node; its edges go with it.
extern "C" fn cuGraphDestroyNode(node: Handle) -> Code {
    driver_call("cuGraphDestroyNode", Scope::Context, |session| {
        let node = session.node_index(node)?;
        session.graphs.remove_node(node)?;
        session.release_graph_addresses();
        Ok(())
    })
}

unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> Code {
    driver_call("cuGraphGetNodes", Scope::Context, |session| {
        let found: Vec<u32> = graph_of(session, graph)?.nodes.keys().copied().collect();
        // SAFETY: the caller has room for the number of nodes that it says.
        unsafe { put_nodes(session, nodes, count, &found) }
    })
}

unsafe extern "C" fn cuGraphGetRootNodes(
    graph: Handle,
    nodes: *mut Handle,
    count: *mut usize,
) -> Code {
    driver_call("cuGraphGetRootNodes", Scope::Context, |session| {
        let nodes_of = graph_of(session, graph)?.nodes.iter();
        let roots = nodes_of.filter(|(_, node)| node.after.is_empty());
        let found: Vec<u32> = roots.map(|(id, _)| *id).collect();
        // SAFETY: as above.
        unsafe { put_nodes(session, nodes, count, &found) }
    })
}

/// Writes nodes, or their number if `to` is null. The places that are left get a null handle.
///
/// # Safety
///
/// `count` is null or writable, and `to` is null or has room for as many handles as `count` says.
pub(super) unsafe fn put_nodes(
    session: &Session<'_>,
    to: *mut Handle,
    count: *mut usize,
    nodes: &[u32],
) -> Outcome {
    required(count)?;
    if !to.is_null() {
        // SAFETY: not null, so valid by this function's contract.
        let room = unsafe { count.read_unaligned() };
        for i in 0..room {
            let node = nodes.get(i).map_or(0, |node| session.handle(Kind::GraphNode, *node));
            // SAFETY: by this function's contract.
            unsafe { put_optional(to.wrapping_add(i), node) };
            if i > nodes.len() {
                break;
            }
        }
    }
    // SAFETY: by this function's contract.
    unsafe { put(count, nodes.len()) }
}

unsafe extern "C" fn cuGraphGetEdges(
    graph: Handle,
    from: *mut Handle,
    to: *mut Handle,
    count: *mut usize,
) -> Code {
    // SAFETY: the caller has room for the number of edges that it says.
    unsafe { put_edges("cuGraphGetEdges", graph, from, to, count) }
}

/// Writes no data of edges: all are whole.
unsafe extern "C" fn cuGraphGetEdges_v2(
    graph: Handle,
    from: *mut Handle,
    to: *mut Handle,
    data: *mut u64,
    count: *mut usize,
) -> Code {
    // SAFETY: as above; the data of an edge has eight bytes.
    unsafe {
        if !data.is_null() && !count.is_null() {
            std::ptr::write_bytes(data, 0, count.read_unaligned().min(1 << 20));
        }
        put_edges("cuGraphGetEdges_v2", graph, from, to, count)
    }
}

/// # Safety
///
/// As [`put_nodes`], of both.
unsafe fn put_edges(
    name: &'static str,
    graph: Handle,
    from: *mut Handle,
    to: *mut Handle,
    count: *mut usize,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        required(count)?;
        let edges = graph_of(session, graph)?.edges();
        let (starts, ends): (Vec<u32>, Vec<u32>) = edges.into_iter().unzip();
        // SAFETY: not null; and by this function's contract.
        unsafe {
            let mut room = count.read_unaligned();
            put_nodes(session, from, &mut room, &starts)?;
            put_nodes(session, to, count, &ends)
        }
    })
}

unsafe extern "C" fn cuGraphNodeGetType(node: Handle, kind: *mut c_int) -> Code {
    driver_call("cuGraphNodeGetType", Scope::Context, |session| {
        let node = session.node_index(node)?;
        let known = session.graphs.node(node)?.work.kind();
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(kind, known) }
    })
}
