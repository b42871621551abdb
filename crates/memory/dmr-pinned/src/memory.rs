//! A block of pinned memory with an owner.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;

use dmr_core::error::StreamProblem;
use dmr_core::{
    AllocTag, ByteRange, DeviceBlock, HostMemoryResource, ResourceError, ResourceResult, StreamId,
};
use dmr_streams::{PinnedKind, StreamPool};

use crate::PinnedPool;

/// The tag of memory whose purpose is not given.
const PINNED: AllocTag = AllocTag::new("pinned");

/// Page-locked host memory in the use table of a [`StreamPool`], which it keeps alive.
///
/// Dropping it *retires* it, and makes no driver call: the pool allocates the memory again once its
/// uses are done. If its resource refuses it, the memory stays in the resource's usage.
pub struct PinnedMemory {
    block: ManuallyDrop<DeviceBlock>,
    start: NonNull<u8>,
    /// The stack that the block is from; `None` for the pool itself.
    resource: Option<Arc<dyn HostMemoryResource>>,
    streams: Arc<StreamPool>,
}

// SAFETY: it owns its bytes, to which it gives no access; nothing in it belongs to a thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates memory of unspecified content from the [`PinnedPool`] of these streams. Every byte
    /// of it has been written.
    ///
    /// # Errors
    ///
    /// As [`PinnedResource`](crate::PinnedResource)'s `allocate`.
    pub fn new(streams: &Arc<StreamPool>, bytes: usize, home: StreamId) -> ResourceResult<Self> {
        Self::allocate(None, streams, PinnedKind::Cached, bytes, home, PINNED)
    }

    /// Allocates initialised memory of unspecified content: from `resource`, or from the pool of
    /// pinned memory of `streams` if that is `None`. The kind is that of the resource, if there is
    /// one.
    ///
    /// # Errors
    ///
    /// Those of [`allocate`](dmr_core::DeviceMemoryResource::allocate);
    /// [`StreamMisuse`](ResourceError::StreamMisuse) if the resource works on the streams of
    /// another pool; [`OutOfBounds`](ResourceError::OutOfBounds) if it returns a smaller block.
    pub fn allocate(
        resource: Option<&Arc<dyn HostMemoryResource>>,
        streams: &Arc<StreamPool>,
        kind: PinnedKind,
        bytes: usize,
        home: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<Self> {
        let block = match resource {
            None => PinnedPool::of(streams).allocate(kind, bytes, home, tag)?,
            Some(resource) => allocate_from(&**resource, streams, bytes, home, tag)?,
        };
        let start = with_exposed_provenance_mut(block.ptr() as usize);
        let Some(start) = NonNull::new(start) else {
            // A block of host memory is at no null address.
            return Err(ResourceError::out_of_bounds(&block, 0, bytes));
        };
        let resource = resource.cloned();
        let streams = Arc::clone(streams);
        Ok(Self { block: ManuallyDrop::new(block), start, resource, streams })
    }

    /// Returns the block of this memory in the use table. The device accesses the memory at the
    /// host's address.
    pub fn block(&self) -> &DeviceBlock {
        &self.block
    }

    /// Waits until all recorded uses of these bytes are done. Returns `false`, and does not wait,
    /// if a window on one of them is open.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver), which may come from work submitted earlier;
    /// [`StreamCapturing`](ResourceError::StreamCapturing).
    pub fn synchronize(&self, bytes: ByteRange) -> ResourceResult<bool> {
        let uses = self.streams.uses();
        let Some(after) = uses.recorded_uses_of(self.block().id(), bytes)? else {
            return Ok(false);
        };
        uses.synchronize(&after)?;
        Ok(true)
    }

    /// Returns the address of the first byte, which is aligned to 256 bytes. Valid until this is
    /// dropped.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

fn allocate_from(
    resource: &dyn HostMemoryResource,
    streams: &StreamPool,
    bytes: usize,
    home: StreamId,
    tag: AllocTag,
) -> ResourceResult<DeviceBlock> {
    if resource.stream_pool() != streams.id() {
        return Err(ResourceError::stream_misuse(home, StreamProblem::OtherPool));
    }
    let block = resource.allocate(bytes, home, tag)?;
    let refused = if block.bytes() < bytes {
        ResourceError::out_of_bounds(&block, 0, bytes)
    } else if !block.id().slot().is_of_host_memory() {
        ResourceError::not_tracked(home)
    } else {
        return Ok(block);
    };
    // If the resource refuses it, it stays in the usage.
    let _ = resource.deallocate(block);
    Err(refused)
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: taken once, because this is dropped.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        // A block that is refused stays in the usage.
        match &self.resource {
            Some(resource) => drop(resource.deallocate(block)),
            None => drop(PinnedPool::of(&self.streams).deallocate(&block)),
        }
    }
}

impl fmt::Debug for PinnedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedMemory").field(&self.block).finish()
    }
}
