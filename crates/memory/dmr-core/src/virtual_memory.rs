//! Virtual memory management: reserved addresses, physical memory, and mapping memory at addresses.

use std::fmt::{self, Debug};

use crate::size::human_bytes;
use crate::{AllocTag, ResourceError, ResourceResult};

/// The driver's virtual memory management, for a pool that maps memory itself.
///
/// All sizes and addresses, in bytes, are multiples of [`granularity`](Self::granularity). The
/// driver takes tens of microseconds to create, map, unmap or destroy a piece of memory, nearly
/// independent of its size: a few large pieces cost less than many small ones.
///
/// No call waits for the device, and none is ordered on a stream: the caller of
/// [`unmap`](Self::unmap) makes sure that the work is done.
///
/// On a lost device, reserving, creating and mapping return
/// [`DeviceLost`](ResourceError::DeviceLost), and the calls that undo them succeed. In a forked
/// child every call returns [`ForkedProcess`](ResourceError::ForkedProcess).
///
/// An adaptor that forwards it passes every call to its upstream. An adaptor that charges for
/// memory charges [`create`](Self::create) and credits [`destroy`](Self::destroy).
pub trait VirtualMemory: Debug + Send + Sync {
    /// Returns the granularity of sizes and addresses: bytes, a power of two.
    fn granularity(&self) -> u64;

    /// Reserves `bytes` bytes of addresses. They take no memory, and are not counted.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) for zero and for a size that is not a multiple
    /// of the granularity; [`Driver`](ResourceError::Driver), including if no addresses are left.
    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange>;

    /// Releases all addresses of a range. Nothing may be mapped in it.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver), including if something is still mapped. The error
    /// contains the range, and nothing has changed.
    fn release(&self, range: AddressRange) -> Result<(), Box<ReleaseError>>;

    /// Creates `bytes` bytes of device memory, without an address and with undefined content.
    ///
    /// Only this call takes memory from the device: it is what a budget bounds, and what `reserved`
    /// of [`usage`](crate::DeviceMemoryResource::usage) counts.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) as [`reserve`](Self::reserve), and for more than
    /// the device has; [`OutOfMemory`](ResourceError::OutOfMemory),
    /// [`OutOfBudget`](ResourceError::OutOfBudget); [`Driver`](ResourceError::Driver). Nothing has
    /// changed.
    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory>;

    /// Destroys memory that is not mapped anywhere: the device can use it again at once.
    ///
    /// # Errors
    ///
    /// [`StillMapped`](ResourceError::StillMapped);
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver). The
    /// error contains the memory, and nothing has changed.
    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<DestroyError>>;

    /// Maps all of `memory` at `address`, where the device can then read and write it.
    ///
    /// The addresses belong to one range of [`reserve`](Self::reserve), and nothing is mapped
    /// there. The same memory may be mapped at several addresses, also while work uses it.
    ///
    /// # Errors
    ///
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver). The
    /// memory is not mapped there, and a later call may map there.
    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()>;

    /// Unmaps `memory` at `address`, where [`map`](Self::map) mapped it.
    ///
    /// Does not wait: all work that uses it at these addresses must be done.
    ///
    /// # Errors
    ///
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver). The
    /// memory is still mapped there.
    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()>;
}

/// A range of reserved addresses.
///
/// Linear: neither `Clone` nor `Copy`. [`VirtualMemory::release`] of the resource that reserved it
/// consumes it; dropping it instead leaks the addresses.
#[must_use = "dropping a range leaks its addresses: call `release`"]
pub struct AddressRange {
    base: u64,
    bytes: u64,
}

impl AddressRange {
    /// Makes a range. Only implementations of [`VirtualMemory`] do this.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `base` on are reserved for the owner of this range, and no other range
    /// contains any of them, until the `release` of the calling resource has consumed it.
    #[allow(unsafe_code, reason = "a claim about device addresses")]
    pub const unsafe fn from_parts(base: u64, bytes: u64) -> Self {
        Self { base, bytes }
    }

    /// Returns the first address (a `CUdeviceptr`).
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// `AddressRange(2 MiB at 0x7f0000000000)`.
impl Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressRange({} at {:#x})", human_bytes(self.bytes), self.base)
    }
}

/// Device memory without an address.
///
/// Linear: neither `Clone` nor `Copy`. [`VirtualMemory::destroy`] of the resource that created it
/// consumes it; dropping it instead leaks the memory, which `reserved` of
/// [`usage`](crate::DeviceMemoryResource::usage) goes on counting.
#[must_use = "dropping it leaks the memory: call `destroy`"]
pub struct PhysicalMemory {
    handle: u64,
    bytes: u64,
    tag: AllocTag,
    device_ordinal: u16,
}

impl PhysicalMemory {
    /// Makes a value for created memory. Only implementations of [`VirtualMemory`] do this. Device
    /// ordinals fit in 16 bits.
    ///
    /// # Safety
    ///
    /// `handle` names `bytes` bytes of memory of the device for the calling resource, and no other
    /// `PhysicalMemory` has it, until the `destroy` of the same resource has consumed this value.
    #[allow(unsafe_code, reason = "a claim about device memory")]
    pub const unsafe fn from_parts(
        handle: u64,
        bytes: u64,
        device_ordinal: usize,
        tag: AllocTag,
    ) -> Self {
        Self { handle, bytes, tag, device_ordinal: device_ordinal as u16 }
    }

    /// Returns the handle (a `CUmemGenericAllocationHandle`), which is unique among the memory that
    /// the same resource has created and not destroyed.
    #[must_use]
    pub const fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns its size in bytes, a multiple of the granularity.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the tag that was passed to [`create`](VirtualMemory::create).
    #[must_use]
    pub const fn tag(&self) -> AllocTag {
        self.tag
    }

    /// Returns the CUDA device ordinal.
    #[must_use]
    pub const fn device_ordinal(&self) -> usize {
        self.device_ordinal as usize
    }
}

/// `PhysicalMemory(2 MiB, handle 0x1)`.
impl Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PhysicalMemory({}, handle {:#x})", human_bytes(self.bytes), self.handle)
    }
}

/// The error of [`VirtualMemory::release`], with the range.
#[derive(Debug, thiserror::Error)]
#[error("{range:?} could not be released: {error}")]
#[non_exhaustive]
#[must_use = "the range is inside: dropping this error leaks its addresses"]
pub struct ReleaseError {
    /// The cause.
    #[source]
    pub error: ResourceError,
    /// The range, unchanged.
    pub range: AddressRange,
}

impl ReleaseError {
    /// Makes the error, which contains the range.
    pub fn new(error: ResourceError, range: AddressRange) -> Box<Self> {
        Box::new(Self { error, range })
    }
}

/// The error of [`VirtualMemory::destroy`], with the memory.
#[derive(Debug, thiserror::Error)]
#[error("{memory:?} could not be destroyed: {error}")]
#[non_exhaustive]
#[must_use = "the memory is inside: dropping this error leaks it"]
pub struct DestroyError {
    /// The cause.
    #[source]
    pub error: ResourceError,
    /// The memory, unchanged.
    pub memory: PhysicalMemory,
}

impl DestroyError {
    /// Makes the error, which contains the memory.
    pub fn new(error: ResourceError, memory: PhysicalMemory) -> Box<Self> {
        Box::new(Self { error, memory })
    }
}
