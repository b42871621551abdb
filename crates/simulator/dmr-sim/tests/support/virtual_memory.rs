//! Virtual memory and stream memory operations, as thin driver calls.
#![allow(unsafe_code)] // the driver is called directly

use std::mem::MaybeUninit;

use cudarc::driver::sys::{self, CUdevice, CUstream};

use super::gpu::Driver;

/// The granularity of the simulated device, and of all real ones known.
pub(crate) const PAGE: usize = 2 << 20;

pub(crate) const NONE: u32 = 0;
pub(crate) const READ: u32 = 1;
pub(crate) const READ_WRITE: u32 = 3;

pub(crate) const GEQ: u32 = 0;
pub(crate) const EQ: u32 = 1;
pub(crate) const AND: u32 = 2;
pub(crate) const NOR: u32 = 3;

macro_rules! call {
    ($($call:tt)*) => {
        // SAFETY: arguments that the driver checks; pointers are to live locals, or wrong on
        // purpose where the simulated driver refuses them.
        unsafe { sys::$($call)* }.result()
    };
}

/// The structures' fields are at the same places in every version; the bindings give them different
/// types.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: i32,
    pub(crate) handle_types: u32,
    pub(crate) location: [i32; 2],
    pub(crate) metadata: u64,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

impl Properties {
    /// Ordinary memory of a device.
    pub(crate) fn of(device: CUdevice) -> Self {
        Self {
            kind: 1,
            handle_types: 0,
            location: [1, device],
            metadata: 0,
            compression: 0,
            rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

pub(crate) fn granularity(properties: &Properties, recommended: bool) -> Driver<usize> {
    use sys::CUmemAllocationGranularity_flags as Option;
    let option = if recommended {
        Option::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
    } else {
        Option::CU_MEM_ALLOC_GRANULARITY_MINIMUM
    };
    let mut bytes = 0;
    call!(cuMemGetAllocationGranularity(&mut bytes, (&raw const *properties).cast(), option))?;
    Ok(bytes)
}

pub(crate) fn reserve(bytes: usize) -> Driver<u64> {
    reserve_at(bytes, 0, 0, 0)
}

pub(crate) fn reserve_at(bytes: usize, alignment: usize, hint: u64, flags: u64) -> Driver<u64> {
    let mut at = 0;
    call!(cuMemAddressReserve(&mut at, bytes, alignment, hint, flags))?;
    Ok(at)
}

pub(crate) fn unreserve(at: u64, bytes: usize) -> Driver<()> {
    call!(cuMemAddressFree(at, bytes))
}

pub(crate) fn create(bytes: usize, device: CUdevice) -> Driver<u64> {
    create_with(bytes, &Properties::of(device), 0)
}

pub(crate) fn create_with(bytes: usize, properties: &Properties, flags: u64) -> Driver<u64> {
    let mut memory = 0;
    call!(cuMemCreate(&mut memory, bytes, (&raw const *properties).cast(), flags))?;
    Ok(memory)
}

pub(crate) fn release(memory: u64) -> Driver<()> {
    call!(cuMemRelease(memory))
}

pub(crate) fn retain(at: u64) -> Driver<u64> {
    let mut memory = 0;
    call!(cuMemRetainAllocationHandle(&mut memory, at as *mut _))?;
    Ok(memory)
}

pub(crate) fn properties(memory: u64) -> Driver<Properties> {
    let mut properties = MaybeUninit::<Properties>::zeroed();
    call!(cuMemGetAllocationPropertiesFromHandle(properties.as_mut_ptr().cast(), memory))?;
    // SAFETY: plain data, zeroed and then written.
    Ok(unsafe { properties.assume_init() })
}

/// A file descriptor of the memory (handle type 1), which the caller closes.
pub(crate) fn export(memory: u64, handle_type: u32, flags: u64) -> Driver<i32> {
    let mut fd = -1;
    let handle_type = sys::CUmemAllocationHandleType(handle_type);
    call!(cuMemExportToShareableHandle((&raw mut fd).cast(), memory, handle_type, flags))?;
    Ok(fd)
}

pub(crate) fn map(at: u64, bytes: usize, memory: u64) -> Driver<()> {
    map_at(at, bytes, 0, memory, 0)
}

pub(crate) fn map_at(at: u64, bytes: usize, offset: usize, memory: u64, flags: u64) -> Driver<()> {
    call!(cuMemMap(at, bytes, offset, memory, flags))
}

pub(crate) fn unmap(at: u64, bytes: usize) -> Driver<()> {
    call!(cuMemUnmap(at, bytes))
}

pub(crate) fn set_access(at: u64, bytes: usize, device: CUdevice, flags: u32) -> Driver<()> {
    set_access_of(at, bytes, &[[1, device, flags as i32]])
}

/// Descriptions are location type, location, and flags.
pub(crate) fn set_access_of(at: u64, bytes: usize, descriptions: &[[i32; 3]]) -> Driver<()> {
    call!(cuMemSetAccess(at, bytes, descriptions.as_ptr().cast(), descriptions.len()))
}

pub(crate) fn access(at: u64, device: CUdevice) -> Driver<u64> {
    let location = [1, device];
    let mut flags = u64::MAX;
    call!(cuMemGetAccess(&mut flags, location.as_ptr().cast(), at))?;
    Ok(flags)
}

/// Fresh memory, mapped with all rights for its device: where it is mapped, and its handle.
pub(crate) fn mapped(bytes: usize, device: CUdevice) -> (u64, u64) {
    let at = reserve(bytes).expect("reserve");
    let memory = create(bytes, device).expect("create");
    map(at, bytes, memory).expect("map");
    set_access(at, bytes, device, READ_WRITE).expect("set access");
    (at, memory)
}

/// Takes everything back that [`mapped`] made.
pub(crate) fn take_back((at, memory): (u64, u64), bytes: usize) {
    unmap(at, bytes).expect("unmap");
    release(memory).expect("release");
    unreserve(at, bytes).expect("free addresses");
}

pub(crate) fn write32(stream: CUstream, at: u64, value: u32) -> Driver<()> {
    call!(cuStreamWriteValue32_v2(stream, at, value, 0))
}

pub(crate) fn write64(stream: CUstream, at: u64, value: u64) -> Driver<()> {
    call!(cuStreamWriteValue64_v2(stream, at, value, 0))
}

pub(crate) fn wait32(stream: CUstream, at: u64, value: u32, flags: u32) -> Driver<()> {
    call!(cuStreamWaitValue32_v2(stream, at, value, flags))
}

pub(crate) fn wait64(stream: CUstream, at: u64, value: u64, flags: u32) -> Driver<()> {
    call!(cuStreamWaitValue64_v2(stream, at, value, flags))
}

/// One of a batch: operation, address, value, flags.
pub(crate) type BatchOperation = (u32, u64, u64, u32);

pub(crate) fn batch(stream: CUstream, operations: &[BatchOperation]) -> Driver<()> {
    let mut packed: Vec<[u64; 6]> = operations
        .iter()
        .map(|&(operation, at, value, flags)| {
            [u64::from(operation), at, value, u64::from(flags), 0, 0]
        })
        .collect();
    let count = packed.len() as u32;
    call!(cuStreamBatchMemOp_v2(stream, count, packed.as_mut_ptr().cast(), 0))
}
