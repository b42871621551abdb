//! Graph management: the memory of a device that the nodes of graphs have.

use std::ffi::{c_int, c_ulonglong};

use super::{Scope, chapter, driver_call, put, required};
use crate::abi::*;

chapter![cuDeviceGetGraphMemAttribute, cuDeviceSetGraphMemAttribute, cuDeviceGraphMemTrim];

/// Values of `CUgraphMem_attribute`.
const USED: c_int = 0;
const USED_HIGH: c_int = 1;
const RESERVED: c_int = 2;
const RESERVED_HIGH: c_int = 3;

unsafe extern "C" fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attribute: c_int,
    value: *mut c_ulonglong,
) -> Code {
    driver_call("cuDeviceGetGraphMemAttribute", Scope::Device(device), |session| {
        let usage = session.devices[session.device_index(device)?].graphs;
        let bytes = match attribute {
            USED | RESERVED => usage.reserved,
            USED_HIGH => usage.used_high,
            RESERVED_HIGH => usage.reserved_high,
            _ => return Err(ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(value, bytes) }
    })
}

/// Sets a high-water mark to the bytes now; the value must be 0.
unsafe extern "C" fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attribute: c_int,
    value: *mut c_ulonglong,
) -> Code {
    driver_call("cuDeviceSetGraphMemAttribute", Scope::Device(device), |session| {
        required(value)?;
        // SAFETY: not null, so valid by the driver's contract.
        if unsafe { value.read_unaligned() } != 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        let index = session.device_index(device)?;
        let usage = &mut session.devices[index].graphs;
        match attribute {
            USED_HIGH => usage.used_high = usage.reserved,
            RESERVED_HIGH => usage.reserved_high = usage.reserved,
            _ => return Err(ERROR_INVALID_VALUE),
        }
        Ok(())
    })
}

extern "C" fn cuDeviceGraphMemTrim(device: CUdevice) -> Code {
    driver_call("cuDeviceGraphMemTrim", Scope::Device(device), |session| {
        let index = session.device_index(device)?;
        session.trim_graph_memory(index);
        session.release_graph_addresses();
        Ok(())
    })
}
