//! Device memory in two halves: addresses, and the pages that are put under them.

use std::fmt::{self, Debug};

use crate::size::human_bytes;
use crate::{AllocTag, ResourceError, ResourceResult};

/// Addresses and pages apart, for a pool that decides itself what stands where.
///
/// All sizes and addresses, in bytes, are multiples of [`granularity`](Self::granularity). The
/// driver takes tens of microseconds for each piece of memory that is created, mapped, unmapped
/// or destroyed, nearly whatever its size: a few large pieces cost less than many small ones.
///
/// No call waits for the device, and none is ordered on a stream: whoever unmaps knows that the
/// work is done.
///
/// On a lost device ([`DeviceLost`](ResourceError::DeviceLost)) nothing is reserved, created or
/// mapped, and giving back and unmapping succeed. In a forked child every call is refused
/// ([`ForkedProcess`](ResourceError::ForkedProcess)).
///
/// An adaptor that forwards it passes every call to the resource inside. One that charges for
/// memory charges [`create`](Self::create), and credits [`destroy`](Self::destroy).
pub trait VirtualMemory: Debug + Send + Sync {
    /// What sizes and addresses are multiples of: bytes, a power of two.
    fn granularity(&self) -> u64;

    /// Sets `bytes` bytes of addresses aside. They take no memory, and nothing counts them.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) for zero and for what is not a multiple of the
    /// granularity; [`Driver`](ResourceError::Driver), also if there are no addresses left.
    fn reserve(&self, bytes: u64) -> ResourceResult<AddressRange>;

    /// Gives addresses back, all of a range at once. Nothing may be mapped in it.
    ///
    /// # Errors
    ///
    /// The range comes back inside the error: nothing is lost, nothing has changed.
    /// [`Driver`](ResourceError::Driver), also if something is still mapped.
    fn release(&self, range: AddressRange) -> Result<(), Box<RefusedRange>>;

    /// Takes `bytes` bytes of device memory, which have no address yet and whose content is
    /// undefined.
    ///
    /// This is what takes memory, and so what a budget bounds and `reserved` of
    /// [`usage`](crate::DeviceMemoryResource::usage) counts.
    ///
    /// # Errors
    ///
    /// [`InvalidSize`](ResourceError::InvalidSize) as [`reserve`](Self::reserve), and for more
    /// than the device has; [`OutOfMemory`](ResourceError::OutOfMemory),
    /// [`OutOfBudget`](ResourceError::OutOfBudget); [`Driver`](ResourceError::Driver). Nothing has
    /// changed then.
    fn create(&self, bytes: u64, tag: AllocTag) -> ResourceResult<PhysicalMemory>;

    /// Gives memory back that is mapped nowhere any more: the device has it at once.
    ///
    /// # Errors
    ///
    /// The memory comes back inside the error: nothing is lost, nothing has changed.
    /// [`StillMapped`](ResourceError::StillMapped);
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver).
    fn destroy(&self, memory: PhysicalMemory) -> Result<(), Box<RefusedMemory>>;

    /// Puts all of `memory` under the addresses from `address` on, where the device can then read
    /// and write it.
    ///
    /// The addresses are in a range that [`reserve`](Self::reserve) gave, and nothing is mapped
    /// there. One memory may be mapped at several addresses at once, also while work uses it.
    ///
    /// # Errors
    ///
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver). It is
    /// not mapped there then.
    fn map(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()>;

    /// Takes `memory` away from under the addresses from `address` on, where
    /// [`map`](Self::map) has put it.
    ///
    /// Does not wait: all work that uses it by these addresses must be done.
    ///
    /// # Errors
    ///
    /// [`ForeignMemory`](ResourceError::ForeignMemory); [`Driver`](ResourceError::Driver). It is
    /// still mapped there then.
    fn unmap(&self, memory: &PhysicalMemory, address: u64) -> ResourceResult<()>;
}

/// Addresses that were set aside.
///
/// Linear: neither `Clone` nor `Copy`. They go back through [`VirtualMemory::release`] of what
/// reserved them; dropping the range instead leaks them.
#[must_use = "dropping a range leaks its addresses: give them back with `release`"]
pub struct AddressRange {
    base: u64,
    bytes: u64,
}

impl AddressRange {
    /// Makes a range. Only implementations of [`VirtualMemory`] do this.
    ///
    /// # Safety
    ///
    /// `bytes` bytes from `base` on are set aside for whoever has this range, and no other range
    /// covers any of them, until it is given to `release` of the one that calls this.
    #[allow(unsafe_code, reason = "a claim about device addresses")]
    pub const unsafe fn from_parts(base: u64, bytes: u64) -> Self {
        Self { base, bytes }
    }

    /// The first address (a `CUdeviceptr`).
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// How many bytes it covers.
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
/// Linear: neither `Clone` nor `Copy`. It goes back through [`VirtualMemory::destroy`] of what
/// created it; dropping it instead leaks the memory, visibly in `reserved` of
/// [`usage`](crate::DeviceMemoryResource::usage).
#[must_use = "dropping it leaks the memory: give it back with `destroy`"]
pub struct PhysicalMemory {
    handle: u64,
    bytes: u64,
    tag: AllocTag,
    device_ordinal: u16,
}

impl PhysicalMemory {
    /// Makes one. Only implementations of [`VirtualMemory`] do this. CUDA numbers devices from 0:
    /// none has a number of more than 16 bits.
    ///
    /// # Safety
    ///
    /// `handle` names `bytes` bytes of memory of the device for the one that calls this, on no
    /// other `PhysicalMemory`, until it is given to `destroy` of the same.
    #[allow(unsafe_code, reason = "a claim about device memory")]
    pub const unsafe fn from_parts(
        handle: u64,
        bytes: u64,
        device_ordinal: usize,
        tag: AllocTag,
    ) -> Self {
        Self { handle, bytes, tag, device_ordinal: device_ordinal as u16 }
    }

    /// What its maker calls it (a `CUmemGenericAllocationHandle`). Unique among the memory that
    /// the maker has given out and not been given back.
    #[must_use]
    pub const fn handle(&self) -> u64 {
        self.handle
    }

    /// Its bytes, a multiple of the granularity.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Who asked.
    #[must_use]
    pub const fn tag(&self) -> AllocTag {
        self.tag
    }

    /// CUDA device ordinal.
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

/// A range could not be given back: why, and the range.
#[derive(Debug, thiserror::Error)]
#[error("{range:?} could not be given back: {error}")]
#[non_exhaustive]
#[must_use = "the range is inside: dropping this error leaks its addresses"]
pub struct RefusedRange {
    /// Why.
    #[source]
    pub error: ResourceError,
    /// The range, as it was.
    pub range: AddressRange,
}

impl RefusedRange {
    /// The answer that keeps the range with its owner.
    pub fn new(error: ResourceError, range: AddressRange) -> Box<Self> {
        Box::new(Self { error, range })
    }
}

/// Memory could not be given back: why, and the memory.
#[derive(Debug, thiserror::Error)]
#[error("{memory:?} could not be given back: {error}")]
#[non_exhaustive]
#[must_use = "the memory is inside: dropping this error leaks it"]
pub struct RefusedMemory {
    /// Why.
    #[source]
    pub error: ResourceError,
    /// The memory, as it was.
    pub memory: PhysicalMemory,
}

impl RefusedMemory {
    /// The answer that keeps the memory with its owner.
    pub fn new(error: ResourceError, memory: PhysicalMemory) -> Box<Self> {
        Box::new(Self { error, memory })
    }
}
