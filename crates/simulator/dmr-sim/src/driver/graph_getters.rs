//! Graph management: what a program has made a node of: its order with other nodes, and the
//! parameters of some kinds.

use super::graph::put_nodes;
use super::graph_params::{AllocParams, HostParams};
use super::{Scope, chapter, driver_call, put};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{NodeWork, Session};

chapter![
    cuGraphNodeGetDependencies,
    cuGraphNodeGetDependencies_v2,
    cuGraphNodeGetDependentNodes,
    cuGraphNodeGetDependentNodes_v2,
    cuGraphHostNodeGetParams,
    cuGraphMemAllocNodeGetParams,
    cuGraphMemFreeNodeGetParams,
    cuGraphEventRecordNodeGetEvent,
    cuGraphEventWaitNodeGetEvent,
];

/// Writes the nodes before (`after` is false) or after a node. No data of edges: all are whole.
///
/// # Safety
///
/// `count` is null or writable; `nodes` and `data` are null or have room for as many as it says.
unsafe fn neighbours(
    name: &'static str,
    node: Handle,
    after: bool,
    nodes: *mut Handle,
    data: *mut u64,
    count: *mut usize,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        let index = session.node_index(node)?;
        let before = session.graphs.node(index)?.after.clone();
        let found = if after { session.graphs.nodes_after(index) } else { before };
        // SAFETY: by this function's contract.
        unsafe {
            if !data.is_null() && !count.is_null() {
                let room = count.read_unaligned();
                std::ptr::write_bytes(data, 0, room.min(found.len()));
            }
            put_nodes(session, nodes, count, &found)
        }
    })
}

unsafe extern "C" fn cuGraphNodeGetDependencies(
    node: Handle,
    nodes: *mut Handle,
    count: *mut usize,
) -> Code {
    let none = std::ptr::null_mut();
    // SAFETY: the driver's contract is that of `neighbours`; so for all four.
    unsafe { neighbours("cuGraphNodeGetDependencies", node, false, nodes, none, count) }
}

unsafe extern "C" fn cuGraphNodeGetDependencies_v2(
    node: Handle,
    nodes: *mut Handle,
    data: *mut u64,
    count: *mut usize,
) -> Code {
    // SAFETY: as above.
    unsafe { neighbours("cuGraphNodeGetDependencies_v2", node, false, nodes, data, count) }
}

unsafe extern "C" fn cuGraphNodeGetDependentNodes(
    node: Handle,
    nodes: *mut Handle,
    count: *mut usize,
) -> Code {
    let none = std::ptr::null_mut();
    // SAFETY: as above.
    unsafe { neighbours("cuGraphNodeGetDependentNodes", node, true, nodes, none, count) }
}

unsafe extern "C" fn cuGraphNodeGetDependentNodes_v2(
    node: Handle,
    nodes: *mut Handle,
    data: *mut u64,
    count: *mut usize,
) -> Code {
    // SAFETY: as above.
    unsafe { neighbours("cuGraphNodeGetDependentNodes_v2", node, true, nodes, data, count) }
}

/// Writes what `of` returns for the work of a node; `None` is for nodes of other kinds.
///
/// # Safety
///
/// `to` is null or writable.
unsafe fn parameters<T>(
    name: &'static str,
    node: Handle,
    to: *mut T,
    of: impl FnOnce(&Session<'_>, &NodeWork) -> Option<T>,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        let index = session.node_index(node)?;
        let work = session.graphs.node(index)?.work.clone();
        // SAFETY: by this function's contract.
        unsafe { put(to, of(session, &work).ok_or(ERROR_INVALID_VALUE)?) }
    })
}

unsafe extern "C" fn cuGraphHostNodeGetParams(node: Handle, params: *mut HostParams) -> Code {
    let of = |_: &Session<'_>, work: &NodeWork| match work {
        NodeWork::Host(call) => Some(HostParams::of(call)),
        _ => None,
    };
    // SAFETY: the caller's pointer is null or writable; so for all kinds.
    unsafe { parameters("cuGraphHostNodeGetParams", node, params, of) }
}

unsafe extern "C" fn cuGraphMemAllocNodeGetParams(node: Handle, params: *mut AllocParams) -> Code {
    let of = |session: &Session<'_>, work: &NodeWork| match work {
        NodeWork::Allocate(memory) => {
            Some(AllocParams::of(memory, session.shared.ordinals[memory.device]))
        }
        _ => None,
    };
    // SAFETY: as above.
    unsafe { parameters("cuGraphMemAllocNodeGetParams", node, params, of) }
}

unsafe extern "C" fn cuGraphMemFreeNodeGetParams(node: Handle, at: *mut CUdeviceptr) -> Code {
    let of = |_: &Session<'_>, work: &NodeWork| match work {
        NodeWork::Free(at) => Some(*at),
        _ => None,
    };
    // SAFETY: as above.
    unsafe { parameters("cuGraphMemFreeNodeGetParams", node, at, of) }
}

unsafe extern "C" fn cuGraphEventRecordNodeGetEvent(node: Handle, event: *mut Handle) -> Code {
    let of = |session: &Session<'_>, work: &NodeWork| match work {
        NodeWork::Record(event) => Some(session.handle(Kind::Event, *event)),
        _ => None,
    };
    // SAFETY: as above.
    unsafe { parameters("cuGraphEventRecordNodeGetEvent", node, event, of) }
}

unsafe extern "C" fn cuGraphEventWaitNodeGetEvent(node: Handle, event: *mut Handle) -> Code {
    let of = |session: &Session<'_>, work: &NodeWork| match work {
        NodeWork::Wait(event) => Some(session.handle(Kind::Event, *event)),
        _ => None,
    };
    // SAFETY: as above.
    unsafe { parameters("cuGraphEventWaitNodeGetEvent", node, event, of) }
}
