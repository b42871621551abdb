//! Stream management.

use std::ffi::{c_int, c_uint, c_void};

use super::{chapter, put, required};
use crate::abi::*;
use crate::handle::Kind;
use crate::machine::{Action, HostCall, HostPtr, StreamKind};
use crate::session::{Scope, Session, driver_call};

chapter![
    cuStreamCreate,
    cuStreamCreateWithPriority,
    cuStreamDestroy_v2,
    cuStreamSynchronize,
    cuStreamQuery,
    cuStreamWaitEvent,
    cuStreamGetPriority,
    cuStreamGetFlags,
    cuStreamGetCtx,
    cuLaunchHostFunc,
];

unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, flags: c_uint) -> Code {
    driver_call("cuStreamCreate", Scope::Context, |session| {
        // SAFETY: the caller's pointer is null or writable.
        unsafe { create(session, stream, flags, 0) }
    })
}

unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> Code {
    driver_call("cuStreamCreateWithPriority", Scope::Context, |session| {
        let range = super::context::PRIORITIES;
        let priority = priority.clamp(*range.start(), *range.end());
        // SAFETY: the caller's pointer is null or writable.
        unsafe { create(session, stream, flags, priority) }
    })
}

/// # Safety
///
/// `stream` is null, or valid for writing a handle.
unsafe fn create(
    session: &mut Session<'_>,
    stream: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> Outcome {
    required(stream)?;
    let kind = match flags {
        0 => StreamKind::Blocking,
        STREAM_NON_BLOCKING => StreamKind::NonBlocking,
        _ => return Err(ERROR_INVALID_VALUE),
    };
    let (context, device) = (session.context()?, session.device()?);
    let created = session.new_stream(context, device, kind, priority);
    // SAFETY: by this function's contract.
    unsafe { put(stream, session.handle(Kind::Stream, created)) }
}

extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    driver_call("cuStreamDestroy_v2", Scope::Stream(stream), |session| {
        if stream <= STREAM_PER_THREAD {
            return Err(ERROR_INVALID_HANDLE);
        }
        // Pending work still executes.
        let index = session.stream(stream)?;
        session.streams[index as usize].destroyed = true;
        Ok(())
    })
}

extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    driver_call("cuStreamSynchronize", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        session.refuse_if_capturing(index)?;
        session.refuse_while_capturing()?;
        session.synchronize_stream(index);
        session.apply_release_thresholds();
        Ok(())
    })
}

extern "C" fn cuStreamQuery(stream: Handle) -> Code {
    driver_call("cuStreamQuery", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        session.refuse_if_capturing(index)?;
        session.refuse_while_capturing()?;
        if let Some(unfinished) = session.unfinished(index) {
            // A query makes progress, so that a loop of queries ends.
            session.run_one_towards(unfinished);
            return Err(ERROR_NOT_READY);
        }
        session.synchronize_stream(index);
        Ok(())
    })
}

extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) -> Code {
    driver_call("cuStreamWaitEvent", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let event = session.event_index(event)?;
        if session.wait_inside_capture(index, event)? {
            return Ok(());
        }
        let Some(recorded) = session.event(event)?.recorded.clone() else {
            return Ok(()); // never recorded: complete
        };
        let (epoch, mut deps) = session.begin(index);
        session.streams[index as usize].clock.join(&recorded.clock);
        deps.push(recorded.epoch);
        session.push(epoch, deps, Action::Order);
        Ok(())
    })
}

unsafe extern "C" fn cuStreamGetPriority(stream: Handle, priority: *mut c_int) -> Code {
    driver_call("cuStreamGetPriority", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(priority, session.streams[index as usize].priority) }
    })
}

unsafe extern "C" fn cuStreamGetFlags(stream: Handle, flags: *mut c_uint) -> Code {
    driver_call("cuStreamGetFlags", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let kind = session.streams[index as usize].kind;
        let value = if kind == StreamKind::NonBlocking { STREAM_NON_BLOCKING } else { 0 };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, value) }
    })
}

unsafe extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> Code {
    driver_call("cuStreamGetCtx", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let owner = session.streams[index as usize].context;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(context, session.handle(Kind::Context, owner)) }
    })
}

extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Code {
    driver_call("cuLaunchHostFunc", Scope::Stream(stream), |session| {
        let function = function.ok_or(ERROR_INVALID_VALUE)?;
        let index = session.stream(stream)?;
        if session.captured(index)? {
            return Ok(());
        }
        let (epoch, deps) = session.begin(index);
        let data = HostPtr(data);
        session.push(epoch, deps, Action::HostCall(HostCall { function, data }));
        Ok(())
    })
}
