//! Use tracking for a resource that has none.
//!
//! The blocks are upstream's, with a slot of this stream pool's use table in place of upstream's
//! slot, which is the payload. A block goes back upstream only when that frees it in the right
//! order by itself: its uses are ordered before the home stream's next work, or done.

mod frees;
mod handed_over;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::error::StreamProblem;
use dmr_core::process::LeakedInChild;
use dmr_core::sync::lock;
use dmr_core::upstream::{PassedBlock, check_allocated};
use dmr_core::{
    AllocTag, BlockId, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    DriverAllocation, PeerAccess, ResourceError, ResourceResult, StreamId, StreamPoolId, Usage,
    UseTracking, VirtualMemory,
};
use dmr_recorder::Retrying;

use crate::uses::{BlocksInUse, Patience, PendingFrees, UseTable};
use crate::{BlockOwner, StreamGuard, StreamPool};
use frees::ReleasedBlock;
use handed_over::{RetiredUpstream, UpstreamId, with_slot};

/// Gives use tracking to any resource, the direct backend among them.
///
/// Blocks are allocated and deallocated upstream. In between they are in the use table of the
/// stream pool, so that launches on any stream are ordered.
///
/// # When a block is deallocated upstream
///
/// At once, if all recorded uses are ordered before the home stream's next work. Otherwise the
/// block is *retired* until its windows are closed and its uses on other streams are done. These
/// uses are polled at the start of each [`allocate`](DeviceMemoryResource::allocate), again before
/// that refuses for lack of memory, and in [`try_reap`](DeviceMemoryResource::try_reap);
/// [`reap_pending`](DeviceMemoryResource::reap_pending) waits for them. Upstream may then retire
/// the block by rules of its own; [`usage`](DeviceMemoryResource::usage) counts it once.
///
/// If upstream tracks uses itself, none are recorded there.
///
/// # Dropping it
///
/// Does not wait: the home streams of blocks that are still retired are made to wait for the uses,
/// and the blocks are deallocated upstream. Blocks with an open window are leaked.
pub struct Tracked<R: DeviceMemoryResource> {
    upstream: Option<R>,
    streams: Arc<StreamPool>,
    owner: BlockOwner,
    in_use: LeakedInChild<BlocksInUse<ReleasedBlock>>,
    pending: LeakedInChild<PendingFrees<ReleasedBlock>>,
    /// Requested bytes of the blocks that are retired here and live upstream.
    retired_bytes: AtomicU64,
    /// Never locked across a driver call.
    retired_upstream: LeakedInChild<Mutex<RetiredUpstream>>,
}

impl<R: DeviceMemoryResource> Tracked<R> {
    /// Tracks the uses of `upstream`'s blocks on the streams of this pool.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) if `upstream` works on another pool;
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn new(upstream: R, streams: Arc<StreamPool>) -> ResourceResult<Self> {
        // First: another thread may have held a lock when the process was forked.
        streams.device().refuse_fork()?;
        if upstream.stream_pool() != streams.id() {
            let stream = streams.default_stream();
            return Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool));
        }
        let owner = streams.register();
        Ok(Self {
            upstream: Some(upstream),
            streams,
            in_use: LeakedInChild::new(BlocksInUse::new(&owner)),
            pending: LeakedInChild::new(PendingFrees::new(1, ReleasedBlock::bytes)),
            owner,
            retired_bytes: AtomicU64::new(0),
            retired_upstream: LeakedInChild::default(),
        })
    }

    /// Returns the upstream resource.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only inside `into_upstream`")]
    pub fn upstream(&self) -> &R {
        self.upstream.as_ref().expect("there until `into_upstream`")
    }

    /// Returns the upstream resource. Retired blocks are deallocated there as when this is dropped.
    #[must_use]
    #[allow(clippy::expect_used, reason = "`None` only after this")]
    pub fn into_upstream(mut self) -> R {
        self.drain();
        self.upstream.take().expect("there until now")
    }

    fn uses(&self) -> UseTable<'_> {
        self.streams.uses()
    }

    fn retired_upstream(&self) -> MutexGuard<'_, RetiredUpstream> {
        lock(&self.retired_upstream)
    }

    /// Puts a block of upstream into the use table. Refuses a block of another stream pool, with
    /// whose streams the uses cannot be compared, and one that is not what was asked for: of
    /// another home stream, the uses on `home` would count as ordered before its free.
    fn adopt(
        &self,
        block: DeviceBlock,
        bytes: usize,
        home: &StreamGuard<'_>,
    ) -> Result<DeviceBlock, Box<DeallocateError>> {
        let id = block.id();
        let upstream = UpstreamId::of(&block);
        let inserted = match id.alloc_stream().pool() == Some(self.streams.id()) {
            true => check_allocated(&block, bytes, home.id()).and_then(|()| {
                self.uses().insert(&self.owner, id.generation(), home, upstream.to_payload())
            }),
            false => Err(ResourceError::other_pool(id, home.id(), self.streams.device().ordinal())),
        };
        match inserted {
            Ok(slot) if upstream.slot.is_of_host_memory() => {
                Ok(with_slot(block.into_parts(), slot.of_host_memory()))
            }
            Ok(slot) => Ok(with_slot(block.into_parts(), slot)),
            Err(error) => Err(DeallocateError::new(error, block)),
        }
        .inspect(|block| self.streams.device().report_block(block))
    }

    /// Returns an error for a part of a block of this resource, and in a forked child.
    fn refuse_part(&self, block: &DeviceBlock) -> ResourceResult<()> {
        self.streams.device().refuse_fork()?;
        // A part depth of 0 is no part, also where upstream allocates parts.
        if block.part_depth() == 0 {
            return Ok(());
        }
        let allocated = self.uses().payload(&self.owner, block.id()).map(UpstreamId::from_payload);
        allocated.map_or(Ok(()), |upstream| block.require_part_depth(upstream.part_depth))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for Tracked<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let guard = self.streams.enter(stream)?;
        let stream = guard.id();
        guard.refuse_capture()?;
        self.free_oldest(stream);
        let may_free = || !(self.in_use.is_empty() && self.pending.is_empty());
        // Refused, it is asked for again below.
        let retrying = (dmr_recorder::is_on() && may_free()).then(Retrying::quietly);
        let allocated = self.upstream().allocate(bytes, stream, tag);
        let again = retrying.is_some();
        drop(retrying);
        let block = match allocated {
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
                if again || may_free() =>
            {
                // Blocks that cannot be freed stay retired.
                let _ = self.try_reap();
                self.upstream().allocate(bytes, stream, tag)
            }
            allocated => allocated,
        }?;
        self.adopt(block, bytes, &guard).map_err(|refused| {
            let DeallocateError { error, block, .. } = *refused;
            // If upstream refuses it as well, it is leaked, and stays in the usage.
            let _ = self.upstream().deallocate(block);
            error
        })
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.release(block)
    }

    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let left = self.refuse_part(&block);
        let left = left.and_then(|()| self.uses().release_after_uses(&self.owner, &block));
        let (slot, payload) = match left {
            Ok(left) => left,
            Err(error) => return Err(DeallocateError::new(error, block)),
        };
        let here = block.id().slot();
        let upstream = with_slot(block.into_parts(), UpstreamId::from_payload(payload).slot);
        let id = upstream.id();
        let passed = PassedBlock::of(&upstream);
        match self
            .upstream()
            .give_away(upstream)
            .map_err(|refused| passed.check("give_away", refused))
        {
            Ok(given) => {
                self.uses().vacate(slot);
                self.streams.device().report_given_away(id);
                Ok(given)
            }
            Err(Ok(refused)) => {
                self.uses().restore(slot);
                let DeallocateError { error, block, .. } = *refused;
                Err(DeallocateError::new(error, with_slot(block.into_parts(), here)))
            }
            // Another block keeps its slot, and the mark of host memory there. This one is
            // upstream's.
            Err(Err(other)) => {
                self.uses().vacate(slot);
                Err(other)
            }
        }
    }

    /// Returns `true` only if the block is large enough: a resource that grows blocks tracks uses
    /// itself.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        self.refuse_part(block)?;
        Ok(bytes <= block.bytes())
    }

    fn is_retired(&self, block: BlockId) -> bool {
        if self.streams.device().is_forked() {
            return false;
        }
        if self.uses().is_retired(block) {
            return true;
        }
        self.retired_upstream().contains(block.generation(), |id| self.upstream().is_retired(id))
    }

    fn device_ordinal(&self) -> usize {
        self.upstream().device_ordinal()
    }

    fn stream_pool(&self) -> StreamPoolId {
        self.streams.id()
    }

    fn bytes_outstanding(&self) -> u64 {
        self.upstream().bytes_outstanding()
    }

    fn usage(&self) -> Usage {
        if self.streams.device().is_forked() {
            return Usage::default();
        }
        let retired = self.retired_bytes.load(Ordering::SeqCst);
        let mut usage = self.upstream().usage();
        usage.live = usage.live.saturating_sub(retired);
        usage.retired += retired;
        usage
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        self.reap(Patience::Poll, R::try_reap)
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        self.reap(Patience::Wait, R::reap_pending)
    }

    fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let before = self.usage().reserved;
        self.reap(Patience::Poll, |upstream| upstream.trim_to(keep_bytes))?;
        Ok(before.saturating_sub(self.usage().reserved))
    }

    fn allow_access(&self, device_ordinal: usize) -> ResourceResult<PeerAccess> {
        self.upstream().allow_access(device_ordinal)
    }

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(&*self.streams)
    }

    /// Uses of blocks are tracked, uses of pages are not.
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.upstream().virtual_memory()
    }
}

impl<R: DeviceMemoryResource> Drop for Tracked<R> {
    fn drop(&mut self) {
        if self.upstream.is_some() {
            self.drain();
        }
    }
}

/// `Tracked(Direct(device 0))`.
impl<R: DeviceMemoryResource> fmt::Display for Tracked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracked({:?})", self.upstream())
    }
}

impl<R: DeviceMemoryResource> fmt::Debug for Tracked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
