//! Virtual memory management.
//!
//! Addresses belong to a universe, so calls with no other argument use the universe of the calling
//! thread's context, which the real driver does not need.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::{Scope, chapter, driver_call, put, required};
use crate::abi::handle::Kind;
use crate::abi::*;
use crate::machine::{Machine, Session};
use crate::memory::{Rights, virtual_memory::GRANULARITY};

chapter![
    cuMemGetAllocationGranularity,
    cuMemAddressReserve,
    cuMemAddressFree,
    cuMemCreate,
    cuMemRelease,
    cuMemRetainAllocationHandle,
    cuMemGetAllocationPropertiesFromHandle,
    cuMemExportToShareableHandle,
    cuMemMap,
    cuMemUnmap,
    cuMemSetAccess,
    cuMemGetAccess,
];

unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    option: c_int,
) -> Code {
    // SAFETY: by the driver's contract null, or properties.
    let properties = match unsafe { read_properties(properties) } {
        Ok(properties) => properties,
        Err(code) => return code,
    };
    let scope = Scope::Device(properties.location.id);
    driver_call("cuMemGetAllocationGranularity", scope, |session| {
        check_properties(session, &properties)?;
        if !(0..=1).contains(&option) {
            return Err(ERROR_INVALID_VALUE); // neither the minimum nor the recommended value
        }
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(granularity, GRANULARITY as usize) }
    })
}

unsafe extern "C" fn cuMemAddressReserve(
    at: *mut CUdeviceptr,
    bytes: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: c_ulonglong,
) -> Code {
    driver_call("cuMemAddressReserve", Scope::Context, |session| {
        supported(session)?;
        required(at)?;
        no_flags(flags)?;
        let reserved = session.reserve(bytes as u64, alignment as u64, hint)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(at, reserved) }
    })
}

extern "C" fn cuMemAddressFree(at: CUdeviceptr, bytes: usize) -> Code {
    driver_call("cuMemAddressFree", Scope::Context, |session| {
        supported(session)?;
        session.unreserve(at, bytes as u64)
    })
}

unsafe extern "C" fn cuMemCreate(
    memory: *mut Handle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> Code {
    // SAFETY: by the driver's contract null, or properties.
    let properties = match unsafe { read_properties(properties) } {
        Ok(properties) => properties,
        Err(code) => return code,
    };
    driver_call("cuMemCreate", Scope::Device(properties.location.id), |session| {
        let device = check_properties(session, &properties)?;
        required(memory)?;
        no_flags(flags)?;
        if let Some(code) = session.devices[device].lost {
            return Err(code);
        }
        let created = session.create(device, bytes as u64, properties)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(memory, session.handle(Kind::Memory, created)) }
    })
}

extern "C" fn cuMemRelease(memory: Handle) -> Code {
    driver_call("cuMemRelease", Scope::Memory(memory), |session| {
        supported(session)?;
        let memory = index(session, memory)?;
        session.release(memory)
    })
}

unsafe extern "C" fn cuMemRetainAllocationHandle(memory: *mut Handle, at: CUdeviceptr) -> Code {
    driver_call("cuMemRetainAllocationHandle", Scope::Context, |session| {
        supported(session)?;
        required(memory)?;
        let retained = session.retain(at)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(memory, session.handle(Kind::Memory, retained)) }
    })
}

unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    properties: *mut CUmemAllocationProp,
    memory: Handle,
) -> Code {
    driver_call("cuMemGetAllocationPropertiesFromHandle", Scope::Memory(memory), |session| {
        supported(session)?;
        let memory = index(session, memory)?;
        let found = session.properties(memory)?;
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(properties, found) }
    })
}

unsafe extern "C" fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    memory: Handle,
    handle_type: c_int,
    flags: c_ulonglong,
) -> Code {
    driver_call("cuMemExportToShareableHandle", Scope::Memory(memory), |session| {
        supported(session)?;
        no_flags(flags)?;
        required(shareable)?;
        let memory = index(session, memory)?;
        let asked = session.properties(memory)?.handle_types;
        if asked & handle_type as c_uint == 0 {
            return Err(ERROR_INVALID_VALUE);
        }
        if handle_type != HANDLE_TYPE_FILE_DESCRIPTOR {
            return Err(ERROR_NOT_SUPPORTED);
        }
        let fd = empty_file()?;
        // SAFETY: by the driver's contract the caller's pointer is to an int.
        unsafe { put(shareable.cast::<c_int>(), fd) }
    })
}

extern "C" fn cuMemMap(
    at: CUdeviceptr,
    bytes: usize,
    offset: usize,
    memory: Handle,
    flags: c_ulonglong,
) -> Code {
    driver_call("cuMemMap", Scope::Memory(memory), |session| {
        supported(session)?;
        no_flags(flags)?;
        let memory = index(session, memory)?;
        session.map(at, bytes as u64, offset as u64, memory)
    })
}

extern "C" fn cuMemUnmap(at: CUdeviceptr, bytes: usize) -> Code {
    driver_call("cuMemUnmap", Scope::Context, |session| {
        supported(session)?;
        session.unmap(at, bytes as u64)
    })
}

unsafe extern "C" fn cuMemSetAccess(
    at: CUdeviceptr,
    bytes: usize,
    access: *const CUmemAccessDesc,
    count: usize,
) -> Code {
    driver_call("cuMemSetAccess", Scope::Context, |session| {
        supported(session)?;
        if access.is_null() || count == 0 || count > session.devices.len() {
            return Err(ERROR_INVALID_VALUE);
        }
        let mut wanted = Vec::with_capacity(count);
        for i in 0..count {
            // SAFETY: not null, so by the driver's contract `count` descriptions.
            let access = unsafe { access.add(i).read_unaligned() };
            let rights = Rights::of_flags(access.flags)?;
            wanted.push((device(session, access.location)?, rights));
        }
        for (device, rights) in wanted {
            session.set_access(at, bytes as u64, device, rights)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const CUmemLocation,
    at: CUdeviceptr,
) -> Code {
    driver_call("cuMemGetAccess", Scope::Context, |session| {
        supported(session)?;
        if location.is_null() {
            return Err(ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, so by the driver's contract a location.
        let device = device(session, unsafe { location.read_unaligned() })?;
        let rights = session.rights(at, device)?.flags();
        // SAFETY: the caller's pointer is null or writable.
        unsafe { put(flags, c_ulonglong::from(rights)) }
    })
}

/// # Safety
///
/// `properties` is null, or points to properties.
unsafe fn read_properties(properties: *const CUmemAllocationProp) -> Outcome<CUmemAllocationProp> {
    if properties.is_null() {
        return Err(ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so by this function's contract.
    Ok(unsafe { properties.read_unaligned() })
}

/// Returns the device of memory with these properties.
fn check_properties(session: &Session<'_>, properties: &CUmemAllocationProp) -> Outcome<usize> {
    supported(session)?;
    if properties.alloc_type != ALLOCATION_PINNED {
        return Err(ERROR_INVALID_VALUE);
    }
    let device = device(session, properties.location)?;
    for (i, attribute) in attribute::HANDLE_TYPES.into_iter().enumerate() {
        if properties.handle_types & (1 << i) as c_uint != 0 {
            session.require(&[attribute])?;
        }
    }
    if properties.handle_types >= 1 << attribute::HANDLE_TYPES.len() {
        return Err(ERROR_INVALID_VALUE);
    }
    if properties.rdma_capable != 0 {
        session.require(&[attribute::RDMA_WITH_VIRTUAL_MEMORY])?;
    }
    Ok(device)
}

/// Makes a file descriptor for exported memory, which cannot be imported.
#[cfg(target_os = "linux")]
fn empty_file() -> Outcome<c_int> {
    // SAFETY: the name is a C string; returns a new file descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"dmr-sim memory".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 { Err(ERROR_OUT_OF_MEMORY) } else { Ok(fd) }
}

#[cfg(not(target_os = "linux"))]
fn empty_file() -> Outcome<c_int> {
    Err(ERROR_NOT_SUPPORTED)
}

pub(super) fn device(session: &Session<'_>, location: CUmemLocation) -> Outcome<usize> {
    match location.kind {
        LOCATION_DEVICE => session.device_index(location.id),
        // Memory of the host is not simulated.
        2..=LOCATION_HOST_NUMA_CURRENT => Err(ERROR_NOT_SUPPORTED),
        _ => Err(ERROR_INVALID_VALUE),
    }
}

fn index(session: &Session<'_>, memory: Handle) -> Outcome<u32> {
    session.index_of(Kind::Memory, memory).map_err(|_| ERROR_INVALID_VALUE)
}

fn supported(session: &Machine) -> Outcome {
    session.require(&[attribute::VIRTUAL_MEMORY])
}

fn no_flags(flags: c_ulonglong) -> Outcome {
    if flags == 0 { Ok(()) } else { Err(ERROR_INVALID_VALUE) }
}
