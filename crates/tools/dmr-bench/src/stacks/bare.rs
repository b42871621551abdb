//! A resource that costs next to nothing: what a layer costs is what stands out from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use dmr_core::error::StreamProblem;
use dmr_core::size::checked_round_up;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeallocateError, DeviceBlock,
    DeviceMemoryResource, Generation, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
};
use dmr_streams::StreamPool;

/// The alignment of blocks, in bytes.
const ALIGNMENT: usize = 256;

/// The bits of each stream's own addresses, which are reused in turn.
const ADDRESS_BITS: u32 = 46;

/// Blocks at addresses where nothing is: they must never be touched, on the device or elsewhere.
///
/// An allocation and a free are one addition each, to a counter of the home stream, and a stack of
/// slots: plain loads and stores, so that nothing but a layer has a locked instruction. A stream's
/// blocks must be one thread's for the accounting to be right. It tracks no uses, frees at once,
/// and counts bytes rounded up.
pub(super) struct Bare {
    pool: StreamPoolId,
    default_stream: StreamId,
    ordinal: usize,
    /// By the slot of the home stream.
    streams: Vec<CachePadded<Counts>>,
}

struct Counts {
    /// Bytes of all blocks so far, which is also where the next one is.
    allocated: AtomicU64,
    freed: AtomicU64,
    /// A stack: slots that no block has.
    free_slots: Box<[AtomicU32]>,
    free: AtomicUsize,
}

/// Slots of each stream. A block beyond them has none.
const SLOTS: usize = 1 << 14;

impl Counts {
    fn new(stream: usize) -> Self {
        let slots = (0..SLOTS).rev().map(|slot| AtomicU32::new((stream * SLOTS + slot) as u32));
        Self {
            allocated: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            free_slots: slots.collect(),
            free: AtomicUsize::new(SLOTS),
        }
    }

    fn take_slot(&self) -> BlockSlot {
        let Some(top) = self.free.load(Ordering::Relaxed).checked_sub(1) else {
            return BlockSlot::NONE;
        };
        self.free.store(top, Ordering::Relaxed);
        BlockSlot::new(self.free_slots[top].load(Ordering::Relaxed))
    }

    fn put_slot(&self, slot: BlockSlot) {
        let top = self.free.load(Ordering::Relaxed);
        if let (Some(index), Some(free)) = (slot.index(), self.free_slots.get(top)) {
            free.store(index, Ordering::Relaxed);
            self.free.store(top + 1, Ordering::Relaxed);
        }
    }
}

impl Bare {
    /// For these streams.
    pub(super) fn new(streams: &Arc<StreamPool>) -> Self {
        Self {
            pool: streams.id(),
            default_stream: streams.default_stream(),
            ordinal: streams.device().ordinal(),
            streams: (0..=streams.max_streams())
                .map(|stream| CachePadded::new(Counts::new(stream)))
                .collect(),
        }
    }

    fn sum(&self, of: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        self.streams.iter().map(|counts| of(counts).load(Ordering::Relaxed)).sum()
    }
}

/// Adds to a counter and returns its old value.
fn add(counter: &AtomicU64, bytes: usize) -> u64 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before + bytes as u64, Ordering::Relaxed);
    before
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bare(device {})", self.ordinal)
    }
}

impl DeviceMemoryResource for Bare {
    #[inline]
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let home = if stream.is_default() { self.default_stream } else { stream };
        let counts = self.streams.get(home.slot()).filter(|_| home.pool() == Some(self.pool));
        let Some(counts) = counts else {
            return Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool));
        };
        let reserved = checked_round_up(bytes, ALIGNMENT)?;
        let before = add(&counts.allocated, reserved);
        let start = ((home.slot() as u64 + 1) << ADDRESS_BITS) + before % (1 << ADDRESS_BITS);
        let parts = BlockParts {
            ptr: start,
            bytes,
            reserved_bytes: reserved,
            alignment: ALIGNMENT,
            device_ordinal: self.ordinal,
            alloc_stream: home,
            tag,
            generation: Generation::next(),
            slot: counts.take_slot(),
            state: BlockState::Live,
            part_depth: 0,
        };
        // SAFETY: there is no memory; the address is never dereferenced.
        Ok(unsafe { DeviceBlock::from_parts(parts) })
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let home = block.alloc_stream();
        let counts = self.streams.get(home.slot()).filter(|_| home.pool() == Some(self.pool));
        let Some(counts) = counts else {
            let refusal = ResourceError::foreign_block(&block, self.ordinal);
            return Err(DeallocateError::new(refusal, block));
        };
        add(&counts.freed, block.reserved_bytes());
        counts.put_slot(block.id().slot());
        Ok(BlockState::Freed)
    }

    fn is_retired(&self, _block: BlockId) -> bool {
        false
    }

    fn device_ordinal(&self) -> usize {
        self.ordinal
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.pool
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        usage.total_freed = self.sum(|counts| &counts.freed);
        usage.total_allocated = self.sum(|counts| &counts.allocated);
        usage.live = usage.total_allocated.saturating_sub(usage.total_freed);
        usage.reserved = usage.live;
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        Ok(0)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        Ok(0)
    }
}
