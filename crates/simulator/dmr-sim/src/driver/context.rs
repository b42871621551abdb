//! Contexts, and each thread's stack of them.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::{Scope, chapter, driver_call, put, put_optional, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::host::current_context::{
    current_context, pop_context, push_context, set_current_context,
};
use crate::machine::Session;

chapter![
    cuCtxCreate_v2,
    cuCtxCreate_v3,
    cuCtxCreate_v4,
    cuCtxDestroy_v2,
    cuCtxPushCurrent_v2,
    cuCtxPopCurrent_v2,
    cuCtxGetCurrent,
    cuCtxSetCurrent,
    cuCtxGetDevice,
    cuCtxGetDevice_v2,
    cuCtxGetId,
    cuCtxGetApiVersion,
    cuCtxSynchronize,
    cuCtxSynchronize_v2,
    cuCtxGetFlags,
    cuCtxSetFlags,
    cuCtxGetLimit,
    cuCtxSetLimit,
    cuCtxGetCacheConfig,
    cuCtxSetCacheConfig,
    cuCtxGetSharedMemConfig,
    cuCtxSetSharedMemConfig,
    cuCtxResetPersistingL2Cache,
    cuCtxGetStreamPriorityRange,
];

pub(super) unsafe extern "C" fn cuCtxCreate_v2(
    context: *mut Handle,
    flags: c_uint,
    device: CUdevice,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { create("cuCtxCreate_v2", context, flags, device) }
}

unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut Handle,
    _affinity: *mut c_void,
    _count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { create("cuCtxCreate_v3", context, flags, device) }
}

unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut Handle,
    _params: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { create("cuCtxCreate_v4", context, flags, device) }
}

/// # Safety
///
/// `context` is null, or valid for writing a handle.
unsafe fn create(
    name: &'static str,
    context: *mut Handle,
    flags: c_uint,
    device: CUdevice,
) -> Code {
    driver_call(name, Scope::Device(device), |session| {
        required(context)?;
        check_flags(flags)?;
        let index = session.device_index(device)?;
        let created = session.new_context(index);
        session.objects.context_flags.insert(created, flags);
        let handle = session.handle(Kind::Context, created);
        push_context(handle);
        // SAFETY: by this function's contract.
        unsafe { put(context, handle) }
    })
}

pub(super) extern "C" fn cuCtxDestroy_v2(context: Handle) -> Code {
    driver_call("cuCtxDestroy_v2", Scope::ContextHandle(context), |session| {
        let index = session.index_of(Kind::Context, context)?;
        if session.devices.iter().any(|device| device.primary == Some(index)) {
            return Err(ERROR_INVALID_CONTEXT);
        }
        end(session, index);
        if current_context() == context {
            pop_context();
        }
        Ok(())
    })
}

/// Ends a context: runs its work, and ends its streams and events. Memory that was not freed
/// stays, and is found as a leak.
pub(super) fn end(session: &mut Session<'_>, context: u32) {
    session.synchronize(|stream| stream.context == context);
    session.contexts[context as usize].destroyed = true;
    for stream in &mut session.streams {
        stream.destroyed |= stream.context == context;
    }
    session.abandon_captures();
}

unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Code {
    let current = current_context();
    if current == 0 {
        // SAFETY: the caller's pointer is null or writable.
        return unsafe { put(context, 0) }.err().unwrap_or(SUCCESS);
    }
    let code = driver_call("cuCtxGetCurrent", Scope::AnyContext(current), |_| Ok(()));
    // A context that has ended, or is lost (as observed on an H200), is still current until another
    // is set.
    let result = match code {
        SUCCESS | ERROR_CONTEXT_IS_DESTROYED => SUCCESS,
        code => return code,
    };
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put(context, current) }.err().unwrap_or(result)
}

extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    if context == 0 {
        set_current_context(0);
        return SUCCESS;
    }
    driver_call("cuCtxSetCurrent", Scope::ContextHandle(context), |_| {
        set_current_context(context);
        Ok(())
    })
}

pub(super) extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> Code {
    if context == 0 {
        return ERROR_INVALID_VALUE;
    }
    driver_call("cuCtxPushCurrent_v2", Scope::ContextHandle(context), |_| {
        push_context(context);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> Code {
    let pop = || {
        let popped = pop_context();
        // SAFETY: the caller's pointer is null, which means that it needs no result, or writable.
        unsafe { put_optional(context, popped) };
        Ok(())
    };
    match current_context() {
        0 => ERROR_INVALID_CONTEXT,
        // A context that has ended can be popped, too.
        current => match driver_call("cuCtxPopCurrent_v2", Scope::AnyContext(current), |_| pop()) {
            ERROR_CONTEXT_IS_DESTROYED => pop().err().unwrap_or(SUCCESS),
            code => code,
        },
    }
}

unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> Code {
    driver_call("cuCtxGetDevice", Scope::Context, |session| {
        let ordinal = session.shared.ordinals[session.device()?];
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, ordinal as CUdevice) }
    })
}

unsafe extern "C" fn cuCtxGetDevice_v2(device: *mut CUdevice, context: Handle) -> Code {
    driver_call("cuCtxGetDevice_v2", scope_of(context), |session| {
        let ordinal = session.shared.ordinals[session.device()?];
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, ordinal as CUdevice) }
    })
}

/// Returns the scope of a call that names a context, or the current one by 0.
fn scope_of(context: Handle) -> Scope {
    if context == 0 { Scope::Context } else { Scope::ContextHandle(context) }
}

unsafe extern "C" fn cuCtxGetId(context: Handle, id: *mut c_ulonglong) -> Code {
    driver_call("cuCtxGetId", scope_of(context), |session| {
        let handle = session.handle(Kind::Context, session.context()?);
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(id, handle) }
    })
}

unsafe extern "C" fn cuCtxGetApiVersion(context: Handle, version: *mut c_uint) -> Code {
    // The version of every context since CUDA 3.2.
    // SAFETY: the caller's pointer is null or writable.
    driver_call("cuCtxGetApiVersion", scope_of(context), |_| unsafe { put(version, 3020) })
}

extern "C" fn cuCtxSynchronize() -> Code {
    driver_call("cuCtxSynchronize", Scope::Context, synchronize)
}

extern "C" fn cuCtxSynchronize_v2(context: Handle) -> Code {
    driver_call("cuCtxSynchronize_v2", scope_of(context), synchronize)
}

fn synchronize(session: &mut Session<'_>) -> Outcome {
    let context = session.context()?;
    session.refuse_while_any_captures(context)?;
    session.synchronize(|stream| stream.context == context);
    session.apply_release_thresholds();
    Ok(())
}

/// `CU_CTX_FLAGS_MASK`: how the host waits, mapped host memory, local memory, core dumps.
const ALL_FLAGS: c_uint = 0xff;

/// Refuses flags that a context cannot have: an unknown bit, or more than one way to wait.
pub(super) fn check_flags(flags: c_uint) -> Outcome {
    let waits = (flags & 7).count_ones();
    if flags & !ALL_FLAGS == 0 && waits <= 1 { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
}

unsafe extern "C" fn cuCtxGetFlags(flags: *mut c_uint) -> Code {
    driver_call("cuCtxGetFlags", Scope::Context, |session| {
        let context = session.context()?;
        let device = session.device()?;
        let is_primary = session.devices[device].primary == Some(context);
        let set = match is_primary {
            true => session.objects.primary_flags.get(&device),
            false => session.objects.context_flags.get(&context),
        };
        let set = set.copied().unwrap_or(0);
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, set) }
    })
}

extern "C" fn cuCtxSetFlags(flags: c_uint) -> Code {
    driver_call("cuCtxSetFlags", Scope::Context, |session| {
        check_flags(flags)?;
        let context = session.context()?;
        let device = session.device()?;
        match session.devices[device].primary == Some(context) {
            true => session.objects.primary_flags.insert(device, flags),
            false => session.objects.context_flags.insert(context, flags),
        };
        Ok(())
    })
}

/// The defaults of `CUlimit`, measured on an H200; `None` for limits that it does not support:
/// bytes of a thread's stack, of the buffer of `printf`, of the heap of device code, depth and
/// number of launches from device code, bytes of an L2 fetch, of the persisting L2 cache, of shared
/// memory, three more.
const LIMITS: [Option<usize>; 10] = [
    Some(1024),
    Some(8_650_752),
    Some(8 << 20),
    None,
    Some(2048),
    Some(64),
    Some(11_796_480),
    Some(227 << 10),
    Some(0),
    None,
];
const STACK: c_int = 0;
/// The bytes of local memory that a thread can have.
const MOST_STACK: usize = 512 << 10;

/// Returns the default of a limit.
fn limit_of(limit: c_int) -> Outcome<usize> {
    let known = usize::try_from(limit).ok().and_then(|limit| LIMITS.get(limit).copied());
    known.ok_or(ERROR_INVALID_VALUE)?.ok_or(ERROR_UNSUPPORTED_LIMIT)
}

unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: c_int) -> Code {
    driver_call("cuCtxGetLimit", Scope::Context, |session| {
        let default = limit_of(limit)?;
        let set = session.objects.limits.get(&(session.context()?, limit)).copied();
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, set.unwrap_or(default)) }
    })
}

extern "C" fn cuCtxSetLimit(limit: c_int, value: usize) -> Code {
    driver_call("cuCtxSetLimit", Scope::Context, |session| {
        limit_of(limit)?;
        if limit == STACK && value > MOST_STACK {
            return Err(ERROR_INVALID_VALUE);
        }
        let context = session.context()?;
        session.objects.limits.insert((context, limit), value);
        Ok(())
    })
}

unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut c_int) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    driver_call("cuCtxGetCacheConfig", Scope::Context, |_| unsafe { put(config, 0) })
}

extern "C" fn cuCtxSetCacheConfig(_config: c_int) -> Code {
    driver_call("cuCtxSetCacheConfig", Scope::Context, |_| Ok(()))
}

unsafe extern "C" fn cuCtxGetSharedMemConfig(config: *mut c_int) -> Code {
    // Banks of four bytes, as on all current devices.
    // SAFETY: the caller's pointer is null or writable.
    driver_call("cuCtxGetSharedMemConfig", Scope::Context, |_| unsafe { put(config, 1) })
}

extern "C" fn cuCtxSetSharedMemConfig(_config: c_int) -> Code {
    driver_call("cuCtxSetSharedMemConfig", Scope::Context, |_| Ok(()))
}

extern "C" fn cuCtxResetPersistingL2Cache() -> Code {
    driver_call("cuCtxResetPersistingL2Cache", Scope::Context, |_| Ok(()))
}

/// Returns the lowest and highest stream priority, as on current devices.
pub(super) const PRIORITIES: std::ops::RangeInclusive<c_int> = -5..=0;

unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Code {
    driver_call("cuCtxGetStreamPriorityRange", Scope::Context, |_| {
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(least, *PRIORITIES.end())?;
            put(greatest, *PRIORITIES.start())
        }
    })
}
