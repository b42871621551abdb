//! [`AlignedResource`]: blocks aligned to more than the 256 bytes that CUDA promises.
//!
//! It allocates more bytes upstream, by the most that alignment can cost, and returns the aligned
//! part. Blocks do not grow in place.
//!
//! **Inside or outside.** A budget, a log or statistics inside count the padding; outside, they
//! count the requested bytes.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use dmr_core::process::LeakedInChild;
use dmr_core::size::{BLOCK_ALIGNMENT, human_bytes};
use dmr_core::sync::{ignore_poison, lock};
use dmr_core::upstream::PassedBlock;
use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, DriverAllocation,
    Process, ResourceError, ResourceResult, StreamId, Usage, forward,
};

use crate::ResourceLayer;
use crate::narrowed::NarrowedBlocks;

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

    /// Aligns only blocks of at least `bytes` bytes. Smaller ones are aligned to 256 bytes and not
    /// padded.
    pub const fn with_threshold(mut self, bytes: usize) -> Self {
        self.threshold = bytes;
        self
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for AlignedLayer {
    type Resource = AlignedResource<R>;

    fn layer(&self, upstream: R) -> AlignedResource<R> {
        let made_in = Process::current();
        let blocks = LeakedInChild::default();
        AlignedResource { upstream, layer: *self, made_in, blocks }
    }
}

/// Aligns blocks to more than 256 bytes; see the [module](self).
///
/// `usage` is in requested bytes, except for `reserved`, which is the upstream resource's and
/// includes the padding. A retired block counts as freed once a later call finds that it is.
///
/// Only a block that this resource allocated can be deallocated here: any other, also one of the
/// upstream resource, is a [`ForeignBlock`](ResourceError::ForeignBlock). A block's
/// [`alignment`](DeviceBlock::alignment) is that of its address, at most 2 MiB.
pub struct AlignedResource<R> {
    upstream: R,
    layer: AlignedLayer,
    made_in: Process,
    blocks: LeakedInChild<Mutex<NarrowedBlocks>>,
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
        let is_unused = ignore_poison(self.blocks.get_mut()).is_empty();
        if is_unused { Ok(self.upstream) } else { Err(self) }
    }

    fn blocks(&self) -> MutexGuard<'_, NarrowedBlocks> {
        lock(&self.blocks)
    }
}

impl<R: DeviceMemoryResource> AlignedResource<R> {
    /// Refuses calls in a forked child, where a thread of the parent may hold the lock for ever.
    fn check_process(&self) -> ResourceResult<()> {
        self.made_in.check(self.upstream.device_ordinal())
    }

    /// Deallocates an upstream block that is too small for an aligned part: the upstream resource
    /// allocates fewer bytes than requested, or aligns them to less than 256 bytes.
    fn no_part_fits(&self, whole: DeviceBlock, bytes: usize) -> ResourceError {
        // If the upstream resource refuses the block, it counts it as live for ever.
        let _ = self.upstream.deallocate(whole);
        ResourceError::out_of_memory(bytes, self.upstream.device_ordinal(), (0, 0), &self.usage())
    }

    fn foreign(&self) -> impl FnOnce(&DeviceBlock) -> ResourceError {
        let device_ordinal = self.upstream.device_ordinal();
        move |block| ResourceError::foreign_block(block, device_ordinal)
    }

    /// Counts the blocks as freed that are no longer retired, and returns their bytes.
    fn poll_retired(&self) -> u64 {
        self.blocks().poll_retired(usize::MAX, |block| self.upstream.is_retired(block))
    }

    /// Reaps, and returns the requested bytes that this call freed.
    fn reap(&self, reap: impl FnOnce(&R) -> ResourceResult<u64>) -> ResourceResult<u64> {
        self.check_process()?;
        // Blocks that were freed before the call are not returned.
        self.poll_retired();
        let result = reap(&self.upstream);
        let freed = self.poll_retired();
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
        // An upstream block begins at a multiple of 256 bytes, so this much padding is enough.
        let padded = bytes.checked_add(alignment - BLOCK_ALIGNMENT);
        let padded = padded.ok_or_else(|| ResourceError::size_overflow(bytes))?;
        let whole = self.upstream.allocate(padded, stream, tag)?;
        let start = whole.ptr().checked_next_multiple_of(alignment as u64);
        let offset = start.and_then(|start| usize::try_from(start - whole.ptr()).ok());
        let part = whole.narrow(offset.unwrap_or(usize::MAX), bytes);
        let (block, whole) = part.map_err(|whole| self.no_part_fits(whole, bytes))?;
        self.blocks().insert(whole, bytes);
        Ok(block)
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if let Err(error) = self.check_process() {
            return Err(DeallocateError::new(error, block));
        }
        let id = block.id();
        let bytes = block.bytes();
        let whole = self.blocks().remove(block, self.foreign())?;
        let offset = (id.ptr() - whole.ptr()) as usize;
        let passed = PassedBlock::of(&whole);
        let state = self.upstream.deallocate(whole).map_err(|refusal| {
            match passed.check("deallocate", refusal) {
                Ok(refusal) => {
                    let DeallocateError { error, block: whole, .. } = *refusal;
                    DeallocateError::new(error, self.blocks().reinsert(whole, offset, bytes))
                }
                // It is the caller's.
                Err(other) => {
                    self.blocks().lose(bytes);
                    other
                }
            }
        })?;
        self.blocks().deallocated(id, bytes, state, |block| self.upstream.is_retired(block));
        Ok(state)
    }

    /// Gives no block away: it may begin inside of the driver's allocation.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let refused = ResourceError::not_given_away(&block, "the layer for alignment");
        Err(DeallocateError::new(refused, block))
    }

    /// Never grows a block: the bytes after the part are padding, and a block below the threshold
    /// is not aligned.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.check_process()?;
        self.blocks().check(block, self.foreign())?;
        Ok(bytes <= block.bytes())
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
        self.poll_retired();
        self.blocks().usage(reserved)
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
        allow_access,
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
