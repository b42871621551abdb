//! Memory management: allocations, and pinned host memory.

use std::ffi::c_uint;

use super::{Scope, chapter, driver_call, put, required};
use crate::abi::*;
use crate::host::{
    current_context::current_context, fork::refuse_in_child, initialised::refuse_before,
};

chapter![
    cuMemAlloc_v2,
    cuMemAllocPitch_v2,
    cuMemFree_v2,
    cuMemGetInfo_v2,
    cuMemHostAlloc,
    cuMemHostGetFlags,
    cuMemAllocHost_v2,
    cuMemFreeHost,
    cuMemHostRegister_v2,
    cuMemHostUnregister,
    cuMemHostGetDevicePointer_v2,
];

unsafe extern "C" fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) -> Code {
    driver_call("cuMemAlloc_v2", Scope::Context, |session| {
        required(at)?;
        session.refuse_while_capturing()?;
        let device = session.device()?;
        let allocated = session.allocate_now(device, bytes as u64)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(at, allocated) }
    })
}

/// The bytes that the start of each row is a multiple of, in pitched memory.
const PITCH: usize = 512;

unsafe extern "C" fn cuMemAllocPitch_v2(
    at: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    driver_call("cuMemAllocPitch_v2", Scope::Context, |session| {
        required(at)?;
        required(pitch)?;
        session.refuse_while_capturing()?;
        if ![4, 8, 16].contains(&element) {
            return Err(ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(ERROR_OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(ERROR_OUT_OF_MEMORY)?;
        let device = session.device()?;
        let allocated = session.allocate_now(device, bytes as u64)?;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(at, allocated)?;
            put(pitch, row)
        }
    })
}

extern "C" fn cuMemFree_v2(at: CUdeviceptr) -> Code {
    if at == 0 && current_context() == 0 {
        // There is nothing to free: no context is needed (as observed on an H200).
        return refuse_in_child().and_then(|()| refuse_before()).err().unwrap_or(SUCCESS);
    }
    driver_call("cuMemFree_v2", Scope::Context, |session| {
        if at == 0 {
            return Ok(());
        }
        session.refuse_while_capturing()?;
        if session.free_managed(at)? { Ok(()) } else { session.free_now(at) }
    })
}

unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    driver_call("cuMemGetInfo_v2", Scope::Context, |session| {
        let capacity = session.config.capacity;
        let used = session.devices[session.device()?].used;
        // SAFETY: the caller's pointers are null or writable.
        unsafe {
            put(free, (capacity - used) as usize)?;
            put(total, capacity as usize)
        }
    })
}

unsafe extern "C" fn cuMemHostAlloc(at: *mut u64, bytes: usize, flags: c_uint) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { allocate_pinned("cuMemHostAlloc", at, bytes, flags) }
}

unsafe extern "C" fn cuMemHostGetFlags(flags: *mut c_uint, at: u64) -> Code {
    driver_call("cuMemHostGetFlags", Scope::Context, |session| {
        // All pinned memory is mapped, whatever the program has asked for (as observed on an H200).
        let known = session.host_flags(at)? | DEVICE_MAP;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, known) }
    })
}

unsafe extern "C" fn cuMemAllocHost_v2(at: *mut u64, bytes: usize) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { allocate_pinned("cuMemAllocHost_v2", at, bytes, 0) }
}

/// `CU_MEMHOSTALLOC_PORTABLE`, `_DEVICEMAP` and `_WRITECOMBINED`.
const ALL_HOST_FLAGS: c_uint = 7;
const DEVICE_MAP: c_uint = 2;

/// # Safety
///
/// `at` is null, or valid for writing a pointer.
unsafe fn allocate_pinned(name: &'static str, at: *mut u64, bytes: usize, flags: c_uint) -> Code {
    driver_call(name, Scope::Context, |session| {
        required(at)?;
        session.refuse_while_capturing()?;
        if flags > ALL_HOST_FLAGS {
            return Err(ERROR_INVALID_VALUE);
        }
        // No bytes are no memory.
        let allocated = if bytes == 0 { 0 } else { session.allocate_pinned(bytes, flags)? };
        // SAFETY: by this function's contract.
        unsafe { put(at, allocated) }
    })
}

extern "C" fn cuMemFreeHost(at: u64) -> Code {
    driver_call("cuMemFreeHost", Scope::Context, |session| {
        session.refuse_while_capturing()?;
        if at == 0 {
            return Ok(()); // nothing to free
        }
        if session.objects.managed.contains(&at) {
            return Err(ERROR_INVALID_VALUE);
        }
        session.unpin(at, false)
    })
}

pub(super) extern "C" fn cuMemHostRegister_v2(at: u64, bytes: usize, _flags: c_uint) -> Code {
    driver_call("cuMemHostRegister_v2", Scope::Context, |session| {
        session.refuse_while_capturing()?;
        session.register(at, bytes as u64)
    })
}

extern "C" fn cuMemHostUnregister(at: u64) -> Code {
    driver_call("cuMemHostUnregister", Scope::Context, |session| {
        if session.is_inside_registered(at) {
            return Err(ERROR_INVALID_VALUE);
        }
        session.unpin(at, true).map_err(|_| ERROR_HOST_MEMORY_NOT_REGISTERED)
    })
}

unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut CUdeviceptr,
    host: u64,
    flags: c_uint,
) -> Code {
    driver_call("cuMemHostGetDevicePointer_v2", Scope::Context, |session| {
        if flags != 0 || !session.is_pinned(host) {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, host) }
    })
}
