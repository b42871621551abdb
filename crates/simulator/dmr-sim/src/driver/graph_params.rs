//! Graph management: the parameters of nodes, and changes of them.

use std::ffi::{c_int, c_uint, c_void};

use super::copies::copy_work;
use super::copies_3d::Copy3D;
use super::graph::graph_of;
use super::launch::{KernelParams, LaunchAttributes};
use super::memset::Area;
use super::{Scope, chapter, driver_call};
use crate::abi::*;
use crate::machine::{GraphMemory, HostCall, HostPtr, NodeWork, Session};

chapter![
    cuGraphKernelNodeSetParams,
    cuGraphKernelNodeSetParams_v2,
    cuGraphMemcpyNodeSetParams,
    cuGraphMemsetNodeSetParams,
    cuGraphHostNodeSetParams,
    cuGraphEventRecordNodeSetEvent,
    cuGraphEventWaitNodeSetEvent,
    cuGraphNodeSetParams,
    cuGraphExecKernelNodeSetParams,
    cuGraphExecKernelNodeSetParams_v2,
    cuGraphExecMemcpyNodeSetParams,
    cuGraphExecMemsetNodeSetParams,
    cuGraphExecHostNodeSetParams,
    cuGraphExecEventRecordNodeSetEvent,
    cuGraphExecEventWaitNodeSetEvent,
    cuGraphExecNodeSetParams,
];

/// `CUDA_MEMSET_NODE_PARAMS`: the part that all versions have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemsetParams {
    at: CUdeviceptr,
    pitch: usize,
    value: c_uint,
    element: c_uint,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HostParams {
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

impl HostParams {
    pub(super) fn of(call: &HostCall) -> Self {
        Self { function: Some(call.function), data: call.data.0 }
    }
}

/// Returns the work of a memset.
///
/// # Safety
///
/// `params` is null or valid.
pub(super) unsafe fn fill_node(params: *const MemsetParams) -> Outcome<NodeWork> {
    if params.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so valid by this function's contract.
    let params = unsafe { params.read_unaligned() };
    let MemsetParams { at, pitch, value, element, width, height } = params;
    if ![1, 2, 4].contains(&element) {
        return Err(ERROR_INVALID_VALUE);
    }
    let area = Area { at, pitch, width, height };
    area.fill(&value.to_le_bytes()[..element as usize]).map(NodeWork::Fill)
}

/// Returns the work of a call of a host function.
///
/// # Safety
///
/// `params` is null or valid.
pub(super) unsafe fn host_node(params: *const HostParams) -> Outcome<NodeWork> {
    if params.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so valid by this function's contract.
    let HostParams { function, data } = unsafe { params.read_unaligned() };
    let function = function.ok_or(ERROR_INVALID_VALUE)?;
    Ok(NodeWork::Host(HostCall { function, data: HostPtr(data) }))
}

/// Returns the work of a copy.
///
/// # Safety
///
/// `copy` is null or valid.
pub(super) unsafe fn copy_node(
    copy: *const Copy3D,
    session: &mut Session<'_>,
) -> Outcome<NodeWork> {
    if copy.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so valid by this function's contract.
    let copy = unsafe { copy.read_unaligned() };
    let (to, from) = copy.rows()?;
    let work = copy_work(session, to, from, copy.pageable())?;
    Ok(work.map_or(NodeWork::Empty, NodeWork::Copy))
}

/// Returns the work of a child graph, which is copied: later changes of it have no effect on the
/// node.
pub(super) fn child_node(child: Handle, session: &mut Session<'_>) -> Outcome<NodeWork> {
    let child = graph_of(session, child)?.clone();
    // As the manual says.
    if child.has_memory() { Err(ERROR_NOT_SUPPORTED) } else { Ok(NodeWork::Child(child)) }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: the properties of a pool, rights of other devices, the size, and
/// the address, which the call writes.
#[repr(C)]
pub(super) struct AllocParams {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location: c_int,
    _rest: [u64; 9],
    _rights: *const c_void,
    right_count: usize,
    bytes: usize,
    at: CUdeviceptr,
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED` and `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: c_int = 1;
const DEVICE: c_int = 1;

impl AllocParams {
    pub(super) fn of(memory: &GraphMemory, ordinal: usize) -> Self {
        Self {
            allocation_type: PINNED,
            handle_types: 0,
            location_type: DEVICE,
            location: ordinal as c_int,
            _rest: [0; 9],
            _rights: std::ptr::null(),
            right_count: 0,
            bytes: memory.bytes as usize,
            at: memory.at,
        }
    }
}

/// Takes addresses for the memory of a node, and returns the work of an allocation there.
///
/// # Safety
///
/// `params` is null or valid for reading and writing.
pub(super) unsafe fn alloc_node(
    params: *mut AllocParams,
    session: &mut Session<'_>,
) -> Outcome<NodeWork> {
    if params.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so valid by this function's contract.
    let read = unsafe { params.read_unaligned() };
    if (read.allocation_type, read.handle_types, read.location_type) != (PINNED, 0, DEVICE) {
        return Err(ERROR_INVALID_VALUE);
    }
    if read.right_count > 0 {
        return Err(ERROR_NOT_SUPPORTED);
    }
    let device = session.device_index(read.location)?;
    let memory = session.new_graph_memory(device, read.bytes as u64)?;
    // SAFETY: as above.
    unsafe { (&raw mut (*params).at).write_unaligned(memory.at) };
    Ok(NodeWork::Allocate(memory))
}

/// Returns the work of a free of memory that a node of a graph allocates.
pub(super) fn free_node(at: CUdeviceptr, session: &Session<'_>) -> Outcome<NodeWork> {
    match session.graphs.graphs.values().any(|graph| graph.allocates(at)) {
        true => Ok(NodeWork::Free(at)),
        false => Err(ERROR_INVALID_VALUE),
    }
}

/// `CUgraphNodeParams`: a `CUgraphNodeType`, and the parameters of that kind of node.
#[repr(C)]
pub(super) struct NodeParams {
    kind: c_int,
    _reserved: [c_int; 3],
    of_kind: [u64; 29],
}

impl NodeParams {
    /// Returns the work of a node with these parameters; of a kernel, with these attributes.
    ///
    /// # Safety
    ///
    /// `this` is null or valid, with the pointers in it.
    pub(super) unsafe fn work(
        this: *const Self,
        session: &mut Session<'_>,
        attributes: LaunchAttributes,
    ) -> Outcome<NodeWork> {
        if this.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so valid by this function's contract; so are the parameters of its
        // kind.
        unsafe {
            let of_kind = (&raw const (*this).of_kind).cast::<u64>();
            let first = of_kind.read_unaligned();
            match (&raw const (*this).kind).read_unaligned() {
                0 => KernelParams::work_v2(of_kind.cast(), session, attributes),
                // Flags, and a context, in front of the description.
                1 => copy_node(of_kind.add(2).cast(), session),
                2 => fill_node(of_kind.cast()),
                3 => host_node(of_kind.cast()),
                4 => child_node(first, session),
                5 => Ok(NodeWork::Empty),
                6 => session.event_index(first).map(NodeWork::Wait),
                7 => session.event_index(first).map(NodeWork::Record),
                10 => alloc_node(of_kind.cast_mut().cast(), session),
                11 => free_node(first, session),
                8..=13 => Err(ERROR_NOT_SUPPORTED), // semaphores, words, conditions
                _ => Err(ERROR_INVALID_VALUE),
            }
        }
    }
}

/// Refuses work of nodes that cannot be changed: those of memory.
fn changeable(work: NodeWork) -> Outcome<NodeWork> {
    match work {
        NodeWork::Allocate(_) | NodeWork::Free(_) => Err(ERROR_NOT_SUPPORTED),
        work => Ok(work),
    }
}

/// Replaces the work of a node by other work of the same kind. A kernel keeps its attributes, which
/// `work` gets.
fn set(
    name: &'static str,
    node: Handle,
    work: impl FnOnce(&mut Session<'_>, LaunchAttributes) -> Outcome<NodeWork>,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        let index = session.node_index(node)?;
        let known = &session.graphs.node(index)?.work;
        let kind = known.kind();
        let attributes = LaunchAttributes::of(known);
        let work = changeable(work(session, attributes)?)?;
        if work.kind() != kind {
            return Err(ERROR_INVALID_VALUE);
        }
        session.graphs.node(index)?.work = work;
        Ok(())
    })
}

/// Replaces the work of a node in an executable graph, as [`set`] does in a graph.
fn set_in(
    name: &'static str,
    executable: Handle,
    node: Handle,
    work: impl FnOnce(&mut Session<'_>, LaunchAttributes) -> Outcome<NodeWork>,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        let executable = session.executable_index(executable)?;
        let index = session.node_index(node)?;
        let known = &session.graphs.executable(executable)?.node(index)?.work;
        let kind = known.kind();
        let attributes = LaunchAttributes::of(known);
        let work = changeable(work(session, attributes)?)?;
        if work.kind() != kind {
            return Err(ERROR_INVALID_VALUE);
        }
        session.graphs.executable(executable)?.node(index)?.work = work;
        Ok(())
    })
}

/// Makes the two functions that change the parameters of a kind of node: in a graph, and in an
/// executable graph.
macro_rules! setters {
    ($($in_graph:ident $in_executable:ident ($($argument:ident: $type:ty),*) $work:expr;)*) => {$(
        unsafe extern "C" fn $in_graph(node: Handle, $($argument: $type),*) -> Code {
            set(stringify!($in_graph), node, $work)
        }

        unsafe extern "C" fn $in_executable(
            executable: Handle,
            node: Handle,
            $($argument: $type),*
        ) -> Code {
            set_in(stringify!($in_executable), executable, node, $work)
        }
    )*};
}

setters! {
    cuGraphKernelNodeSetParams cuGraphExecKernelNodeSetParams (params: *const KernelParams)
        // SAFETY: by the driver's contract the parameters are null or those of such a node.
        |session, kept| unsafe { KernelParams::work(params, session, kept) };
    cuGraphKernelNodeSetParams_v2 cuGraphExecKernelNodeSetParams_v2 (params: *const KernelParams)
        // SAFETY: by the driver's contract the parameters are null or those of such a node.
        |session, kept| unsafe { KernelParams::work_v2(params, session, kept) };
    cuGraphHostNodeSetParams cuGraphExecHostNodeSetParams (params: *const HostParams)
        // SAFETY: by the driver's contract the parameters are null or those of such a node.
        |_, _| unsafe { host_node(params) };
    cuGraphEventRecordNodeSetEvent cuGraphExecEventRecordNodeSetEvent (event: Handle)
        |session, _| session.event_index(event).map(NodeWork::Record);
    cuGraphEventWaitNodeSetEvent cuGraphExecEventWaitNodeSetEvent (event: Handle)
        |session, _| session.event_index(event).map(NodeWork::Wait);
    cuGraphNodeSetParams cuGraphExecNodeSetParams (params: *const NodeParams)
        // SAFETY: by the driver's contract the parameters are null or those of such a node.
        |session, kept| unsafe { NodeParams::work(params, session, kept) };
}

// The contexts are known by the addresses.

unsafe extern "C" fn cuGraphMemcpyNodeSetParams(node: Handle, copy: *const Copy3D) -> Code {
    // SAFETY: the description is null or, by the driver's contract, valid.
    set("cuGraphMemcpyNodeSetParams", node, |session, _| unsafe { copy_node(copy, session) })
}

unsafe extern "C" fn cuGraphExecMemcpyNodeSetParams(
    executable: Handle,
    node: Handle,
    copy: *const Copy3D,
    _context: Handle,
) -> Code {
    // SAFETY: as above.
    set_in("cuGraphExecMemcpyNodeSetParams", executable, node, |session, _| unsafe {
        copy_node(copy, session)
    })
}

unsafe extern "C" fn cuGraphMemsetNodeSetParams(node: Handle, params: *const MemsetParams) -> Code {
    // SAFETY: the parameters are null or, by the driver's contract, valid.
    set("cuGraphMemsetNodeSetParams", node, |_, _| unsafe { fill_node(params) })
}

unsafe extern "C" fn cuGraphExecMemsetNodeSetParams(
    executable: Handle,
    node: Handle,
    params: *const MemsetParams,
    _context: Handle,
) -> Code {
    // SAFETY: as above.
    set_in("cuGraphExecMemsetNodeSetParams", executable, node, |_, _| unsafe { fill_node(params) })
}
