//! Memory management: allocations, memsets, copies, pinned host memory.

use std::ffi::{c_uint, c_void};

use smallvec::SmallVec;

use super::{chapter, put, required};
use crate::abi::*;
use crate::address;
use crate::machine::HostPtr;
use crate::session::{Scope, Session, driver_call};

chapter![
    cuMemAlloc_v2,
    cuMemFree_v2,
    cuMemGetInfo_v2,
    cuMemHostAlloc,
    cuMemHostGetFlags,
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
    cuMemcpyPeer,
    cuMemcpyPeerAsync,
    cuMemcpyAsync,
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

unsafe extern "C" fn cuMemHostAlloc(at: *mut u64, bytes: usize, flags: c_uint) -> Code {
    // SAFETY: the caller's pointer is null or writable.
    unsafe { allocate_pinned("cuMemHostAlloc", at, bytes, flags) }
}

unsafe extern "C" fn cuMemHostGetFlags(flags: *mut c_uint, at: u64) -> Code {
    driver_call("cuMemHostGetFlags", Scope::Context, |session| {
        let known = session.host_flags(at)?;
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
        let allocated = session.allocate_pinned(bytes, flags)?;
        // SAFETY: by this function's contract.
        unsafe { put(at, allocated) }
    })
}

extern "C" fn cuMemFreeHost(at: u64) -> Code {
    driver_call("cuMemFreeHost", Scope::Context, |session| {
        session.refuse_while_capturing()?;
        session.unpin(at, false)
    })
}

extern "C" fn cuMemHostRegister_v2(at: u64, bytes: usize, _flags: c_uint) -> Code {
    driver_call("cuMemHostRegister_v2", Scope::Context, |session| {
        session.refuse_while_capturing()?;
        session.register(at, bytes as u64)
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
        if !session.is_pinned(host) {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(device, host) }
    })
}

/// Submits a memset. Memsets to device memory do not wait, also those that name no stream. `value` is repeated
/// `count` times.
fn memset<const N: usize>(
    name: &'static str,
    stream: Handle,
    at: u64,
    value: [u8; N],
    count: usize,
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        let len = (count as u64).checked_mul(N as u64).ok_or(ERROR_INVALID_VALUE)?;
        if !at.is_multiple_of(N as u64) {
            return Err(ERROR_INVALID_VALUE);
        }
        session.fill(stream, at, len, std::array::from_fn(|i| value[i % N]))
    })
}

extern "C" fn cuMemsetD8_v2(at: CUdeviceptr, value: u8, count: usize) -> Code {
    memset("cuMemsetD8_v2", 0, at, [value], count)
}

extern "C" fn cuMemsetD8Async(at: CUdeviceptr, value: u8, count: usize, stream: Handle) -> Code {
    memset("cuMemsetD8Async", stream, at, [value], count)
}

extern "C" fn cuMemsetD16Async(at: CUdeviceptr, value: u16, count: usize, stream: Handle) -> Code {
    memset("cuMemsetD16Async", stream, at, value.to_le_bytes(), count)
}

extern "C" fn cuMemsetD32_v2(at: CUdeviceptr, value: u32, count: usize) -> Code {
    memset("cuMemsetD32_v2", 0, at, value.to_le_bytes(), count)
}

extern "C" fn cuMemsetD32Async(at: CUdeviceptr, value: u32, count: usize, stream: Handle) -> Code {
    memset("cuMemsetD32Async", stream, at, value.to_le_bytes(), count)
}

/// The side of a copy that may be pageable host memory. Both never are.
#[derive(Clone, Copy)]
enum Pageable {
    /// `by_address`: the call names no contexts.
    Neither {
        by_address: bool,
    },
    Source,
    Target,
    Either,
}

/// Submits a copy. Device and pinned memory can be on either side, as unified addressing allows.
/// Synchronous copies (`waits`) use the legacy stream, and wait according to the manual's "API
/// synchronization behavior".
///
/// # Safety
///
/// A side that may be pageable, and is neither device nor pinned memory, is valid for `len` bytes
/// until this returns.
unsafe fn memcpy(
    name: &'static str,
    stream: Handle,
    to: u64,
    from: u64,
    len: usize,
    pageable: Pageable,
    waits: bool,
) -> Code {
    driver_call(name, Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        if len == 0 || session.captured(stream)? {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        unsafe { submit_copy(session, stream, to, from, len, pageable, waits) }
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
    pageable: Pageable,
    waits: bool,
) -> Outcome {
    let bytes = len as u64;
    let on_device = address::is_on_device;
    let is_pageable = |session: &Session<'_>, at| !on_device(at) && !session.is_pinned(at);
    if to == 0 || from == 0 || len > isize::MAX as usize {
        return Err(ERROR_INVALID_VALUE);
    }
    let allowed = match (is_pageable(session, from), is_pageable(session, to)) {
        (false, false) => true,
        (true, false) => matches!(pageable, Pageable::Source | Pageable::Either),
        (false, true) => matches!(pageable, Pageable::Target | Pageable::Either),
        (true, true) => false,
    };
    if !allowed {
        return Err(ERROR_INVALID_VALUE);
    }
    if is_pageable(session, to) {
        let to = HostPtr(to as usize as *mut c_void);
        let epoch = session.copy_out(stream, to, from, bytes)?;
        session.wait_for(epoch);
        return Ok(());
    }
    if is_pageable(session, from) {
        if waits {
            // Waits for earlier work of the stream; the transfer itself need not be complete.
            session.synchronize_stream(stream);
        }
        // SAFETY: by this function's contract, pageable memory is readable during the call. It is
        // read only if the range fits on the device.
        let take = || unsafe { std::slice::from_raw_parts(from as usize as *const u8, len) }.into();
        return session.copy_in(stream, to, bytes, take).map(drop);
    }
    let devices: SmallVec<[usize; 8]> = (0..session.devices.len()).collect();
    // Without access, it copies memory of `cuMemAlloc` of other devices only (as observed on an H200).
    let peers = matches!(pageable, Pageable::Neither { by_address: true }).then_some(&devices[..]);
    let epoch = session.copy(stream, to, from, bytes, peers)?;
    if waits && !(on_device(to) && on_device(from)) {
        session.wait_for(epoch);
    }
    Ok(())
}

unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: u64, len: usize) -> Code {
    // SAFETY: the driver's contract is that of `memcpy`; so for all copies here.
    unsafe { memcpy("cuMemcpyHtoD_v2", 0, to, from, len, Pageable::Source, true) }
}

unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: u64,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyHtoDAsync_v2", stream, to, from, len, Pageable::Source, false) }
}

unsafe extern "C" fn cuMemcpyDtoH_v2(to: u64, from: CUdeviceptr, len: usize) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoH_v2", 0, to, from, len, Pageable::Target, true) }
}

unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: u64,
    from: CUdeviceptr,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyDtoHAsync_v2", stream, to, from, len, Pageable::Target, false) }
}

unsafe extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, len: usize) -> Code {
    // SAFETY: as above.
    unsafe {
        memcpy("cuMemcpyDtoD_v2", 0, to, from, len, Pageable::Neither { by_address: true }, true)
    }
}

unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    stream: Handle,
) -> Code {
    // SAFETY: as above.
    unsafe {
        memcpy(
            "cuMemcpyDtoDAsync_v2",
            stream,
            to,
            from,
            len,
            Pageable::Neither { by_address: true },
            false,
        )
    }
}

unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) -> Code {
    // SAFETY: as above.
    unsafe { memcpy("cuMemcpyAsync", stream, to, from, len, Pageable::Either, false) }
}

unsafe extern "C" fn cuMemcpyPeer(
    to: CUdeviceptr,
    _to_context: Handle,
    from: CUdeviceptr,
    _from_context: Handle,
    len: usize,
) -> Code {
    // SAFETY: as above.
    unsafe {
        memcpy("cuMemcpyPeer", 0, to, from, len, Pageable::Neither { by_address: false }, true)
    }
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
    unsafe {
        memcpy(
            "cuMemcpyPeerAsync",
            stream,
            to,
            from,
            len,
            Pageable::Neither { by_address: false },
            false,
        )
    }
}
