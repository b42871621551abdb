//! [`AlignedResource`]: blocks aligned to more than the 256 bytes that CUDA promises.
//!
//! It requests from the upstream resource as many bytes more as alignment can cost, and returns the
//! aligned part. Blocks do not grow in place.
//!
//! **Inside or outside.** A layer inside sees the padded sizes: a budget, a log or statistics inside
//! count the padding, outside they count the requested bytes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use dmr_core::process::LeakedInChild;
use dmr_core::size::{BLOCK_ALIGNMENT, human_bytes};
use dmr_core::sync::{ignore_poison, lock};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, Generation,
    Process, ResourceError, ResourceResult, StreamId, Usage, WholeBlock,
};

use crate::ResourceLayer;
use crate::forward::forward;

/// Makes an [`AlignedResource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct AlignedLayer {
    alignment: usize,
    threshold: usize,
}

/// An alignment that blocks cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot align blocks to {alignment} bytes: ask for a power of two, at least 256")]
#[non_exhaustive]
pub struct InvalidAlignment {
    /// The requested alignment, in bytes.
    pub alignment: usize,
}

impl AlignedLayer {
    /// Aligns blocks to `alignment` bytes.
    ///
    /// # Errors
    ///
    /// [`InvalidAlignment`] unless it is a power of two and at least 256.
    pub const fn new(alignment: usize) -> Result<Self, InvalidAlignment> {
        if alignment.is_power_of_two() && alignment >= BLOCK_ALIGNMENT {
            Ok(Self { alignment, threshold: 0 })
        } else {
            Err(InvalidAlignment { alignment })
        }
    }

    /// Leaves blocks of fewer than `bytes` bytes unchanged: aligned to 256 bytes, not padded.
    pub const fn with_threshold(mut self, bytes: usize) -> Self {
        self.threshold = bytes;
        self
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for AlignedLayer {
    type Resource = AlignedResource<R>;

    fn layer(&self, upstream: R) -> AlignedResource<R> {
        let shards = LeakedInChild::new((0..SHARDS).map(|_| Mutex::default()).collect());
        AlignedResource { upstream, layer: *self, made_in: Process::current(), shards }
    }
}

/// Aligns blocks to more than 256 bytes; see the [module](self).
///
/// Accounting is in bytes requested of this resource; `reserved` is the upstream resource's and
/// includes the padding. It covers blocks that were allocated here: others, also those allocated from
/// the upstream resource directly, are [`ForeignBlock`](ResourceError::ForeignBlock). A retired block
/// counts as freed when a call of `usage` or a reap finds that it is.
///
/// A block's [`alignment`](DeviceBlock::alignment) is that of its address, at most 2 MiB.
pub struct AlignedResource<R> {
    upstream: R,
    layer: AlignedLayer,
    made_in: Process,
    /// By generation: a block stays in one shard until it is freed.
    shards: LeakedInChild<Box<[Mutex<Shard>]>>,
}

const SHARDS: usize = 16;

/// Some of the blocks, and their sums.
#[derive(Default)]
struct Shard {
    live: HashMap<Generation, Live>,
    retired: HashMap<Generation, (BlockId, u64)>,
    live_bytes: u64,
    retired_bytes: u64,
    total_allocated: u64,
    total_freed: u64,
}

/// A block that is live, and what the upstream resource has of it.
enum Live {
    /// The upstream resource's block as it is, which has this part depth.
    Plain(u8),
    /// A part of the padded block.
    Part(WholeBlock),
}

impl<R> AlignedResource<R> {
    /// The upstream resource.
    pub const fn get_ref(&self) -> &R {
        &self.upstream
    }

    /// Returns the upstream resource.
    ///
    /// # Errors
    ///
    /// This resource, while any of its blocks is live: only it can deallocate them.
    pub fn into_inner(mut self) -> Result<R, Self> {
        let is_unused =
            self.shards.iter_mut().all(|shard| ignore_poison(shard.get_mut()).live.is_empty());
        if is_unused { Ok(self.upstream) } else { Err(self) }
    }

    const fn upstream(&self) -> &R {
        &self.upstream
    }

    fn shard(&self, generation: Generation) -> MutexGuard<'_, Shard> {
        let index = generation.get() as usize % SHARDS;
        lock(&self.shards[index])
    }
}

impl<R: DeviceMemoryResource> AlignedResource<R> {
    /// Narrows a padded block to its aligned part.
    fn part_of(
        &self,
        padded: DeviceBlock,
        bytes: usize,
    ) -> Result<(DeviceBlock, WholeBlock), DeviceBlock> {
        let up_to = padded.ptr().checked_next_multiple_of(self.layer.alignment as u64);
        let offset = up_to.map_or(0, |aligned| aligned - padded.ptr());
        padded.narrow(usize::try_from(offset).unwrap_or(usize::MAX), bytes)
    }

    /// Deallocates a padded block that has no aligned part. The padding makes room for one, so the
    /// upstream resource allocates fewer bytes than requested, or aligns them to less than 256 bytes.
    fn no_part_fits(&self, padded: DeviceBlock, bytes: usize) -> ResourceError {
        // A block that the upstream resource refuses leaks in its accounting.
        let _ = self.upstream.deallocate(padded);
        ResourceError::out_of_memory(bytes, self.upstream.device_ordinal(), (0, 0), &self.usage())
    }

    /// Exchanges a block that was allocated here for that of the upstream resource.
    fn exchange(&self, block: DeviceBlock) -> Result<DeviceBlock, Box<DeallocateError>> {
        let generation = block.generation();
        let mut shard = self.shard(generation);
        let whole = match shard.live.remove(&generation) {
            None => {
                let is_stale = shard.retired.contains_key(&generation);
                let stale = ResourceError::use_after_free(generation);
                return Err(if is_stale {
                    DeallocateError::new(stale, block)
                } else {
                    self.foreign(block)
                });
            }
            Some(Live::Plain(depth)) => match block.require_part_depth(depth) {
                Ok(()) => return Ok(block),
                Err(part) => {
                    shard.live.insert(generation, Live::Plain(depth));
                    return Err(DeallocateError::new(part, block));
                }
            },
            Some(Live::Part(whole)) => whole,
        };
        whole.restore(block).map_err(|(whole, block)| {
            shard.live.insert(generation, Live::Part(whole));
            DeallocateError::new(ResourceError::part_of_block(&block), block)
        })
    }

    /// Makes the block live again that the upstream resource refused.
    fn put_back(&self, block: DeviceBlock, ptr: u64, bytes: usize) -> DeviceBlock {
        let is_plain = (block.ptr(), block.bytes()) == (ptr, bytes);
        let offset = usize::try_from(ptr.wrapping_sub(block.ptr())).unwrap_or(usize::MAX);
        let narrowed = if is_plain { Err(block) } else { block.narrow(offset, bytes) };
        let (block, live) = match narrowed {
            Ok((part, whole)) => (part, Live::Part(whole)),
            Err(block) => {
                let depth = block.part_depth();
                (block, Live::Plain(depth))
            }
        };
        self.shard(block.generation()).live.insert(block.generation(), live);
        block
    }

    fn foreign(&self, block: DeviceBlock) -> Box<DeallocateError> {
        let error = ResourceError::foreign_block(&block, self.upstream.device_ordinal());
        DeallocateError::new(error, block)
    }

    /// Counts the retired blocks as freed that are retired no longer, and returns their bytes.
    fn sweep(&self) -> u64 {
        let mut freed = 0;
        for shard in self.shards.iter() {
            let Shard { retired, retired_bytes, total_freed, .. } = &mut *lock(shard);
            retired.retain(|_, (id, bytes)| {
                let stays = self.upstream.is_retired(*id);
                if !stays {
                    // With its removal: `is_retired` may panic for the next.
                    *retired_bytes -= *bytes;
                    *total_freed += *bytes;
                    freed += *bytes;
                }
                stays
            });
        }
        freed
    }

    /// Reaps, and returns the requested bytes that this freed.
    fn reap(&self, reap: impl FnOnce(&R) -> ResourceResult<u64>) -> ResourceResult<u64> {
        self.made_in.check(self.upstream.device_ordinal())?;
        // Blocks that were free before are not counted.
        self.sweep();
        let outcome = reap(&self.upstream);
        let freed = self.sweep();
        outcome.map(|_| freed)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for AlignedResource<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let padding = self.layer.alignment - BLOCK_ALIGNMENT;
        let is_padded = bytes != 0 && padding != 0 && bytes >= self.layer.threshold;
        let asked = if is_padded { bytes.checked_add(padding) } else { Some(bytes) };
        let asked = asked.ok_or_else(|| ResourceError::size_overflow(bytes))?;
        let block = self.upstream.allocate(asked, stream, tag)?;
        let (block, live) = if is_padded {
            let part = self.part_of(block, bytes);
            let (part, whole) = part.map_err(|padded| self.no_part_fits(padded, bytes))?;
            (part, Live::Part(whole))
        } else {
            let depth = block.part_depth();
            (block, Live::Plain(depth))
        };
        let mut shard = self.shard(block.generation());
        shard.live.insert(block.generation(), live);
        shard.live_bytes += bytes as u64;
        shard.total_allocated += bytes as u64;
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let (id, bytes) = (block.id(), block.bytes());
        // First: another thread may have held a lock when the process was forked.
        if let Err(error) = self.made_in.check(self.device_ordinal()) {
            return Err(DeallocateError::new(error, block));
        }
        let whole = self.exchange(block)?;
        let state = self.upstream.deallocate(whole).map_err(|refusal| {
            let DeallocateError { error, block, .. } = *refusal;
            DeallocateError::new(error, self.put_back(block, id.ptr(), bytes))
        })?;
        let mut shard = self.shard(id.generation());
        let bytes = bytes as u64;
        shard.live_bytes -= bytes;
        if state == BlockState::Freed {
            shard.total_freed += bytes;
        } else {
            shard.retired_bytes += bytes;
            shard.retired.insert(id.generation(), (id, bytes));
        }
        Ok(state)
    }

    /// Grows nothing: behind the part is the rest of the padding, and a block that was below the
    /// threshold may not be aligned.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.made_in.check(self.device_ordinal())?;
        match self.shard(block.generation()).live.get(&block.generation()) {
            None => {
                return Err(ResourceError::foreign_block(block, self.upstream.device_ordinal()));
            }
            Some(Live::Plain(depth)) => block.require_part_depth(*depth)?,
            Some(Live::Part(whole)) if whole.has_part(block) => {}
            Some(Live::Part(_)) => return Err(ResourceError::part_of_block(block)),
        }
        Ok(bytes <= block.bytes())
    }

    fn bytes_outstanding(&self) -> u64 {
        self.usage().outstanding()
    }

    fn usage(&self) -> Usage {
        if !self.made_in.is_current() {
            return Usage::default();
        }
        // Read first, so that it is not less than the sums that are read after it.
        let reserved = self.upstream.usage().reserved;
        self.sweep();
        let mut usage = Usage::default();
        for shard in self.shards.iter() {
            let shard = lock(shard);
            usage.live += shard.live_bytes;
            usage.retired += shard.retired_bytes;
            usage.total_allocated += shard.total_allocated;
            usage.total_freed += shard.total_freed;
        }
        usage.reserved = reserved;
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap(R::try_reap)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap(R::reap_pending)
    }

    forward!(
        upstream: is_retired,
        device_ordinal,
        stream_pool,
        trim_to,
        use_tracking,
        // Not wrapped: pages are aligned to their granularity, which is more.
        virtual_memory,
    );
}

impl<R: fmt::Debug> fmt::Debug for AlignedResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aligned({}, {:?})", human_bytes(self.layer.alignment as u64), self.upstream)
    }
}

impl<R: fmt::Debug> fmt::Display for AlignedResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
