//! Initialisation, version, errors and devices.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::{Scope, chapter, driver_call, put};
use crate::abi::*;
use crate::host::{
    fork::refuse_in_child,
    initialised::{initialised, refuse_before},
};
use crate::machine::registry;

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
    cuDeviceComputeCapability,
    cuDeviceGetProperties,
    cuDeviceGetPCIBusId,
    cuDeviceGetByPCIBusId,
    cuDeviceGetP2PAttribute,
    cuDeviceGetExecAffinitySupport,
    cuProfilerStart,
    cuProfilerStop,
];

/// CUDA 13.0.
const VERSION: c_int = 13_000;

extern "C" fn cuInit(flags: c_uint) -> Code {
    let initialise = || {
        refuse_in_child()?;
        if flags != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if registry::device_count() == 0 {
            return Err(ERROR_NO_DEVICE);
        }
        initialised();
        Ok(())
    };
    initialise().err().unwrap_or(SUCCESS)
}

fn device_count() -> Outcome<c_int> {
    refuse_in_child()?;
    refuse_before()?;
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
        // SAFETY: the caller has passed `len` writable bytes.
        unsafe { put_bytes(name, len, b"dmr simulated device") }
    })
}

/// Writes a C string, cut to the `len` bytes at `to`.
///
/// # Safety
///
/// `to` is null, or valid for writing `len` bytes.
unsafe fn put_bytes(to: *mut c_char, len: c_int, bytes: &[u8]) -> Outcome {
    let room = usize::try_from(len).ok().and_then(|len| len.checked_sub(1));
    let kept = bytes.len().min(room.ok_or(ERROR_INVALID_VALUE)?);
    for (i, byte) in bytes[..kept].iter().chain(&[0]).enumerate() {
        // SAFETY: by this function's contract, and `kept < len`.
        unsafe { put(to.wrapping_add(i), *byte as c_char)? };
    }
    Ok(())
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
        let known = match attribute {
            attribute::PCI_BUS_ID => bus_of(device),
            _ => session.attribute(attribute)?,
        };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, known) }
    })
}

unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    device: CUdevice,
) -> Code {
    driver_call("cuDeviceComputeCapability", Scope::Device(device), |session| {
        let high = session.attribute(75)?;
        let low = session.attribute(76)?;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(major, high)?;
            put(minor, low)
        }
    })
}

/// Writes a `CUdevprop`: the attributes of these numbers, in the order of its fields.
unsafe extern "C" fn cuDeviceGetProperties(properties: *mut [c_int; 14], device: CUdevice) -> Code {
    driver_call("cuDeviceGetProperties", Scope::Device(device), |session| {
        let mut values = [0; 14];
        let numbers = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
        for (value, number) in values.iter_mut().zip(numbers) {
            *value = session.attribute(number)?;
        }
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(properties, values) }
    })
}

/// Returns the PCI bus of a device; domain, device and function are 0.
fn bus_of(device: CUdevice) -> c_int {
    device.saturating_add(1)
}

unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) -> Code {
    driver_call("cuDeviceGetPCIBusId", Scope::Device(device), |_| {
        let text = format!("0000:{:02X}:00.0", bus_of(device));
        // SAFETY: the caller has passed `len` writable bytes.
        unsafe { put_bytes(id, len, text.as_bytes()) }
    })
}

unsafe extern "C" fn cuDeviceGetByPCIBusId(device: *mut CUdevice, id: *const c_char) -> Code {
    if id.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract a C string.
    let text = unsafe { CStr::from_ptr(id) }.to_string_lossy();
    // [domain]:[bus]:[device].[function]; the first and the last may be missing.
    let mut parts = text.split(':').rev();
    let place = parts.next().map(|place| place.trim_end_matches(".0"));
    let bus = parts.next().and_then(|bus| c_int::from_str_radix(bus, 16).ok());
    let ordinal = match (place, bus, parts.next().unwrap_or("0000")) {
        (Some("0" | "00"), Some(bus), "0000") => bus - 1,
        _ => return ERROR_INVALID_DEVICE,
    };
    driver_call("cuDeviceGetByPCIBusId", Scope::Device(ordinal), |_| {
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, ordinal) }
    })
}

unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: CUdevice,
    peer: CUdevice,
) -> Code {
    driver_call("cuDeviceGetP2PAttribute", Scope::Device(device), |session| {
        let device = session.device_index(device)?;
        let peer = session.device_index(peer)?;
        if device == peer {
            return Err(ERROR_INVALID_DEVICE);
        }
        let known = match attribute {
            1 | 4 => 0, // relative performance; access to arrays, which are refused
            2 | 3 | 5 => c_int::from(session.has_peer_path(device, peer)), // access, native atomics
            _ => return Err(ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, known) }
    })
}

unsafe extern "C" fn cuDeviceGetExecAffinitySupport(
    supported: *mut c_int,
    _affinity: c_int,
    device: CUdevice,
) -> Code {
    driver_call("cuDeviceGetExecAffinitySupport", Scope::Device(device), |_| {
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(supported, 0) }
    })
}

extern "C" fn cuProfilerStart() -> Code {
    driver_call("cuProfilerStart", Scope::Context, |_| Ok(()))
}

extern "C" fn cuProfilerStop() -> Code {
    driver_call("cuProfilerStop", Scope::Context, |_| Ok(()))
}
