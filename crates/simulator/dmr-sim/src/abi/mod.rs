//! The driver's C types, constants and result codes, as far as the simulator uses them.
//!
//! Values are those of NVIDIA's `cuda.h`.

#![allow(non_camel_case_types, reason = "C names")]

pub(crate) mod attributes;
pub(crate) mod codes;
pub(crate) mod handle;

use std::ffi::{c_int, c_uint};

pub(crate) use crate::abi::codes::*;

/// A `CUdevice`: the ordinal.
pub(crate) type CUdevice = c_int;
/// A `CUdeviceptr`.
pub(crate) type CUdeviceptr = u64;
/// Opaque handles. Never dereferenced: they are numbers (see `handle.rs`).
pub(crate) type Handle = u64;

/// The result of an entry point's body; `Err` has a `CUresult`.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_LEGACY`, as a handle; the null handle means the same, except in functions for
/// per-thread default streams.
pub(crate) const STREAM_LEGACY: Handle = 1;
/// `CU_STREAM_PER_THREAD`, as a handle.
pub(crate) const STREAM_PER_THREAD: Handle = 2;
/// `CU_STREAM_CAPTURE_STATUS_*`.
pub(crate) const CAPTURE_NONE: c_int = 0;
pub(crate) const CAPTURE_ACTIVE: c_int = 1;
pub(crate) const CAPTURE_INVALIDATED: c_int = 2;

/// `CUmemPool_attribute`.
pub(crate) mod pool_attribute {
    use std::ffi::c_int;

    pub(crate) const REUSE_FOLLOW_EVENT_DEPENDENCIES: c_int = 1;
    pub(crate) const REUSE_ALLOW_OPPORTUNISTIC: c_int = 2;
    pub(crate) const REUSE_ALLOW_INTERNAL_DEPENDENCIES: c_int = 3;
    pub(crate) const RELEASE_THRESHOLD: c_int = 4;
    pub(crate) const RESERVED_MEM_CURRENT: c_int = 5;
    pub(crate) const RESERVED_MEM_HIGH: c_int = 6;
    pub(crate) const USED_MEM_CURRENT: c_int = 7;
    pub(crate) const USED_MEM_HIGH: c_int = 8;
}

/// The head of `CUmemPoolProps`, which is the same in every version that cudarc binds; the rest
/// (maximum size, usage) follows it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemPoolProps {
    pub(crate) alloc_type: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location_type: c_int,
    pub(crate) location_id: c_int,
    pub(crate) win32_security_attributes: *mut std::ffi::c_void,
    pub(crate) max_size: usize,
}

/// `CUmemAllocationProp`, which is the same in every version that cudarc binds.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAllocationProp {
    pub(crate) alloc_type: c_int,
    pub(crate) handle_types: c_uint,
    pub(crate) location: CUmemLocation,
    pub(crate) win32_metadata: u64,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemLocation {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUmemAccessDesc {
    pub(crate) location: CUmemLocation,
    pub(crate) flags: c_uint,
}

/// `CU_MEM_LOCATION_TYPE_*`.
pub(crate) const LOCATION_DEVICE: c_int = 1;
pub(crate) const LOCATION_HOST_NUMA_CURRENT: c_int = 4;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const ALLOCATION_PINNED: c_int = 1;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const HANDLE_TYPE_FILE_DESCRIPTOR: c_int = 1;

/// `CUstreamBatchMemOpParams`, as far as its members agree.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CUstreamBatchMemOpParams {
    pub(crate) operation: c_int,
    /// The flags of a barrier; unused in other operations.
    pub(crate) barrier_flags: c_uint,
    pub(crate) at: CUdeviceptr,
    pub(crate) value: u64,
    pub(crate) flags: c_uint,
    pub(crate) rest: [u64; 2],
}

/// The `CUdevice_attribute` values that differ between devices, or decide whether calls are
/// refused.
pub(crate) mod attribute {
    use std::ffi::c_int;

    pub(crate) const PCI_BUS_ID: c_int = 33;
    pub(crate) const STREAM_MEM_OPS_V1: c_int = 92;
    pub(crate) const STREAM_MEM_OPS_64_BIT_V1: c_int = 93;
    pub(crate) const STREAM_WAIT_VALUE_NOR_V1: c_int = 94;
    pub(crate) const FLUSH_REMOTE_WRITES: c_int = 98;
    pub(crate) const VIRTUAL_MEMORY: c_int = 102;
    /// The attribute of each bit of `CUmemAllocationHandleType`.
    pub(crate) const HANDLE_TYPES: [c_int; 4] = [103, 104, 105, 128];
    pub(crate) const RDMA_WITH_VIRTUAL_MEMORY: c_int = 110;
    pub(crate) const STREAM_MEM_OPS_64_BIT: c_int = 122;
    pub(crate) const STREAM_WAIT_VALUE_NOR: c_int = 123;
}
