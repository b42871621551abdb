//! Memory whose owner is dropped after the last use.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, StreamId};
use dmr_streams::{DeviceContext, StreamPool};

use crate::address;
use crate::blocks::{AdoptedBlocks, AdoptedMemory};
use crate::ready::Ready;

/// A value whose drop releases memory: an `Arc` where several blocks share it.
pub type Owner = Box<dyn Any + Send>;

/// Device memory of another owner.
///
/// Dropping it drops the owner.
pub struct ForeignMemory {
    ptr: u64,
    bytes: usize,
    owner: Owner,
}

impl ForeignMemory {
    /// Describes `bytes` bytes at the device address `ptr`, which stay allocated until `owner` is
    /// dropped. The address may have any alignment.
    #[must_use]
    pub fn new(ptr: u64, bytes: usize, owner: impl Any + Send) -> Self {
        Self { ptr, bytes, owner: Box::new(owner) }
    }

    /// Returns the device address.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the owner.
    #[must_use]
    pub fn into_owner(self) -> Owner {
        self.owner
    }
}

// SAFETY: address and size are fields that nothing changes. None is allocated.
unsafe impl AdoptedMemory for ForeignMemory {
    const NAME: &'static str = "ForeignBlocks";
    const IS_FREED_IN_ORDER: bool = false;

    fn ptr(&self) -> u64 {
        self.ptr
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl fmt::Debug for ForeignMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignMemory")
            .field("ptr", &format_args!("{:#x}", self.ptr))
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Memory that was not adopted, as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("memory of another owner was not adopted: {error}")]
pub struct AdoptError {
    /// The reason.
    #[source]
    pub error: ResourceError,
    /// The memory, with its owner.
    pub memory: ForeignMemory,
}

impl AdoptError {
    /// Makes the error, with the memory inside.
    #[must_use]
    pub fn new(error: ResourceError, memory: ForeignMemory) -> Box<Self> {
        Box::new(Self { error, memory })
    }
}

/// The memory of other owners that was adopted by a stream pool: a resource whose every block is
/// [`ForeignMemory`].
///
/// The uses of a block are tracked. When it is deallocated, and the device has completed its last
/// use, its owner is dropped: [`AdoptedBlocks`] says when, and by which thread. Blocks do not grow,
/// and the resource allocates none.
#[derive(Clone)]
pub struct ForeignBlocks {
    blocks: Arc<AdoptedBlocks<ForeignMemory>>,
    /// `blocks`, as a context's resource.
    resource: Arc<dyn DeviceMemoryResource>,
}

impl ForeignBlocks {
    /// Returns the memory that is adopted by the streams of `context`.
    #[must_use]
    pub fn of<C: DeviceContext + ?Sized>(context: &C) -> Self {
        let blocks = Arc::new(AdoptedBlocks::new(Arc::clone(context.streams())));
        Self { resource: Arc::<AdoptedBlocks<_>>::clone(&blocks), blocks }
    }

    /// Adopts memory as a block whose home stream is `home`. The next work on `home` comes after
    /// the work of `ready`; uses on other streams come after that, too. Does not wait.
    ///
    /// # Errors
    ///
    /// The memory is in the error, as it was, except that `home` may have been made to wait.
    /// [`InvalidSize`](ResourceError::InvalidSize) for no bytes, which need no block;
    /// [`NotAdopted`](ResourceError::NotAdopted) for memory that the driver does not know and for
    /// memory of another device; [`StreamMisuse`](ResourceError::StreamMisuse) for a home stream of
    /// another pool and a producer's stream of another context;
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if either stream captures a graph;
    /// [`ForkedProcess`](ResourceError::ForkedProcess);
    /// [`DeviceLost`](ResourceError::DeviceLost); [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// - The bytes stay allocated until the owner is dropped.
    /// - From the work of `ready` on until then, nothing but the uses that are recorded of the
    ///   block accesses the bytes. If the block is only read, others may read them, too.
    /// - The handle in `ready` is one of the driver, not destroyed before this returns.
    /// - The owner may be dropped on any thread, without a current context, at any time after the
    ///   last use.
    pub unsafe fn adopt(
        &self,
        memory: ForeignMemory,
        home: StreamId,
        ready: Ready,
        tag: AllocTag,
    ) -> Result<DeviceBlock, Box<AdoptError>> {
        let streams = self.blocks.streams();
        let home = match streams.enter(home) {
            Ok(home) => home,
            Err(error) => return Err(AdoptError::new(error, memory)),
        };
        let reserved = address::check(streams.device(), memory.ptr, memory.bytes)
            // SAFETY: the caller's obligation.
            .and_then(|()| unsafe { ready.before(&home) })
            .and_then(|()| self.blocks.reserve(&home));
        match reserved {
            // SAFETY: the caller's obligation; `home` comes after the work of `ready`.
            Ok(slot) => Ok(unsafe { self.blocks.hold(slot, &home, memory, tag) }),
            Err(error) => Err(AdoptError::new(error, memory)),
        }
    }
}

impl DeviceContext for ForeignBlocks {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        self.blocks.streams()
    }
}

impl fmt::Debug for ForeignBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ForeignBlocks").field(&self.resource).finish()
    }
}
