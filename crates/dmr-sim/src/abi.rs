//! The driver's C types, constants and result codes, as far as the simulator uses them.
//!
//! Values are those of NVIDIA's `cuda.h`.

#![allow(non_camel_case_types, reason = "C names")]

use std::ffi::{CStr, c_int, c_uint};

/// A `CUresult`.
pub(crate) type Code = c_int;
/// A `CUdevice`: the ordinal.
pub(crate) type CUdevice = c_int;
/// A `CUdeviceptr`.
pub(crate) type CUdeviceptr = u64;
/// Opaque handles. Never dereferenced: they are numbers (see `handle.rs`).
pub(crate) type Handle = u64;

/// The result of an entry point's body; `Err` has a `CUresult`.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[allow(dead_code, reason = "programs plant codes that the simulator never makes")]
        pub(crate) const $name: Code = $code;)*

        /// Returns the constant's name and a sentence, for `cuGetErrorName` and `cuGetErrorString`.
        pub(crate) fn describe(code: Code) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                $($code => {
                    const NAME: &str = concat!("CUDA_", stringify!($name), "\0");
                    const TEXT: &str = concat!($text, "\0");
                    match (
                        CStr::from_bytes_with_nul(NAME.as_bytes()),
                        CStr::from_bytes_with_nul(TEXT.as_bytes()),
                    ) {
                        (Ok(name), Ok(text)) => Some((name, text)),
                        _ => None,
                    }
                })*
                _ => None,
            }
        }
    };
}

codes! {
    SUCCESS = 0, "no error";
    ERROR_INVALID_VALUE = 1, "invalid argument";
    ERROR_OUT_OF_MEMORY = 2, "out of memory";
    ERROR_NOT_INITIALIZED = 3, "initialization error";
    ERROR_DEINITIALIZED = 4, "driver shutting down";
    ERROR_STUB_LIBRARY = 34, "CUDA driver is a stub library";
    ERROR_NO_DEVICE = 100, "no CUDA-capable device is detected";
    ERROR_INVALID_DEVICE = 101, "invalid device ordinal";
    ERROR_INVALID_IMAGE = 200, "device kernel image is invalid";
    ERROR_INVALID_CONTEXT = 201, "invalid device context";
    ERROR_MAP_FAILED = 205, "mapping of buffer object failed";
    ERROR_UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ERROR_NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ERROR_ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    ERROR_PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    ERROR_INVALID_PTX = 218, "a PTX JIT compilation failed";
    ERROR_FILE_NOT_FOUND = 301, "file not found";
    ERROR_OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    ERROR_INVALID_HANDLE = 400, "invalid resource handle";
    ERROR_ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    ERROR_NOT_FOUND = 500, "named symbol not found";
    ERROR_NOT_READY = 600, "device not ready";
    ERROR_ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    ERROR_LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    ERROR_PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    ERROR_PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    ERROR_CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ERROR_ASSERT = 710, "device-side assert triggered";
    ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    ERROR_HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    ERROR_HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ERROR_ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    ERROR_MISALIGNED_ADDRESS = 716, "misaligned address";
    ERROR_INVALID_ADDRESS_SPACE = 717, "operation not supported on global/shared address space";
    ERROR_INVALID_PC = 718, "invalid program counter";
    ERROR_LAUNCH_FAILED = 719, "unspecified launch failure";
    ERROR_NOT_PERMITTED = 800, "operation not permitted";
    ERROR_NOT_SUPPORTED = 801, "operation not supported";
    ERROR_STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    ERROR_STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    ERROR_STREAM_CAPTURE_UNMATCHED = 903, "the capture was not initiated in this stream";
    ERROR_STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    ERROR_STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    ERROR_CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    ERROR_UNKNOWN = 999, "unknown error";
}

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_STREAM_LEGACY`, as a handle; the null handle means the same.
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

/// The `CUdevice_attribute` values that decide whether calls are refused.
pub(crate) mod attribute {
    use std::ffi::c_int;

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

/// Returns the value of a `CUdevice_attribute` of the simulated device; 0 for all others.
pub(crate) fn device_attribute(attribute: c_int) -> Outcome<c_int> {
    Ok(match attribute {
        1..=3 => 1024,           // threads per block, x, y
        4 => 64,                 // z
        5 => c_int::MAX,         // grid x
        6 | 7 => 65_535,         // grid y, z
        8 | 81 | 97 => 48 << 10, // shared memory
        10 => 32,                // warp size
        12 | 82 => 65_536,       // registers
        13 => 1_980_000,         // clock, kHz
        14 => 512,               // texture alignment
        16 => 132,               // multiprocessors
        15 | 31 => 1,            // overlap, concurrent kernels
        36 => 3_201_000,         // memory clock, kHz
        37 => 6144,              // memory bus width
        38 => 60 << 20,          // L2 bytes
        39 => 2048,              // threads per multiprocessor
        40 => 3,                 // copy engines
        41 => 1,                 // unified addressing
        75 => 9,                 // compute capability major
        78..=80 => 1,            // stream priorities, caches
        91 => 1,                 // host pointer for registered memory
        92..=94 => 1,            // stream memory operations, first version
        95 => 0,                 // cooperative launch is not simulated
        102 => 1,                // virtual memory
        103..=105 | 128 => 0,    // exporting memory is not simulated
        110 => 1,                // RDMA to virtual memory
        115 => 1,                // memory pools
        122 | 123 => 1,          // stream memory operations: 64 bits, NOR
        i if (1..=200).contains(&i) => 0,
        _ => return Err(ERROR_INVALID_VALUE),
    })
}
