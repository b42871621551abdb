//! The pool of pinned memory as a resource, so that adaptors can be put around it.

use std::fmt;
use std::sync::Arc;

use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    DriverAllocation, HostMemoryResource, PeerAccess, ResourceError, ResourceResult, StreamId,
    StreamPoolId, Usage, UseTracking, VirtualMemory,
};
use dmr_streams::{PinnedKind, StreamPool};

use crate::PinnedPool;

/// Page-locked host memory of one kind, from the [`PinnedPool`] of a [`StreamPool`]. All
/// resources of a stream pool and kind are the same one.
///
/// The driver locks memory in segments, which are cut into blocks; a block of more than 1 MiB has a
/// segment of its own. Blocks are in the use table. A block that was deallocated is *retired* until
/// its recorded uses are done, and the work that had been submitted to its home stream: the host
/// writes the memory, so the order of streams does not suffice.
///
/// An allocation takes free memory, else polls the retired blocks, else gets a segment from the
/// driver. It waits only if the driver refuses that. Neither allocating from free memory nor
/// deallocating makes a driver call, except that an allocation checks that the stream captures no
/// graph. [`trim_to`](DeviceMemoryResource::trim_to) returns segments without a block to the
/// driver, and so does dropping the stream pool; segments that are in use then are freed by
/// [`reap_orphaned_pinned`](crate::reap_orphaned_pinned).
///
/// No stream waits for a fresh block, whose memory no device work uses. On a lost device, memory of
/// retired blocks counts as freed, and is not allocated again.
#[derive(Clone)]
pub struct PinnedResource {
    streams: Arc<StreamPool>,
    kind: PinnedKind,
}

impl PinnedResource {
    /// Returns the pinned memory of this kind on these streams.
    #[must_use]
    pub fn new(streams: Arc<StreamPool>, kind: PinnedKind) -> Self {
        Self { streams, kind }
    }

    /// Returns the kind of memory.
    #[must_use]
    pub fn kind(&self) -> PinnedKind {
        self.kind
    }

    fn pool(&self) -> PinnedPool<'_> {
        PinnedPool::of(&self.streams)
    }
}

// SAFETY: a block is a chunk of a segment of host memory, which was written with zeros before it
// was cut. Chunks do not overlap. A chunk is freed when its block was deallocated, and all recorded
// uses and the earlier work of the home stream are done; this makes no device work. `allocate` and
// `deallocate` neither read nor write the memory of blocks.
unsafe impl HostMemoryResource for PinnedResource {}

#[deny(clippy::missing_trait_methods)]
impl DeviceMemoryResource for PinnedResource {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.pool().allocate(self.kind, bytes, stream, tag)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let freed = self.pool().deallocate(&block);
        freed.map_err(|error| DeallocateError::new(error, block))
    }

    /// Gives no block away: it is host memory.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let refused = ResourceError::not_given_away(&block, "the pool of pinned memory");
        Err(DeallocateError::new(refused, block))
    }

    /// Returns whether the block has `bytes` bytes already: pinned blocks do not grow.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.streams.device().refuse_fork()?;
        block.require_part_depth(0)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        self.streams.uses().is_retired(block)
    }

    fn device_ordinal(&self) -> usize {
        self.streams.device().ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn bytes_outstanding(&self) -> u64 {
        self.usage().outstanding()
    }

    fn usage(&self) -> Usage {
        self.pool().usage_of(self.kind)
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.pool().poll().map(|freed| freed[self.kind as usize])
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.pool().wait().map(|freed| freed[self.kind as usize])
    }

    /// The driver's call, `cuMemFreeHost`, may wait for other work of the device.
    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let reaped = self.pool().poll().map(drop);
        let trimmed = self.pool().trim_kind(self.kind, keep_bytes);
        reaped.and(trimmed)
    }

    /// Returns `Granted`: portable pinned memory is accessible to every device of the process.
    fn allow_access(&self, _: usize) -> ResourceResult<PeerAccess> {
        self.streams.device().refuse_fork()?;
        Ok(PeerAccess::Granted)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(&*self.streams)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }
}

/// `Pinned(device 0)`, `Pinned(device 0, WriteCombined)`.
impl fmt::Display for PinnedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PinnedKind::Cached => write!(f, "Pinned(device {})", self.device_ordinal()),
            kind => write!(f, "Pinned(device {}, {kind:?})", self.device_ordinal()),
        }
    }
}

impl fmt::Debug for PinnedResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
