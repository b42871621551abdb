//! Stream capture: the capturing streams, the calls that are refused meanwhile, and the threads'
//! capture modes. `crate::machine::graph` has the graphs that are captured.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::graph::read_nodes;
use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::host::{
    capture_mode::{GLOBAL, MODE_OF_THREAD, RELAXED},
    current_context::current_context,
    fork::refuse_in_child,
};
use crate::machine::{Capture, Session, StreamKind};

chapter![
    cuStreamBeginCapture_v2,
    cuStreamEndCapture,
    cuStreamIsCapturing,
    cuStreamGetCaptureInfo,
    cuStreamGetCaptureInfo_v2,
    cuStreamGetCaptureInfo_v3,
    cuStreamUpdateCaptureDependencies,
    cuStreamUpdateCaptureDependencies_v2,
    cuThreadExchangeStreamCaptureMode,
];

pub(super) extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> Code {
    driver_call("cuStreamBeginCapture_v2", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let id = session.captures + 1;
        let this = &mut session.streams[index as usize];
        if this.kind == StreamKind::Legacy {
            return Err(ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if this.capture.is_some() {
            return Err(ERROR_ILLEGAL_STATE);
        }
        if !(GLOBAL..=RELAXED).contains(&mode) {
            return Err(ERROR_INVALID_VALUE);
        }
        let by = std::thread::current().id();
        this.capture = Some(Capture { id, mode, origin: true, by, invalidated: false });
        session.captures = id;
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> Code {
    driver_call("cuStreamEndCapture", Scope::Stream(stream), |session| {
        required(graph)?;
        let index = session.stream(stream)?;
        let capture = session.streams[index as usize].capture.ok_or(ERROR_ILLEGAL_STATE)?;
        if !capture.origin {
            return Err(ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        for other in &mut session.streams {
            if other.capture.is_some_and(|other| other.id == capture.id) {
                other.capture = None;
            }
        }
        let captured = session.end_capture(capture.id, index);
        let captured = match capture.invalidated {
            true => Err(ERROR_STREAM_CAPTURE_INVALIDATED),
            false => captured,
        };
        match captured {
            Ok(captured) => {
                // The handle is that of the capture in progress.
                session.graphs.graphs.insert(capture.id, captured);
                // SAFETY: the caller's pointer is null or writable.
                unsafe { put(graph, session.handle(Kind::Graph, capture.id)) }
            }
            Err(code) => {
                // SAFETY: as above.
                unsafe { put(graph, 0)? };
                Err(code)
            }
        }
    })
}

/// The status and the number of the capture of a stream. Refused for the legacy stream while a
/// blocking stream of its context captures, which goes on.
fn capture_of(session: &mut Session<'_>, stream: Handle) -> Outcome<(c_int, c_ulonglong)> {
    let index = session.stream(stream)?;
    if session.captures_implied(index).next().is_some() {
        return Err(ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    Ok(match session.streams[index as usize].capture {
        None => (CAPTURE_NONE, 0),
        Some(Capture { invalidated: true, id, .. }) => (CAPTURE_INVALIDATED, id.into()),
        Some(Capture { id, .. }) => (CAPTURE_ACTIVE, id.into()),
    })
}

pub(super) unsafe extern "C" fn cuStreamGetCaptureInfo(
    stream: Handle,
    status: *mut c_int,
    id: *mut c_ulonglong,
) -> Code {
    driver_call("cuStreamGetCaptureInfo", Scope::Stream(stream), |session| {
        let (known, number) = capture_of(session, stream)?;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put_optional(id, number);
            put(status, known)
        }
    })
}

pub(super) unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: *mut c_int,
    id: *mut c_ulonglong,
    graph: *mut Handle,
    nodes: *mut *const Handle,
    count: *mut usize,
) -> Code {
    // SAFETY: the caller's pointers are null or writable.
    unsafe { put_capture("cuStreamGetCaptureInfo_v2", stream, status, id, (graph, nodes, count)) }
}

/// Writes no data of edges: all are whole.
pub(super) unsafe extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    status: *mut c_int,
    id: *mut c_ulonglong,
    graph: *mut Handle,
    nodes: *mut *const Handle,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Code {
    // SAFETY: as above.
    unsafe {
        put_optional(edges, std::ptr::null());
        put_capture("cuStreamGetCaptureInfo_v3", stream, status, id, (graph, nodes, count))
    }
}

/// Writes status and number; of a capture in progress also its graph, and the nodes that the next
/// one of the stream comes after, which stay valid until the next call about the stream.
///
/// # Safety
///
/// The pointers are null, or valid for writing.
unsafe fn put_capture(
    name: &'static str,
    stream: Handle,
    status: *mut c_int,
    id: *mut c_ulonglong,
    (graph, nodes, count): (*mut Handle, *mut *const Handle, *mut usize),
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let (known, number) = capture_of(session, stream)?;
        let mut tail = Tail { graph: 0, nodes: std::ptr::null(), count: 0 };
        if known == CAPTURE_ACTIVE {
            let index = session.stream(stream)?;
            tail = tail_of(session, number as u32, index);
        }
        // SAFETY: by this function's contract.
        unsafe {
            put_optional(id, number);
            put_optional(graph, tail.graph);
            put_optional(nodes, tail.nodes);
            put_optional(count, tail.count);
            put(status, known)
        }
    })
}

/// The graph of a capture, and the nodes that the next node of a stream comes after.
struct Tail {
    graph: Handle,
    nodes: *const Handle,
    count: usize,
}

fn tail_of(session: &mut Session<'_>, capture: u32, stream: u32) -> Tail {
    let captured = session.graphs.captures.entry(capture).or_default();
    let nodes = captured.tails.get(&stream).cloned().unwrap_or_default();
    let handles: Vec<Handle> =
        nodes.iter().map(|node| session.handle(Kind::GraphNode, *node)).collect();
    let graph = session.handle(Kind::Graph, capture);
    let captured = session.graphs.captures.entry(capture).or_default();
    let known = captured.handles.entry(stream).or_default();
    *known = handles;
    Tail { graph, nodes: known.as_ptr(), count: known.len() }
}

pub(super) unsafe extern "C" fn cuStreamUpdateCaptureDependencies(
    stream: Handle,
    nodes: *const Handle,
    count: usize,
    flags: c_uint,
) -> Code {
    // SAFETY: by the driver's contract there are `count` nodes.
    unsafe { update("cuStreamUpdateCaptureDependencies", stream, nodes, count, flags) }
}

/// Edges with data, which say that a node need not wait for all of another, order as whole edges
/// do.
pub(super) unsafe extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    stream: Handle,
    nodes: *const Handle,
    _data: *const c_void,
    count: usize,
    flags: c_uint,
) -> Code {
    // SAFETY: as above.
    unsafe { update("cuStreamUpdateCaptureDependencies_v2", stream, nodes, count, flags) }
}

/// Adds nodes that the next node of a capturing stream comes after, or replaces them.
///
/// # Safety
///
/// There are `count` handles at `nodes`.
unsafe fn update(
    name: &'static str,
    stream: Handle,
    nodes: *const Handle,
    count: usize,
    flags: c_uint,
) -> Code {
    const ADD: c_uint = 0;
    const SET: c_uint = 1;
    driver_call(name, Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let capture = session.streams[index as usize].capture.ok_or(ERROR_ILLEGAL_STATE)?;
        if capture.invalidated {
            return Err(ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        // SAFETY: by this function's contract.
        let nodes = unsafe { read_nodes(session, nodes, count)? };
        let captured = session.graphs.captures.entry(capture.id).or_default();
        if !nodes.iter().all(|node| captured.graph.nodes.contains_key(node)) {
            return Err(ERROR_INVALID_VALUE);
        }
        let tail = captured.tails.entry(index).or_default();
        match flags {
            ADD => {}
            SET => tail.clear(),
            _ => return Err(ERROR_INVALID_VALUE),
        }
        tail.extend(nodes);
        tail.sort_unstable();
        tail.dedup();
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut c_int) -> Code {
    driver_call("cuStreamIsCapturing", Scope::Stream(stream), |session| {
        let (known, _) = capture_of(session, stream)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(status, known) }
    })
}

unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Code {
    let exchange = || {
        required(mode)?;
        // SAFETY: not null, so valid by the driver's contract.
        let wanted = unsafe { mode.read_unaligned() };
        if !(GLOBAL..=RELAXED).contains(&wanted) {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { put(mode, MODE_OF_THREAD.replace(wanted)) }
    };
    if current_context() == 0 {
        // The mode belongs to the thread: no context is needed.
        return refuse_in_child().and_then(|()| exchange()).err().unwrap_or(SUCCESS);
    }
    driver_call("cuThreadExchangeStreamCaptureMode", Scope::Context, |_| exchange())
}
