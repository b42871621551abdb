//! [`AlignedResource`]: blocks aligned to more than the 256 bytes that CUDA promises.
//!
//! It allocates more bytes upstream, by the most that alignment can cost, and returns the aligned part. Blocks
//! do not grow in place.
//!
//! **Inside or outside.** A budget, a log or statistics inside count the padding; outside, they count the
//! requested bytes.

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
#[must_use = "a layer does nothing until it wraps a resource"]
pub struct AlignedLayer {
    alignment: usize,
    threshold: usize,
}

/// The error for an alignment that blocks cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot align blocks to {alignment} bytes: pass a power of two, at least 256")]
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

    /// Aligns only blocks of at least `bytes` bytes. Smaller ones are aligned to 256 bytes and not padded.
    pub const fn with_threshold(mut self, bytes: usize) -> Self {
        self.threshold = bytes;
        self
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for AlignedLayer {
    type Resource = AlignedResource<R>;

    fn layer(&self, upstream: R) -> AlignedResource<R> {
        let (made_in, accounts) = (Process::current(), LeakedInChild::default());
        AlignedResource { upstream, layer: *self, made_in, accounts }
    }
}

/// Aligns blocks to more than 256 bytes; see the [module](self).
///
/// `usage` is in requested bytes, except for `reserved`, which is the upstream resource's and includes the
/// padding. A retired block counts as freed once `usage` or a reap finds that it is.
///
/// Only a block that this resource allocated can be deallocated here: any other, also one of the upstream
/// resource, is a [`ForeignBlock`](ResourceError::ForeignBlock). A block's
/// [`alignment`](DeviceBlock::alignment) is that of its address, at most 2 MiB.
pub struct AlignedResource<R> {
    upstream: R,
    layer: AlignedLayer,
    made_in: Process,
    accounts: LeakedInChild<Mutex<Accounts>>,
}

/// The blocks that are not freed, and their sums.
#[derive(Default)]
struct Accounts {
    /// The upstream resource's block of each live block.
    live: HashMap<Generation, WholeBlock>,
    /// The retired blocks, each with its requested bytes.
    retired: Vec<(BlockId, u64)>,
    /// In requested bytes; `reserved` is not kept.
    usage: Usage,
}

impl<R> AlignedResource<R> {
    /// Returns the upstream resource.
    pub const fn upstream(&self) -> &R {
        &self.upstream
    }

    /// Unwraps the upstream resource.
    ///
    /// # Errors
    ///
    /// Returns this resource while any of its blocks is live: only it can deallocate them.
    #[allow(clippy::result_large_err, reason = "the error is the resource itself")]
    pub fn into_upstream(mut self) -> Result<R, Self> {
        // Without the lock, which a forked child could wait for.
        let is_unused = ignore_poison(self.accounts.get_mut()).live.is_empty();
        if is_unused { Ok(self.upstream) } else { Err(self) }
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        lock(&self.accounts)
    }
}

impl<R: DeviceMemoryResource> AlignedResource<R> {
    /// Refuses calls in a forked child, where a thread of the parent may hold the lock for ever.
    fn check_process(&self) -> ResourceResult<()> {
        self.made_in.check(self.upstream.device_ordinal())
    }

    /// Deallocates an upstream block that is too small for an aligned part: the upstream resource allocates
    /// fewer bytes than requested, or aligns them to less than 256 bytes.
    fn no_part_fits(&self, whole: DeviceBlock, bytes: usize) -> ResourceError {
        // If the upstream resource refuses the block, it counts it as live for ever.
        let _ = self.upstream.deallocate(whole);
        ResourceError::out_of_memory(bytes, self.upstream.device_ordinal(), (0, 0), &self.usage())
    }

    /// Removes a live block and returns the upstream resource's block that it is a part of.
    fn remove(&self, block: DeviceBlock) -> Result<DeviceBlock, Box<DeallocateError>> {
        let generation = block.generation();
        let mut accounts = self.accounts();
        let Some(whole) = accounts.live.remove(&generation) else {
            let error = ResourceError::foreign_block(&block, self.upstream.device_ordinal());
            return Err(DeallocateError::new(error, block));
        };
        whole.restore(block).map_err(|(whole, block)| {
            accounts.live.insert(generation, whole);
            DeallocateError::new(ResourceError::part_of_block(&block), block)
        })
    }

    /// Makes a block live again that the upstream resource did not deallocate.
    fn put_back(&self, whole: DeviceBlock, ptr: u64, bytes: usize) -> DeviceBlock {
        let offset = usize::try_from(ptr.wrapping_sub(whole.ptr())).unwrap_or(usize::MAX);
        match whole.narrow(offset, bytes) {
            Ok((block, whole)) => {
                self.accounts().live.insert(block.generation(), whole);
                block
            }
            // The upstream resource returned another block than it was given: it is the caller's.
            Err(other) => other,
        }
    }

    /// Counts the blocks as freed that are no longer retired, and returns their bytes.
    fn settle(&self) -> u64 {
        let mut accounts = self.accounts();
        let mut freed = 0;
        accounts.retired.retain(|(id, bytes)| {
            let is_retired = self.upstream.is_retired(*id);
            freed += if is_retired { 0 } else { *bytes };
            is_retired
        });
        accounts.usage.retired -= freed;
        accounts.usage.total_freed += freed;
        freed
    }

    /// Reaps, and returns the requested bytes that this call freed.
    fn reap(&self, reap: impl FnOnce(&R) -> ResourceResult<u64>) -> ResourceResult<u64> {
        self.check_process()?;
        // Blocks that were freed before the call are not returned.
        self.settle();
        let result = reap(&self.upstream);
        let freed = self.settle();
        result.map(|_| freed)
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
        // No bytes are no block with padding: the upstream resource refuses them.
        let is_aligned = bytes != 0 && bytes >= self.layer.threshold;
        let alignment = if is_aligned { self.layer.alignment } else { BLOCK_ALIGNMENT };
        let padded = bytes.checked_add(alignment - BLOCK_ALIGNMENT);
        let padded = padded.ok_or_else(|| ResourceError::size_overflow(bytes))?;
        let whole = self.upstream.allocate(padded, stream, tag)?;
        let start = whole.ptr().checked_next_multiple_of(alignment as u64);
        let offset = start.and_then(|start| usize::try_from(start - whole.ptr()).ok());
        let part = whole.narrow(offset.unwrap_or(usize::MAX), bytes);
        let (block, whole) = part.map_err(|whole| self.no_part_fits(whole, bytes))?;
        let mut accounts = self.accounts();
        accounts.live.insert(block.generation(), whole);
        accounts.usage.live += bytes as u64;
        accounts.usage.total_allocated += bytes as u64;
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = self.check_process() {
            return Err(DeallocateError::new(error, block));
        }
        let (id, bytes) = (block.id(), block.bytes());
        let whole = self.remove(block)?;
        let state = self.upstream.deallocate(whole).map_err(|refusal| {
            let DeallocateError { error, block: whole, .. } = *refusal;
            DeallocateError::new(error, self.put_back(whole, id.ptr(), bytes))
        })?;
        let (mut accounts, bytes) = (self.accounts(), bytes as u64);
        accounts.usage.live -= bytes;
        if state == BlockState::Freed {
            accounts.usage.total_freed += bytes;
        } else {
            accounts.usage.retired += bytes;
            accounts.retired.push((id, bytes));
        }
        Ok(state)
    }

    /// Never grows a block: the bytes after the part are padding, and a block below the threshold is not
    /// aligned.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.check_process()?;
        match self.accounts().live.get(&block.generation()) {
            None => Err(ResourceError::foreign_block(block, self.upstream.device_ordinal())),
            Some(whole) if whole.has_part(block) => Ok(bytes <= block.bytes()),
            Some(_) => Err(ResourceError::part_of_block(block)),
        }
    }

    fn bytes_outstanding(&self) -> u64 {
        self.usage().outstanding()
    }

    fn usage(&self) -> Usage {
        if !self.made_in.is_current() {
            return Usage::default();
        }
        // Read first: what is reserved is never less than the sums that are read after it.
        let reserved = self.upstream.usage().reserved;
        self.settle();
        let mut usage = self.accounts().usage;
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
        // Not wrapped: pages are aligned to their granularity.
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
