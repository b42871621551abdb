//! The stream-ordered memory allocator.

use std::ffi::{c_int, c_uint, c_void};

use super::virtual_memory::device as location_device;
use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::pool_attribute::*;
use crate::abi::*;
use crate::machine::{NodeWork, Session};
use crate::memory::{DriverPool, Rights};

chapter![
    cuMemAllocAsync,
    cuMemAllocFromPoolAsync,
    cuMemFreeAsync,
    cuMemPoolCreate,
    cuMemPoolDestroy,
    cuMemPoolTrimTo,
    cuMemPoolGetAttribute,
    cuMemPoolSetAttribute,
    cuMemPoolSetAccess,
    cuMemPoolGetAccess,
    cuDeviceGetDefaultMemPool,
    cuDeviceGetMemPool,
    cuDeviceSetMemPool,
];

pub(super) unsafe extern "C" fn cuMemAllocAsync(
    at: *mut CUdeviceptr,
    bytes: usize,
    stream: Handle,
) -> Code {
    driver_call("cuMemAllocAsync", Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        let pool = session.devices[session.streams[stream as usize].device].current_pool;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { allocate(session, at, bytes, pool, stream) }
    })
}

pub(super) unsafe extern "C" fn cuMemAllocFromPoolAsync(
    at: *mut CUdeviceptr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    driver_call("cuMemAllocFromPoolAsync", Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        let pool = session.index_of(Kind::Pool, pool)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { allocate(session, at, bytes, pool, stream) }
    })
}

/// # Safety
///
/// `at` is null, or valid for writing a pointer.
unsafe fn allocate(
    session: &mut Session<'_>,
    at: *mut CUdeviceptr,
    bytes: usize,
    pool: u32,
    stream: u32,
) -> Outcome {
    required(at)?;
    if bytes > 0 && session.captured(stream)? {
        let device = session.pool(pool)?.device;
        let bytes = bytes as u64;
        let memory = session.new_graph_memory(device, bytes)?;
        let address = memory.at;
        session.capture(stream, || NodeWork::Allocate(memory))?;
        // SAFETY: by this function's contract.
        return unsafe { put(at, address) };
    }
    session.refuse_while_capturing()?;
    let allocated = session.allocate_from_pool(pool, bytes as u64, stream)?;
    // SAFETY: by this function's contract.
    unsafe { put(at, allocated) }
}

pub(super) extern "C" fn cuMemFreeAsync(at: CUdeviceptr, stream: Handle) -> Code {
    driver_call("cuMemFreeAsync", Scope::Stream(stream), |session| {
        let stream = session.stream(stream)?;
        // Only a graph's own memory can be freed in a capture, which stays valid after the refusal.
        if at != 0 && session.captured(stream)? {
            let capture = session.streams[stream as usize].capture.map(|capture| capture.id);
            let captured = capture.and_then(|id| session.graphs.captures.get(&id));
            if !captured.is_some_and(|captured| captured.graph.allocates(at)) {
                return Err(ERROR_INVALID_VALUE);
            }
            return session.capture(stream, || NodeWork::Free(at)).map(drop);
        }
        session.refuse_while_capturing()?;
        session.free_on_stream(at, stream)?;
        session.bury_dead_pools();
        Ok(())
    })
}

unsafe extern "C" fn cuMemPoolCreate(pool: *mut Handle, props: *const CUmemPoolProps) -> Code {
    if props.is_null() {
        return ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so by the driver's contract it points to properties, whose head this is.
    let props = unsafe { props.read_unaligned() };
    const DEVICE: c_int = 1;
    if props.location_type != DEVICE || props.alloc_type != 1 {
        return ERROR_INVALID_VALUE;
    }
    driver_call("cuMemPoolCreate", Scope::Device(props.location_id), |session| {
        required(pool)?;
        let device = session.device_index(props.location_id)?;
        let index = session.pools.len() as u32;
        session.pools.push(DriverPool::new(device, props.max_size as u64));
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(pool, session.handle(Kind::Pool, index)) }
    })
}

extern "C" fn cuMemPoolDestroy(pool: Handle) -> Code {
    driver_call("cuMemPoolDestroy", Scope::Pool(pool), |session| {
        let index = session.index_of(Kind::Pool, pool)?;
        let device = session.pool(index)?.device;
        if (index as usize) < session.devices.len() {
            return Err(ERROR_INVALID_VALUE); // a device's default pool stays
        }
        if session.devices[device].current_pool == index {
            session.devices[device].current_pool = device as u32;
        }
        // Live blocks stay valid; the pool ends with the last of them.
        session.dead_pools.push(index);
        session.bury_dead_pools();
        Ok(())
    })
}

extern "C" fn cuMemPoolTrimTo(pool: Handle, keep: usize) -> Code {
    driver_call("cuMemPoolTrimTo", Scope::Pool(pool), |session| {
        let index = session.index_of(Kind::Pool, pool)?;
        session.pool(index)?;
        session.refuse_while_capturing()?;
        session.trim(index as usize, keep as u64);
        Ok(())
    })
}

unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: Handle,
    attribute: c_int,
    value: *mut c_void,
) -> Code {
    driver_call("cuMemPoolGetAttribute", Scope::Pool(pool), |session| {
        let index = session.index_of(Kind::Pool, pool)?;
        session.refuse_while_capturing()?;
        let pool = session.pool(index)?;
        let switch = |on: bool| {
            // SAFETY: the caller's pointer is null or valid for the attribute's type, an `int`.
            unsafe { put(value.cast::<c_int>(), c_int::from(on)) }
        };
        let bytes = |bytes: u64| {
            // SAFETY: the caller's pointer is null or valid for the attribute's type, a
            // `cuuint64_t`.
            unsafe { put(value.cast::<u64>(), bytes) }
        };
        match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES => switch(pool.follow_event_dependencies),
            REUSE_ALLOW_OPPORTUNISTIC => switch(pool.opportunistic),
            REUSE_ALLOW_INTERNAL_DEPENDENCIES => switch(pool.internal_dependencies),
            RELEASE_THRESHOLD => bytes(pool.release_threshold),
            RESERVED_MEM_CURRENT => bytes(pool.reserved.current),
            RESERVED_MEM_HIGH => bytes(pool.reserved.high),
            USED_MEM_CURRENT => bytes(pool.used.current),
            USED_MEM_HIGH => bytes(pool.used.high),
            _ => Err(ERROR_INVALID_VALUE),
        }
    })
}

unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: Handle,
    attribute: c_int,
    value: *const c_void,
) -> Code {
    if value.is_null() {
        return ERROR_INVALID_VALUE;
    }
    driver_call("cuMemPoolSetAttribute", Scope::Pool(pool), |session| {
        let index = session.index_of(Kind::Pool, pool)?;
        let pool = session.pool(index)?;
        // SAFETY: not null, so valid for the attribute's type, an `int` for switches.
        let switch = || unsafe { value.cast::<c_int>().read_unaligned() } != 0;
        // SAFETY: not null, so valid for the attribute's type, a `cuuint64_t` for sizes.
        let bytes = || unsafe { value.cast::<u64>().read_unaligned() };
        match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES => pool.follow_event_dependencies = switch(),
            REUSE_ALLOW_OPPORTUNISTIC => pool.opportunistic = switch(),
            REUSE_ALLOW_INTERNAL_DEPENDENCIES => pool.internal_dependencies = switch(),
            RELEASE_THRESHOLD => pool.release_threshold = bytes(),
            // High-water marks can be reset, to 0 only.
            RESERVED_MEM_HIGH if bytes() == 0 => pool.reserved.high = pool.reserved.current,
            USED_MEM_HIGH if bytes() == 0 => pool.used.high = pool.used.current,
            _ => return Err(ERROR_INVALID_VALUE),
        }
        Ok(())
    })
}

unsafe extern "C" fn cuMemPoolSetAccess(
    pool: Handle,
    access: *const CUmemAccessDesc,
    count: usize,
) -> Code {
    driver_call("cuMemPoolSetAccess", Scope::Pool(pool), |session| {
        let index = session.index_of(Kind::Pool, pool)?;
        let owner = session.pool(index)?.device;
        if access.is_null() && count > 0 || count > session.devices.len() {
            return Err(ERROR_INVALID_VALUE);
        }
        let mut wanted = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: not null, so by the driver's contract `count` descriptions.
            let access = unsafe { access.add(i).read_unaligned() };
            let rights = Rights::of_flags(access.flags)?;
            let device = location_device(session, access.location)?;
            match device == owner {
                // The owner's right cannot be taken away (as observed on an H200).
                true if rights == Rights::None => return Err(ERROR_INVALID_DEVICE),
                _ if rights == Rights::Read => return Err(ERROR_NOT_SUPPORTED),
                false if !session.has_peer_path(device, owner) => {
                    return Err(ERROR_INVALID_DEVICE);
                }
                _ => wanted.push((device, rights)),
            }
        }
        for (device, rights) in wanted {
            session.set_pool_rights(index, device, rights);
        }
        Ok(())
    })
}

unsafe extern "C" fn cuMemPoolGetAccess(
    flags: *mut c_uint,
    pool: Handle,
    location: *const CUmemLocation,
) -> Code {
    driver_call("cuMemPoolGetAccess", Scope::Pool(pool), |session| {
        let index = session.index_of(Kind::Pool, pool)?;
        let owner = session.pool(index)?.device;
        if location.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract a location.
        let device = location_device(session, unsafe { location.read_unaligned() })?;
        let rights = match device == owner {
            true => Rights::ReadWrite,
            false => session.memory.present.pool_rights(index, device),
        };
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, rights.flags()) }
    })
}

unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: CUdevice) -> Code {
    driver_call("cuDeviceGetDefaultMemPool", Scope::Device(device), |session| {
        let index = session.device_index(device)? as u32;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(pool, session.handle(Kind::Pool, index)) }
    })
}

unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut Handle, device: CUdevice) -> Code {
    driver_call("cuDeviceGetMemPool", Scope::Device(device), |session| {
        let device = session.device_index(device)?;
        let index = session.devices[device].current_pool;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(pool, session.handle(Kind::Pool, index)) }
    })
}

extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: Handle) -> Code {
    driver_call("cuDeviceSetMemPool", Scope::Device(device), |session| {
        let device = session.device_index(device)?;
        let index = session.index_of(Kind::Pool, pool)?;
        if session.pool(index)?.device != device {
            return Err(ERROR_INVALID_VALUE);
        }
        session.devices[device].current_pool = index;
        Ok(())
    })
}
