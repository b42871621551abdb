//! [`DriverAllocation`]: the memory of a block that its resource has given away.

use std::fmt;

use crate::size::human_bytes;
use crate::{DeviceBlock, StreamId};

/// Device memory that the driver allocated, and that no resource has any more:
/// [`give_away`](crate::DeviceMemoryResource::give_away) returns it.
///
/// `cuMemFreeAsync` and `cuMemFree` accept its address. Linear: neither `Clone` nor `Copy`.
/// Dropping it leaks the memory.
#[must_use = "dropping it leaks the memory: free it with the driver"]
#[derive(PartialEq, Eq)]
pub struct DriverAllocation {
    ptr: u64,
    bytes: usize,
    device_ordinal: usize,
    home_stream: StreamId,
}

impl DriverAllocation {
    /// Makes a value of the block, which is gone. Only backends do this.
    ///
    /// # Safety
    ///
    /// The driver allocated memory at the block's address, with `cuMemAlloc`, `cuMemAllocAsync` or
    /// from a pool of the driver, and nothing else frees it. Work that is submitted to the block's
    /// home stream from now on comes after all uses of the block that were recorded, and no more
    /// can be.
    #[allow(unsafe_code, reason = "a claim about device memory")]
    pub const unsafe fn from_block(block: DeviceBlock) -> Self {
        Self {
            ptr: block.ptr(),
            bytes: block.bytes(),
            device_ordinal: block.device_ordinal(),
            home_stream: block.alloc_stream(),
        }
    }

    /// Returns the address (a `CUdeviceptr`).
    #[must_use]
    pub const fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Returns the size in bytes: at least as many are allocated.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the CUDA device ordinal.
    #[must_use]
    pub const fn device_ordinal(&self) -> usize {
        self.device_ordinal
    }

    /// Returns the home stream of the block: its next work comes after all recorded uses.
    #[must_use]
    pub const fn home_stream(&self) -> StreamId {
        self.home_stream
    }
}

/// `DriverAllocation(2 MiB at 0x7f0000000000)`.
impl fmt::Debug for DriverAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverAllocation({} at {:#x})", human_bytes(self.bytes as u64), self.ptr)
    }
}
