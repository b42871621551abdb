//! Stream management.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::event::EXTERNAL;
use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Action, HostCall, HostPtr, NodeWork, Session, StreamKind};

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
    cuStreamGetCtx_v2,
    cuStreamGetDevice,
    cuStreamGetId,
    cuStreamGetAttribute,
    cuStreamSetAttribute,
    cuStreamCopyAttributes,
    cuStreamAddCallback,
    cuLaunchHostFunc,
    cuLaunchHostFunc_v2,
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
    let context = session.context()?;
    let device = session.device()?;
    let created = session.new_stream(context, device, kind, priority);
    // SAFETY: by this function's contract.
    unsafe { put(stream, session.stream_handle(created)) }
}

pub(super) extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Code {
    driver_call("cuStreamDestroy_v2", Scope::Stream(stream), |session| {
        if stream <= STREAM_PER_THREAD {
            return Err(ERROR_INVALID_HANDLE);
        }
        // Pending work still executes.
        let index = session.stream(stream)?;
        session.retire_stream(index);
        session.abandon_captures();
        Ok(())
    })
}

pub(super) extern "C" fn cuStreamSynchronize(stream: Handle) -> Code {
    driver_call("cuStreamSynchronize", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        session.refuse_if_capturing(index)?;
        session.refuse_while_capturing()?;
        session.synchronize_stream(index);
        session.apply_release_thresholds();
        Ok(())
    })
}

pub(super) extern "C" fn cuStreamQuery(stream: Handle) -> Code {
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

pub(super) extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> Code {
    driver_call("cuStreamWaitEvent", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let event = session.event_index(event)?;
        if flags > EXTERNAL {
            return Err(ERROR_INVALID_VALUE);
        }
        let is_external = flags & EXTERNAL != 0;
        if is_external && session.capture(index, || NodeWork::Wait(event))? {
            return Ok(());
        }
        if session.wait_inside_capture(index, event)? {
            session.capture_wait(index, event);
            return Ok(());
        }
        session.wait_for_event(event, index);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamGetPriority(stream: Handle, priority: *mut c_int) -> Code {
    driver_call("cuStreamGetPriority", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(priority, session.streams[index as usize].priority) }
    })
}

pub(super) unsafe extern "C" fn cuStreamGetFlags(stream: Handle, flags: *mut c_uint) -> Code {
    driver_call("cuStreamGetFlags", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let kind = session.streams[index as usize].kind;
        let value = if kind == StreamKind::NonBlocking { STREAM_NON_BLOCKING } else { 0 };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, value) }
    })
}

pub(super) unsafe extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> Code {
    driver_call("cuStreamGetCtx", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let owner = session.streams[index as usize].context;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(context, session.handle(Kind::Context, owner)) }
    })
}

/// As `cuStreamGetCtx`. No stream belongs to a green context.
pub(super) unsafe extern "C" fn cuStreamGetCtx_v2(
    stream: Handle,
    context: *mut Handle,
    green: *mut Handle,
) -> Code {
    driver_call("cuStreamGetCtx_v2", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let owner = session.streams[index as usize].context;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(context, session.handle(Kind::Context, owner))?;
            put_optional(green, 0);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuStreamGetDevice(stream: Handle, device: *mut CUdevice) -> Code {
    driver_call("cuStreamGetDevice", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        let ordinal = session.shared.ordinals[session.streams[index as usize].device];
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, ordinal as CUdevice) }
    })
}

/// Ends the capture of a stream that captures (as observed on an H100).
pub(super) unsafe extern "C" fn cuStreamGetId(stream: Handle, id: *mut c_ulonglong) -> Code {
    driver_call("cuStreamGetId", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        session.refuse_if_capturing(index)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(id, session.stream_handle(index)) }
    })
}

/// The numbers of `CUstreamAttrID`: access policy window, synchronisation policy, priority, map of
/// memory synchronisation domains, domain. None has an effect on the result of work.
const ATTRIBUTES: [c_int; 5] = [1, 3, 8, 9, 10];

pub(super) unsafe extern "C" fn cuStreamGetAttribute(
    stream: Handle,
    attribute: c_int,
    value: *mut [u8; 64],
) -> Code {
    driver_call("cuStreamGetAttribute", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        if !ATTRIBUTES.contains(&attribute) {
            return Err(ERROR_INVALID_VALUE);
        }
        let set = session.objects.stream_attributes.get(&(index, attribute)).copied();
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, set.unwrap_or([0; 64])) }
    })
}

pub(super) unsafe extern "C" fn cuStreamSetAttribute(
    stream: Handle,
    attribute: c_int,
    value: *const [u8; 64],
) -> Code {
    driver_call("cuStreamSetAttribute", Scope::Stream(stream), |session| {
        let index = session.stream(stream)?;
        if !ATTRIBUTES.contains(&attribute) || value.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract a value.
        let value = unsafe { value.read_unaligned() };
        session.objects.stream_attributes.insert((index, attribute), value);
        Ok(())
    })
}

pub(super) extern "C" fn cuStreamCopyAttributes(to: Handle, from: Handle) -> Code {
    driver_call("cuStreamCopyAttributes", Scope::Stream(to), |session| {
        let to = session.stream(to)?;
        let from = session.stream(from)?;
        let attributes = &mut session.objects.stream_attributes;
        for attribute in ATTRIBUTES {
            if let Some(value) = attributes.get(&(from, attribute)).copied() {
                attributes.insert((to, attribute), value);
            }
        }
        Ok(())
    })
}

/// A program's function for `cuStreamAddCallback`, and its arguments.
struct StreamCallback {
    function: unsafe extern "C" fn(Handle, Code, *mut c_void),
    stream: Handle,
    data: *mut c_void,
}

/// Calls the function of a [`StreamCallback`], and frees it.
unsafe extern "C" fn call_back(callback: *mut c_void) {
    // SAFETY: made by `cuStreamAddCallback`, which passes it to one operation, and that runs once.
    let callback = unsafe { Box::from_raw(callback.cast::<StreamCallback>()) };
    // SAFETY: by the driver's contract the function and its data are valid until then.
    unsafe { (callback.function)(callback.stream, SUCCESS, callback.data) };
}

pub(super) extern "C" fn cuStreamAddCallback(
    stream: Handle,
    function: Option<unsafe extern "C" fn(Handle, Code, *mut c_void)>,
    data: *mut c_void,
    flags: c_uint,
) -> Code {
    driver_call("cuStreamAddCallback", Scope::Stream(stream), |session| {
        let function = function.filter(|_| flags == 0).ok_or(ERROR_INVALID_VALUE)?;
        let index = session.stream(stream)?;
        session.refuse_if_capturing(index)?;
        let (epoch, deps) = session.begin(index);
        let callback = Box::into_raw(Box::new(StreamCallback { function, stream, data }));
        let data = HostPtr(callback.cast());
        session.push(epoch, deps, Action::HostCall(HostCall { function: call_back, data }));
        Ok(())
    })
}

/// As `cuLaunchHostFunc`. The mode says how the host waits, which has no effect here.
pub(super) extern "C" fn cuLaunchHostFunc_v2(
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
    _mode: c_uint,
) -> Code {
    cuLaunchHostFunc(stream, function, data)
}

pub(super) extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Code {
    driver_call("cuLaunchHostFunc", Scope::Stream(stream), |session| {
        let function = function.ok_or(ERROR_INVALID_VALUE)?;
        let index = session.stream(stream)?;
        let call = HostCall { function, data: HostPtr(data) };
        if session.capture(index, || NodeWork::Host(call))? {
            return Ok(());
        }
        let (epoch, deps) = session.begin(index);
        session.push(epoch, deps, Action::HostCall(call));
        Ok(())
    })
}
