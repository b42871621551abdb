//! Stream capture: the capturing streams, the calls that are refused meanwhile, and the threads'
//! capture modes. `crate::machine::graph` has the graphs that are captured.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::graph::read_nodes;
use super::{chapter, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::host::current_context::current_context;
use crate::host::fork::refuse_in_child;
use crate::machine::session::{Scope, Session, driver_call};
use crate::machine::state::{Capture, Machine, Stream, StreamKind};

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

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: a capture forbids unsafe calls to every thread; a thread in
/// this mode obeys the captures of all threads. `THREAD_LOCAL`, 1: a capture forbids them to the
/// capturing thread; a thread in this mode obeys its own captures.
const GLOBAL: c_int = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: a capture forbids nothing on other streams; a thread in this
/// mode obeys no capture.
const RELAXED: c_int = 2;

thread_local! {
    static MODE_OF_THREAD: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Returns whether the calling thread is in the capture mode that it started in, `GLOBAL`.
///
/// For tests of code that exchanges the mode by `cuThreadExchangeStreamCaptureMode` and must
/// restore it.
#[must_use]
pub fn is_capture_mode_global() -> bool {
    MODE_OF_THREAD.get() == GLOBAL
}

/// Puts the calling thread back into the capture mode that it started in.
///
/// For tests that continue after a device was lost: then `cuThreadExchangeStreamCaptureMode` fails,
/// too, and the mode is not restored.
pub fn reset_capture_mode() {
    MODE_OF_THREAD.set(GLOBAL);
}

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

impl Machine {
    /// Returns whether work for the stream becomes part of a graph instead of being executed. Work
    /// for the legacy stream is refused while a blocking stream of its context captures.
    pub(crate) fn captured(&mut self, stream: u32) -> Outcome<bool> {
        let this = &self.streams[stream as usize];
        if let Some(capture) = this.capture {
            return if capture.invalidated {
                Err(ERROR_STREAM_CAPTURE_INVALIDATED)
            } else {
                Ok(true)
            };
        }
        let mut implicit = false;
        for capture in self.captures_implied(stream) {
            capture.invalidated = true;
            implicit = true;
        }
        if implicit { Err(ERROR_STREAM_CAPTURE_IMPLICIT) } else { Ok(false) }
    }

    /// Returns the captures of blocking streams of the same context, if the stream is the legacy
    /// one.
    fn captures_implied(&mut self, stream: u32) -> impl Iterator<Item = &mut Capture> {
        let this = &self.streams[stream as usize];
        let legacy = this.kind == StreamKind::Legacy;
        let context = this.context;
        let implied = move |other: &&mut Stream| {
            legacy && other.context == context && other.kind == StreamKind::Blocking
        };
        self.streams.iter_mut().filter(implied).filter_map(|other| other.capture.as_mut())
    }

    /// Refuses a call that a capturing stream does not accept, and invalidates its capture.
    pub(crate) fn refuse_if_capturing(&mut self, stream: u32) -> Outcome {
        match &mut self.streams[stream as usize].capture {
            Some(capture) => {
                capture.invalidated = true;
                Err(ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses a call that the captures in progress forbid to this thread, and invalidates them:
    /// captures of this thread that are not relaxed, and captures of other threads in global mode.
    /// A thread that has exchanged its mode obeys only its own captures, or none.
    pub(crate) fn refuse_while_capturing(&mut self) -> Outcome {
        let of_thread = MODE_OF_THREAD.get();
        if of_thread == RELAXED {
            return Ok(());
        }
        let me = std::thread::current().id();
        let mut refused = false;
        for stream in &mut self.streams {
            if let Some(capture) = &mut stream.capture
                && capture.mode != RELAXED
                && (capture.by == me || (capture.mode == GLOBAL && of_thread == GLOBAL))
            {
                capture.invalidated = true;
                refused = true;
            }
        }
        if refused { Err(ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses a call while any stream of a context captures, in whatever modes, and invalidates
    /// those captures.
    pub(crate) fn refuse_while_any_captures(&mut self, context: u32) -> Outcome {
        let mut refused = false;
        for stream in self.streams.iter_mut().filter(|stream| stream.context == context) {
            if let Some(capture) = &mut stream.capture {
                capture.invalidated = true;
                refused = true;
            }
        }
        if refused { Err(ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Invalidates the capture, which can then only be ended.
    pub(crate) fn invalidate(&mut self, capture: u32) {
        for stream in &mut self.streams {
            if let Some(this) = stream.capture.as_mut().filter(|this| this.id == capture) {
                this.invalidated = true;
            }
        }
    }

    /// Returns whether a wait belongs to a capture. A stream that waits for a captured event joins
    /// the capture; a capturing stream that waits for an event from outside of its capture
    /// invalidates it.
    pub(crate) fn wait_inside_capture(&mut self, stream: u32, event: u32) -> Outcome<bool> {
        let captured = self.event(event)?.captured;
        match (self.streams[stream as usize].capture, captured) {
            (None, None) => Ok(false),
            (None, Some(captured)) => {
                let mut under_way = self.streams.iter().filter_map(|stream| stream.capture);
                let capture = under_way.find(|capture| capture.id == captured.id);
                let capture = capture.ok_or(ERROR_CAPTURED_EVENT)?;
                let joined = Some(Capture { origin: false, ..capture });
                self.streams[stream as usize].capture = joined;
                Ok(true)
            }
            (Some(capture), Some(other)) if capture.id == other.id => Ok(true),
            (Some(capture), _) => {
                self.invalidate(capture.id);
                Err(ERROR_STREAM_CAPTURE_ISOLATION)
            }
        }
    }

    /// Frees the memory of destroyed pools that have no live block any more.
    pub(crate) fn bury_dead_pools(&mut self) {
        for index in 0..self.dead_pools.len() {
            let pool = self.dead_pools[index] as usize;
            if self.pools[pool].blocks_out() == 0 {
                self.trim(pool, 0);
            }
        }
    }
}
