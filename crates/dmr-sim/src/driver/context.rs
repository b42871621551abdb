//! Initialisation, version, device, primary context and context management.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::{chapter, put, required};
use crate::abi::*;
use crate::fork::refuse_in_child;
use crate::handle::Kind;
use crate::registry;
use crate::session::{Scope, Session, current_context, driver_call, set_current_context};

chapter![
    cuInit,
    cuDriverGetVersion,
    cuGetErrorName,
    cuGetErrorString,
    cuDeviceGetCount,
    cuDeviceGet,
    cuDeviceGetName,
    cuDeviceGetUuid,
    cuDeviceGetUuid_v2,
    cuDeviceTotalMem_v2,
    cuDeviceGetAttribute,
    cuDevicePrimaryCtxRetain,
    cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxGetState,
    cuCtxCreate_v2,
    cuCtxCreate_v3,
    cuCtxCreate_v4,
    cuCtxDestroy_v2,
    cuCtxGetCurrent,
    cuCtxSetCurrent,
    cuCtxGetDevice,
    cuCtxSynchronize,
    cuCtxSetFlags,
    cuCtxGetLimit,
    cuCtxSetLimit,
    cuCtxGetCacheConfig,
    cuCtxSetCacheConfig,
    cuCtxGetStreamPriorityRange,
];

/// CUDA 13.0.
const VERSION: c_int = 13_000;

extern "C" fn cuInit(_flags: c_uint) -> Code {
    device_count()
        .map_or_else(|code| code, |count| if count == 0 { ERROR_NO_DEVICE } else { SUCCESS })
}

fn device_count() -> Outcome<c_int> {
    refuse_in_child()?;
    Ok(registry::device_count() as c_int)
}

unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    // SAFETY: the driver's contract: null or writable. So for every `put` in these files.
    unsafe { put(version, VERSION) }.err().unwrap_or(SUCCESS)
}

unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put_text(name, describe(code).map(|(name, _)| name)) }
}

unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { put_text(text, describe(code).map(|(_, text)| text)) }
}

/// # Safety
///
/// `to` is null, or valid for writing a pointer.
unsafe fn put_text(to: *mut *const c_char, text: Option<&'static CStr>) -> Code {
    let pointer = text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: by this function's contract.
    match (unsafe { put(to, pointer) }, text) {
        (Ok(()), Some(_)) => SUCCESS,
        _ => ERROR_INVALID_VALUE,
    }
}

unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    let result = device_count().and_then(|devices| unsafe { put(count, devices) });
    result.err().unwrap_or(SUCCESS)
}

unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    driver_call("cuDeviceGet", Scope::Device(ordinal), |_| unsafe { put(device, ordinal) })
}

unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> Code {
    driver_call("cuDeviceGetName", Scope::Device(device), |_| {
        const NAME: &CStr = c"dmr simulated device";
        let bytes = NAME.to_bytes();
        let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1));
        let kept = bytes.len().min(room.ok_or(ERROR_INVALID_VALUE)?);
        for (i, byte) in bytes[..kept].iter().chain(&[0]).enumerate() {
            // SAFETY: the caller has passed `len` writable bytes, and `kept < len`.
            unsafe { put(name.wrapping_add(i), *byte as c_char)? };
        }
        Ok(())
    })
}

unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: CUdevice) -> Code {
    driver_call("cuDeviceGetUuid", Scope::Device(device), |session| {
        let mut bytes = *b"dmr-simulated\0\0\0";
        bytes[12..].copy_from_slice(&(session.shared.id << 8 | device as u32 & 0xff).to_be_bytes());
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(uuid, bytes) }
    })
}

unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice) -> Code {
    // SAFETY: the same function under its later name.
    unsafe { cuDeviceGetUuid(uuid, device) }
}

unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> Code {
    driver_call("cuDeviceTotalMem_v2", Scope::Device(device), |session| {
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(bytes, session.config.capacity as usize) }
    })
}

unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: CUdevice,
) -> Code {
    driver_call("cuDeviceGetAttribute", Scope::Device(device), |session| {
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, session.attribute(attribute)?) }
    })
}

unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: CUdevice) -> Code {
    let code = driver_call("cuDevicePrimaryCtxRetain", Scope::Device(device), |session| {
        required(context)?;
        let index = session.device_index(device)?;
        if let Some(code) = session.devices[index].lost {
            return Err(code);
        }
        let primary = match session.devices[index].primary {
            Some(primary) => {
                session.contexts[primary as usize].retained += 1;
                primary
            }
            None => {
                let primary = session.new_context(index);
                session.devices[index].primary = Some(primary);
                primary
            }
        };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(context, session.handle(Kind::Context, primary)) }
    });
    if code == SUCCESS {
        registry::retained(device);
    }
    code
}

extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Code {
    let code = driver_call("cuDevicePrimaryCtxRelease_v2", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        let primary = session.devices[index].primary.ok_or(ERROR_INVALID_CONTEXT)?;
        let context = &mut session.contexts[primary as usize];
        context.retained -= 1;
        if context.retained == 0 {
            session.devices[index].primary = None;
            destroy(session, primary);
        }
        Ok(())
    });
    // The last two mean that the universe has ended.
    if matches!(code, SUCCESS | ERROR_INVALID_DEVICE | ERROR_CONTEXT_IS_DESTROYED) {
        registry::released(device);
    }
    code
}

unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Code {
    driver_call("cuDevicePrimaryCtxGetState", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        let is_active = session.devices[index].primary.is_some();
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(flags, 0)?;
            put(active, c_int::from(is_active))
        }
    })
}

unsafe extern "C" fn cuCtxCreate_v2(context: *mut Handle, _: c_uint, device: CUdevice) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { create("cuCtxCreate_v2", context, device) }
}

unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut Handle,
    _affinity: *mut c_void,
    _count: c_int,
    _flags: c_uint,
    device: CUdevice,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { create("cuCtxCreate_v3", context, device) }
}

unsafe extern "C" fn cuCtxCreate_v4(
    context: *mut Handle,
    _params: *mut c_void,
    _flags: c_uint,
    device: CUdevice,
) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { create("cuCtxCreate_v4", context, device) }
}

/// # Safety
///
/// `context` is null, or valid for writing a handle.
unsafe fn create(name: &'static str, context: *mut Handle, device: CUdevice) -> Code {
    driver_call(name, Scope::Device(device), |session| {
        required(context)?;
        let index = session.device_index(device)?;
        let created = session.new_context(index);
        let handle = session.handle(Kind::Context, created);
        set_current_context(handle);
        // SAFETY: by this function's contract.
        unsafe { put(context, handle) }
    })
}

extern "C" fn cuCtxDestroy_v2(context: Handle) -> Code {
    driver_call("cuCtxDestroy_v2", Scope::ContextHandle(context), |session| {
        let index = session.index_of(Kind::Context, context)?;
        if session.devices.iter().any(|device| device.primary == Some(index)) {
            return Err(ERROR_INVALID_CONTEXT);
        }
        destroy(session, index);
        if current_context() == context {
            set_current_context(0);
        }
        Ok(())
    })
}

/// Ends a context: runs its work, and removes its streams and events. Memory that was not freed
/// stays, and is found as a leak.
fn destroy(session: &mut Session<'_>, context: u32) {
    session.synchronize(|stream| stream.context == context);
    session.contexts[context as usize].destroyed = true;
    for stream in &mut session.streams {
        stream.destroyed |= stream.context == context;
    }
    session.events.retain(|_, event| event.context != context);
}

unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Code {
    let current = current_context();
    if current == 0 {
        // SAFETY: the caller's pointer is null or writable.
        return unsafe { put(context, 0) }.err().unwrap_or(SUCCESS);
    }
    let code = driver_call("cuCtxGetCurrent", Scope::AnyContext(current), |_| Ok(()));
    // A context that has ended, or is lost (as observed on an H200), is still current until another is set.
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

unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> Code {
    driver_call("cuCtxGetDevice", Scope::Context, |session| {
        let ordinal = session.shared.ordinals[session.device()?];
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, ordinal as CUdevice) }
    })
}

extern "C" fn cuCtxSynchronize() -> Code {
    driver_call("cuCtxSynchronize", Scope::Context, |session| {
        let context = session.context()?;
        session.refuse_while_any_captures(context)?;
        session.synchronize(|stream| stream.context == context);
        session.apply_release_thresholds();
        Ok(())
    })
}

extern "C" fn cuCtxSetFlags(_flags: c_uint) -> Code {
    driver_call("cuCtxSetFlags", Scope::Context, |_| Ok(()))
}

unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, _limit: c_int) -> Code {
    driver_call("cuCtxGetLimit", Scope::Context, |_| {
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, 1024) }
    })
}

extern "C" fn cuCtxSetLimit(_limit: c_int, _value: usize) -> Code {
    driver_call("cuCtxSetLimit", Scope::Context, |_| Ok(()))
}

unsafe extern "C" fn cuCtxGetCacheConfig(config: *mut c_int) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    driver_call("cuCtxGetCacheConfig", Scope::Context, |_| unsafe { put(config, 0) })
}

extern "C" fn cuCtxSetCacheConfig(_config: c_int) -> Code {
    driver_call("cuCtxSetCacheConfig", Scope::Context, |_| Ok(()))
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
