//! Executable graphs: instantiation, updates and launches.

use std::ffi::{c_char, c_int, c_ulonglong};

use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{NodeWork, Session, graph::AUTO_FREE_ON_LAUNCH};

chapter![
    cuGraphInstantiateWithFlags,
    cuGraphInstantiate_v2,
    cuGraphExecGetFlags,
    cuGraphInstantiateWithParams,
    cuGraphExecUpdate,
    cuGraphExecUpdate_v2,
    cuGraphUpload,
    cuGraphLaunch,
    cuGraphExecDestroy,
];

/// `CUDA_GRAPH_INSTANTIATE_FLAG_*`: free memory of the graph on launch, upload, launches from the
/// device, priorities.
const FLAGS: c_ulonglong = 0xf;
const DEVICE_LAUNCH: c_ulonglong = 4;

unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut Handle,
    graph: Handle,
    flags: c_ulonglong,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { instantiate("cuGraphInstantiateWithFlags", executable, graph, flags) }
}

/// Writes no log.
pub(super) unsafe extern "C" fn cuGraphInstantiate_v2(
    executable: *mut Handle,
    graph: Handle,
    error_node: *mut Handle,
    log: *mut c_char,
    log_bytes: usize,
) -> Code {
    // SAFETY: the caller's pointers are null or writable.
    unsafe {
        put_optional(error_node, 0);
        if log_bytes > 0 {
            put_optional(log, 0);
        }
        instantiate("cuGraphInstantiate_v2", executable, graph, 0)
    }
}

/// # Safety
///
/// `executable` is null, or valid for writing a handle.
unsafe fn instantiate(
    name: &'static str,
    executable: *mut Handle,
    graph: Handle,
    flags: c_ulonglong,
) -> Code {
    driver_call(name, Scope::Context, |session| {
        required(executable)?;
        // A graph that the device launches cannot free memory.
        if flags & !FLAGS != 0 || flags & DEVICE_LAUNCH != 0 && flags & AUTO_FREE_ON_LAUNCH != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if flags & DEVICE_LAUNCH != 0 {
            return Err(ERROR_NOT_SUPPORTED);
        }
        let graph = session.graph_index(graph)?;
        let context = session.context()?;
        let made = session.instantiate(graph, flags, context)?;
        // SAFETY: by this function's contract.
        unsafe { put(executable, session.handle(Kind::GraphExec, made)) }
    })
}

unsafe extern "C" fn cuGraphExecGetFlags(executable: Handle, flags: *mut c_ulonglong) -> Code {
    driver_call("cuGraphExecGetFlags", Scope::Context, |session| {
        let index = session.executable_index(executable)?;
        let known = session.graphs.executable(index)?.flags;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, known) }
    })
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct InstantiateParams {
    flags: c_ulonglong,
    upload_stream: Handle,
    error_node: Handle,
    result: c_int,
}

pub(super) unsafe extern "C" fn cuGraphInstantiateWithParams(
    executable: *mut Handle,
    graph: Handle,
    params: *mut InstantiateParams,
) -> Code {
    const ERROR: c_int = 1;
    if params.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract valid for reading and writing; so is
    // `executable`.
    unsafe {
        let read = params.read_unaligned();
        let code = instantiate("cuGraphInstantiateWithParams", executable, graph, read.flags);
        let result = if code == SUCCESS { 0 } else { ERROR };
        params.write_unaligned(InstantiateParams { error_node: 0, result, ..read });
        code
    }
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UpdateResult {
    result: c_int,
    node: Handle,
    from: Handle,
}

unsafe extern "C" fn cuGraphExecUpdate_v2(
    executable: Handle,
    graph: Handle,
    result: *mut UpdateResult,
) -> Code {
    driver_call("cuGraphExecUpdate_v2", Scope::Context, |session| {
        required(result)?;
        let (code, outcome) = update(session, executable, graph)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(result, UpdateResult { result: code, node: 0, from: 0 })? };
        outcome
    })
}

unsafe extern "C" fn cuGraphExecUpdate(
    executable: Handle,
    graph: Handle,
    node: *mut Handle,
    result: *mut c_int,
) -> Code {
    driver_call("cuGraphExecUpdate", Scope::Context, |session| {
        required(result)?;
        let (code, outcome) = update(session, executable, graph)?;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put_optional(node, 0);
            put(result, code)?;
        }
        outcome
    })
}

/// Returns the `CUgraphExecUpdateResult`, and the result of the call.
fn update(
    session: &mut Session<'_>,
    executable: Handle,
    graph: Handle,
) -> Outcome<(c_int, Outcome)> {
    let executable = session.executable_index(executable)?;
    let graph = session.graph_index(graph)?;
    Ok(match session.update(executable, graph)? {
        None => (0, Ok(())),
        Some(mismatch) => (mismatch as c_int, Err(ERROR_GRAPH_EXEC_UPDATE_FAILURE)),
    })
}

pub(super) extern "C" fn cuGraphUpload(executable: Handle, stream: Handle) -> Code {
    driver_call("cuGraphUpload", Scope::Stream(stream), |session| {
        session.stream(stream)?;
        let index = session.executable_index(executable)?;
        session.reserve_graph_memory(index)
    })
}

pub(super) extern "C" fn cuGraphLaunch(executable: Handle, stream: Handle) -> Code {
    driver_call("cuGraphLaunch", Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        let index = session.executable_index(executable)?;
        if session.captured(stream)? {
            let child = session.graphs.executable(index)?.as_graph();
            return session.capture(stream, || NodeWork::Child(child)).map(drop);
        }
        session.launch_graph(index, stream)
    })
}

extern "C" fn cuGraphExecDestroy(executable: Handle) -> Code {
    driver_call("cuGraphExecDestroy", Scope::Context, |session| {
        let index = session.executable_index(executable)?;
        session.destroy_executable(index)?;
        session.release_graph_addresses();
        Ok(())
    })
}
