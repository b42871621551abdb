//! Memory management: allocations, memsets, copies, pinned host memory.

use std::ffi::{c_uint, c_void};

use super::{chapter, put};
use crate::abi::*;
use crate::address;
use crate::machine::HostPtr;
use crate::session::{Scope, Session, driver_call};

chapter![
    cuMemAlloc_v2,
    cuMemFree_v2,
    cuMemGetInfo_v2,
    cuMemHostAlloc,
    cuMemAllocHost_v2,
    cuMemFreeHost,
    cuMemHostRegister_v2,
    cuMemHostUnregister,
    cuMemHostGetDevicePointer_v2,
    cuMemsetD8_v2,
    cuMemsetD8Async,
    cuMemsetD16Async,
    cuMemsetD32_v2,
    cuMemsetD32Async,
    cuMemcpyHtoD_v2,
    cuMemcpyHtoDAsync_v2,
    cuMemcpyDtoH_v2,
    cuMemcpyDtoHAsync_v2,
    cuMemcpyDtoD_v2,
    cuMemcpyDtoDAsync_v2,
    cuMemcpyPeerAsync,
    cuMemcpyAsync,
];

unsafe extern "C" fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) -> Code {
    driver_call("cuMemAlloc_v2", Scope::Context, |session| {
        session.refuse_while_capturing()?;
        let device = session.device()?;
        let allocated = session.allocate_now(device, bytes as u64)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(at, allocated) }
    })
}

extern "C" fn cuMemFree_v2(at: CUdeviceptr) -> Code {
    driver_call("cuMemFree_v2", Scope::Context, |session| {
        if at == 0 {
            return Ok(());
        }
        session.refuse_while_capturing()?;
        session.free_now(at)
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

unsafe extern "C" fn cuMemHostAlloc(at: *mut u64, bytes: usize, _flags: c_uint) -> Code {
    driver_call("cuMemHostAlloc", Scope::Context, |session| {
        let allocated = session.allocate_pinned(bytes)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(at, allocated) }
    })
}

unsafe extern "C" fn cuMemAllocHost_v2(at: *mut u64, bytes: usize) -> Code {
    driver_call("cuMemAllocHost_v2", Scope::Context, |session| {
        let allocated = session.allocate_pinned(bytes)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(at, allocated) }
    })
}

extern "C" fn cuMemFreeHost(at: u64) -> Code {
    driver_call("cuMemFreeHost", Scope::Context, |session| session.unpin(at, false))
}

extern "C" fn cuMemHostRegister_v2(at: u64, bytes: usize, _flags: c_uint) -> Code {
    driver_call("cuMemHostRegister_v2", Scope::Context, |session| {
        if at == 0 || bytes == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if session.shadow.allocation_around(at).is_some() {
            return Err(ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        session.pin(at, bytes as u64);
        Ok(())
    })
}

extern "C" fn cuMemHostUnregister(at: u64) -> Code {
    driver_call("cuMemHostUnregister", Scope::Context, |session| {
        session.unpin(at, true).map_err(|_| ERROR_HOST_MEMORY_NOT_REGISTERED)
    })
}

unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    device: *mut CUdeviceptr,
    host: u64,
    _flags: c_uint,
) -> Code {
    driver_call("cuMemHostGetDevicePointer_v2", Scope::Context, |session| {
        if !session.is_pinned(host, 1) {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, host) }
    })
}

/// Memsets to device memory do not wait, also those that name no stream.
fn memset(name: &'static str, stream: Handle, at: u64, len: u64, pattern: [u8; 4]) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        session.fill(stream, at, len, pattern).map(drop)
    })
}

extern "C" fn cuMemsetD8_v2(at: CUdeviceptr, value: u8, count: usize) -> Code {
    memset("cuMemsetD8_v2", 0, at, count as u64, [value; 4])
}

extern "C" fn cuMemsetD8Async(at: CUdeviceptr, value: u8, count: usize, stream: Handle) -> Code {
    memset("cuMemsetD8Async", stream, at, count as u64, [value; 4])
}

extern "C" fn cuMemsetD16Async(at: CUdeviceptr, value: u16, count: usize, stream: Handle) -> Code {
    let [low, high] = value.to_le_bytes();
    if !at.is_multiple_of(2) {
        return ERROR_INVALID_VALUE;
    }
    memset("cuMemsetD16Async", stream, at, 2 * count as u64, [low, high, low, high])
}

extern "C" fn cuMemsetD32_v2(at: CUdeviceptr, value: u32, count: usize) -> Code {
    if !at.is_multiple_of(4) {
        return ERROR_INVALID_VALUE;
    }
    memset("cuMemsetD32_v2", 0, at, 4 * count as u64, value.to_le_bytes())
}

extern "C" fn cuMemsetD32Async(at: CUdeviceptr, value: u32, count: usize, stream: Handle) -> Code {
    if !at.is_multiple_of(4) {
        return ERROR_INVALID_VALUE;
    }
    memset("cuMemsetD32Async", stream, at, 4 * count as u64, value.to_le_bytes())
}

/// A copy: which way it goes follows from the addresses, as unified addressing allows. The
/// synchronous ones (`waits`) use the legacy stream, and wait where the manual's "API
/// synchronization behavior" says so.
///
/// # Safety
///
/// Pageable host addresses among `to` and `from` are valid for `len` bytes until this returns,
/// pinned ones until the operation has executed.
unsafe fn memcpy(
    name: &'static str,
    stream: Handle,
    to: u64,
    from: u64,
    len: usize,
    waits: bool,
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        if len == 0 || session.captured(stream)? {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        unsafe { submit_copy(session, stream, to, from, len, waits) }
    })
}

/// # Safety
///
/// As [`memcpy`].
unsafe fn submit_copy(
    session: &mut Session<'_>,
    stream: u32,
    to: u64,
    from: u64,
    len: usize,
    waits: bool,
) -> Outcome {
    let bytes = len as u64;
    let on_device = |at| address::device_of(at).is_some();
    let pageable = |session: &Session<'_>, at| !on_device(at) && !session.is_pinned(at, bytes);
    if pageable(session, to) {
        if pageable(session, from) {
            return Err(ERROR_INVALID_VALUE);
        }
        let to = HostPtr(to as usize as *mut c_void);
        let epoch = session.copy_out(stream, to, from, bytes)?;
        session.wait_for(epoch);
        return Ok(());
    }
    if pageable(session, from) {
        // SAFETY: by this function's contract, pageable memory is readable during the call.
        let taken = unsafe { std::slice::from_raw_parts(from as usize as *const u8, len) };
        if waits {
            // Earlier work of the stream is waited for; the transfer itself need not be.
            session.synchronize_stream(stream);
        }
        return session.copy_in(stream, to, taken.into()).map(drop);
    }
    let epoch = session.copy(stream, to, from, bytes)?;
    if waits && !(on_device(to) && on_device(from)) {
        session.wait_for(epoch);
    }
    Ok(())
}

unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: u64, len: usize) -> Code {
    // SAFETY: the driver's contract is that of `memcpy`; so for all copies here.
    unsafe { memcpy("cuMemcpyHtoD_v2", 0, to, from, len, true) }
}

unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: u64,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyHtoDAsync_v2", stream, to, from, len, false) }
}

unsafe extern "C" fn cuMemcpyDtoH_v2(to: u64, from: CUdeviceptr, len: usize) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoH_v2", 0, to, from, len, true) }
}

unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: u64,
    from: CUdeviceptr,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoHAsync_v2", stream, to, from, len, false) }
}

unsafe extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, len: usize) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoD_v2", 0, to, from, len, true) }
}

unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoDAsync_v2", stream, to, from, len, false) }
}

unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyAsync", stream, to, from, len, false) }
}

unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    _to_context: Handle,
    from: CUdeviceptr,
    _from_context: Handle,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyPeerAsync", stream, to, from, len, false) }
}
