//! Event management.

use std::ffi::c_uint;

use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Event, NodeWork};

chapter![
    cuEventCreate,
    cuEventDestroy_v2,
    cuEventRecord,
    cuEventRecordWithFlags,
    cuEventQuery,
    cuEventSynchronize,
    cuEventElapsedTime,
    cuEventElapsedTime_v2,
];

/// `CU_EVENT_INTERPROCESS`, only with `CU_EVENT_DISABLE_TIMING`.
const EVENT_INTERPROCESS: c_uint = 4;
/// All flags that an event can have; the third is `CU_EVENT_BLOCKING_SYNC`.
const EVENT_FLAGS: c_uint = EVENT_INTERPROCESS | EVENT_DISABLE_TIMING | 1;

unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> Code {
    driver_call("cuEventCreate", Scope::Context, |session| {
        required(event)?;
        let is_shared = flags & EVENT_INTERPROCESS != 0;
        let timed = flags & EVENT_DISABLE_TIMING == 0;
        if flags & !EVENT_FLAGS != 0 || is_shared && timed {
            return Err(ERROR_INVALID_VALUE);
        }
        let context = session.context()?;
        let index = session.next_event;
        session.next_event += 1;
        session.events.insert(index, Event { context, timed, recorded: None, captured: None });
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(event, session.handle(Kind::Event, index)) }
    })
}

pub(super) extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    driver_call("cuEventDestroy_v2", Scope::Event(event), |session| {
        // Queued waits were bound at their call and do not need the event any more.
        let index = session.event_index(event)?;
        session.events.remove(&index).map(drop).ok_or(ERROR_INVALID_HANDLE)
    })
}

pub(super) extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    record("cuEventRecord", event, stream, 0)
}

pub(super) extern "C" fn cuEventRecordWithFlags(
    event: Handle,
    stream: Handle,
    flags: c_uint,
) -> Code {
    record("cuEventRecordWithFlags", event, stream, flags)
}

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: in a capture, a node that records or
/// waits at each launch, instead of an edge.
pub(super) const EXTERNAL: c_uint = 1;

fn record(name: &'static str, event: Handle, stream: Handle, flags: c_uint) -> Code {
    driver_call(name, Scope::Event(event), |session| {
        let index = session.event_index(event)?;
        let stream = session.stream(stream)?;
        let context = session.event(index)?.context;
        if session.streams[stream as usize].context != context {
            return Err(ERROR_INVALID_HANDLE);
        }
        let is_external = flags & EXTERNAL != 0;
        if is_external && session.capture(stream, || NodeWork::Record(index))? {
            return Ok(());
        }
        if session.captured(stream)? {
            session.capture_record(stream, index);
            let capture = session.streams[stream as usize].capture;
            session.event(index)?.captured = capture;
            return Ok(());
        }
        session.record_event(index, stream);
        Ok(())
    })
}

extern "C" fn cuEventQuery(event: Handle) -> Code {
    driver_call("cuEventQuery", Scope::Event(event), |session| {
        let index = session.event_index(event)?;
        let event = session.event(index)?;
        if let Some(capture) = event.captured {
            session.invalidate(capture.id);
            return Err(ERROR_CAPTURED_EVENT);
        }
        let recorded = event.recorded.clone();
        session.refuse_while_capturing()?;
        let Some(recorded) = recorded else { return Ok(()) };
        if !session.executed(recorded.epoch) {
            // A query makes progress, so that a loop of queries ends.
            session.run_one_towards(recorded.epoch);
            return Err(ERROR_NOT_READY);
        }
        session.host_learns(&recorded.clock);
        Ok(())
    })
}

extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    driver_call("cuEventSynchronize", Scope::Event(event), |session| {
        let index = session.event_index(event)?;
        let event = session.event(index)?;
        if let Some(capture) = event.captured {
            session.invalidate(capture.id);
            return Err(ERROR_INVALID_VALUE);
        }
        let recorded = event.recorded.clone();
        session.refuse_while_capturing()?;
        let Some(recorded) = recorded else { return Ok(()) };
        session.run_until(recorded.epoch);
        session.host_learns(&recorded.clock);
        session.apply_release_thresholds();
        Ok(())
    })
}

unsafe extern "C" fn cuEventElapsedTime(
    milliseconds: *mut f32,
    start: Handle,
    end: Handle,
) -> Code {
    driver_call("cuEventElapsedTime", Scope::Event(start), |session| {
        let mut ended = [0; 2];
        for (handle, ended) in [start, end].into_iter().zip(&mut ended) {
            let index = session.event_index(handle)?;
            let event = session.event(index)?;
            let recorded = event.recorded.as_ref().filter(|_| event.timed);
            let epoch = recorded.ok_or(ERROR_INVALID_HANDLE)?.epoch;
            if !session.executed(epoch) {
                return Err(ERROR_NOT_READY);
            }
            *ended = session.end_of(epoch);
        }
        let nanoseconds = ended[1] as f64 - ended[0] as f64;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(milliseconds, (nanoseconds / 1e6) as f32) }
    })
}

unsafe extern "C" fn cuEventElapsedTime_v2(
    milliseconds: *mut f32,
    start: Handle,
    end: Handle,
) -> Code {
    // SAFETY: the same function under its later name.
    unsafe { cuEventElapsedTime(milliseconds, start, end) }
}
