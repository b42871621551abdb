//! Frees of blocks: on the home stream at once, pending until other streams are known to be done,
//! or on the reclaim stream, which waits for them.
//!
//! A free on the home stream makes the driver's next allocation there cheap, and it is allowed as
//! soon as all other streams are done with the block.

use dmr_core::{
    BlockId, BlockState, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};
use dmr_recorder::hooks;
use dmr_streams::uses::{Dependencies, FreeSlot, Patience, Pending, PendingAmount, Released};
use dmr_streams::{HomeStream, StreamGuard};

use crate::AsyncCudaResource;

/// The number of queues of pending blocks that the home streams share.
pub(crate) const SHARDS: usize = 64;

/// The number of pending blocks that are freed after one became pending. More at a time would make
/// the driver's next allocations slower.
const AT_ONCE: usize = 2;

/// As soon as this many blocks of a home stream are pending, or more bytes than these, half of the
/// blocks are freed on the reclaim stream.
const MOST_PENDING: PendingAmount = PendingAmount { blocks: 128, bytes: 60 << 20 };

/// The most bytes of a block that is kept pending. A larger one is freed on the reclaim stream.
const LARGEST_PENDING: u64 = 8 << 20;

/// A block that was released and is not freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetiredBlock {
    id: BlockId,
    bytes: u64,
}

/// Permission to queue a free on the reclaim stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reclaim {
    No,
    Yes,
}

impl RetiredBlock {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Reclaim {
    /// Returns whether a block is too large to be kept pending.
    fn of(released: RetiredBlock) -> Self {
        if released.bytes > LARGEST_PENDING { Self::Yes } else { Self::No }
    }
}

impl AsyncCudaResource {
    /// Releases a block, and frees it or makes it pending. On an error nothing has changed.
    pub(crate) fn release(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        let retired = RetiredBlock { id: block.id(), bytes: block.bytes() as u64 };
        let RetiredBlock { id, bytes } = retired;
        // First: another thread may have held a lock when the process was forked. While this is
        // held, the home stream is not retired.
        let home = self.streams.enter_home(id.alloc_stream());
        if let Err(forked @ ResourceError::ForkedProcess { .. }) = home {
            return Err(forked);
        }
        block.require_part_depth(0)?;
        let mut after = Dependencies::default();
        match self.uses().release(&self.owner, id, &mut after) {
            Released::Free { slot, .. } => {
                let reclaim = Reclaim::of(retired);
                // Before another thread can have the memory.
                hooks::freed(!after.is_empty(), || block.into());
                match home.and_then(|home| self.free_now(retired, &after, &home, reclaim)) {
                    Ok(false) => {
                        self.accounts.retired(id.alloc_stream(), bytes);
                        self.defer(retired, slot, after);
                        self.free_some_pending(id.alloc_stream());
                        Ok(BlockState::Retired)
                    }
                    Err(error) if !self.device().is_lost() => {
                        self.uses().restore(slot);
                        hooks::described(block.into());
                        Err(error)
                    }
                    // The memory of a lost device is gone with its context.
                    _ => {
                        self.accounts.released_and_freed(id.alloc_stream(), bytes, slot);
                        Ok(BlockState::Freed)
                    }
                }
            }
            Released::InUse { .. } => {
                hooks::freed(true, || block.into());
                self.accounts.retired(id.alloc_stream(), bytes);
                self.in_use.insert(id, retired);
                // The last window may have closed meanwhile.
                self.free_closed(Patience::Poll);
                Ok(BlockState::Retired)
            }
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    /// Queues the free of a released block on its home stream, if that is after all its uses, or
    /// else on the reclaim stream, if it may; returns whether it has.
    fn free_now(
        &self,
        retired: RetiredBlock,
        after: &Dependencies,
        home: &HomeStream<'_>,
        reclaim: Reclaim,
    ) -> ResourceResult<bool> {
        match home {
            HomeStream::Live(home) if self.uses().is_after(home.id(), after) => {
                self.free_on_home(retired.id, home)?;
                return Ok(true);
            }
            HomeStream::Live(home) => {
                home.refuse_capture()?;
                if reclaim == Reclaim::No {
                    return Ok(false);
                }
            }
            // Nothing can be queued there any more.
            HomeStream::Retired => {}
        }
        self.free_on_reclaim(retired.id, after)?;
        Ok(true)
    }

    /// Queues the free of a block on its home stream, which comes after all uses.
    fn free_on_home(&self, id: BlockId, home: &StreamGuard<'_>) -> ResourceResult<()> {
        // SAFETY: the block was released, so nothing can be submitted for it any more; all that was
        // comes before this on its home stream, or is done.
        let freed = unsafe { self.pool.free(id.ptr(), home) };
        // The driver refuses to free memory that is not the graph's on a capturing stream, and the
        // capture goes on: so the stream is looked at only after an error.
        freed.or_else(|error| home.refuse_capture().and(Err(error)))
    }

    /// Queues the free of a block on the reclaim stream, which waits for all uses and for what was
    /// submitted to the home stream.
    fn free_on_reclaim(&self, id: BlockId, after: &Dependencies) -> ResourceResult<()> {
        let home = id.alloc_stream();
        let mut after = after.clone();
        after.add(home, self.uses().submitted(home));
        let reclaim = self.streams.reclaim_stream()?;
        self.uses().wait_on(&reclaim, &after)?;
        // SAFETY: the block was released, so nothing can be submitted for it any more; the reclaim
        // stream waits for all that was.
        unsafe { self.pool.free(id.ptr(), &reclaim) }
    }

    /// Keeps a released block, which is counted as retired, until it can be freed.
    fn defer(&self, retired: RetiredBlock, slot: FreeSlot, after: Dependencies) {
        // First: as soon as it is pending, another thread may free it.
        self.uses().defer(slot);
        self.pending.push(retired.id.alloc_stream(), Pending { value: retired, after });
    }

    /// Frees some pending blocks of a home stream to which one was added, and polls now and then.
    fn free_some_pending(&self, home: StreamId) {
        let due = self.pending.due_for_poll(home);
        let has_polled = due.is_some();
        for after in due.into_iter().flatten() {
            // On an error it is polled again later.
            let _ = self.uses().poll(&after);
        }
        let is_ready = |pending: &Pending<RetiredBlock>| self.is_ready(pending);
        let free = |pending: &mut Pending<RetiredBlock>| self.try_free(pending, Reclaim::No);
        let freed = self.pending.free_oldest(home, AT_ONCE, is_ready, free);
        if has_polled && freed == 0 {
            // The oldest may be used for long. What is not freed stays pending.
            let free_ready = |pending: &mut Pending<RetiredBlock>| match is_ready(pending) {
                true => self.try_free(pending, Reclaim::No),
                false => Ok(false),
            };
            let _ = self.pending.reap_of(home, Patience::Poll, free_ready);
        }
        let is_full = |PendingAmount { blocks, bytes }| {
            blocks >= MOST_PENDING.blocks || bytes > MOST_PENDING.bytes
        };
        let free = |pending: &mut Pending<RetiredBlock>| self.try_free(pending, Reclaim::Yes);
        let free_half =
            |blocks: usize| self.pending.free_oldest(home, blocks.div_ceil(2), |_| true, free);
        let mut pending = self.pending.pending(home);
        // Blocks that other threads add meanwhile are theirs.
        let mut left = pending.blocks;
        while left > 0 && is_full(pending) {
            match free_half(pending.blocks) {
                0 => return,
                freed => left = left.saturating_sub(freed),
            }
            pending = self.pending.pending(home);
        }
    }

    /// Returns whether a free on the home stream comes after all uses of a pending block.
    fn is_ready(&self, pending: &Pending<RetiredBlock>) -> bool {
        let home = pending.value.id.alloc_stream();
        self.uses().is_after(home, &pending.after) && !self.uses().has_ended(home)
    }

    /// Frees a pending block, if need be and if it may on the reclaim stream; returns whether it
    /// has.
    fn try_free(&self, pending: &Pending<RetiredBlock>, reclaim: Reclaim) -> ResourceResult<bool> {
        let Pending { value: RetiredBlock { id, bytes }, after } = pending;
        let home = self.streams.enter_home(id.alloc_stream());
        match home.and_then(|home| self.free_now(pending.value, after, &home, reclaim)) {
            Ok(false) => return Ok(false),
            Err(error) if !self.device().is_lost() => return Err(error),
            // The memory of a lost device is gone with its context.
            _ => {}
        }
        let slot = self.uses().release_retired(&self.owner, *id, &mut Dependencies::default());
        self.accounts.freed_later(id.alloc_stream(), *bytes, slot);
        Ok(true)
    }

    /// Frees the blocks whose last window has closed, or makes them pending.
    pub(crate) fn free_closed(&self, patience: Patience) -> u64 {
        let mut freed = 0;
        let free = |retired: RetiredBlock| {
            let id = retired.id;
            let mut after = Dependencies::default();
            let home = id.alloc_stream();
            let Some(slot) = self.uses().release_retired(&self.owner, id, &mut after) else {
                return;
            };
            let entered = self.streams.enter_home(home);
            match entered.and_then(|home| self.free_now(retired, &after, &home, Reclaim::Yes)) {
                // The next reap returns the error.
                Err(_) if !self.device().is_lost() => self.defer(retired, slot, after),
                _ => {
                    self.accounts.freed_later(home, retired.bytes, Some(slot));
                    freed += retired.bytes;
                }
            }
        };
        match self.device().is_lost() {
            true => self.in_use.drain_all(free),
            false => self.in_use.drain_closed(patience, free),
        }
        freed
    }

    /// Frees all that is retired and that no window is open on; returns the bytes.
    ///
    /// # Errors
    ///
    /// The first error. What could not be freed is still pending.
    pub(crate) fn reap(&self, patience: Patience) -> ResourceResult<u64> {
        if self.holds_none() {
            return Ok(0);
        }
        let mut freed = self.free_closed(patience);
        let outcome = self.pending.reap(patience, |pending| {
            let is_freed = self.try_free(pending, Reclaim::Yes)?;
            freed += if is_freed { pending.value.bytes } else { 0 };
            Ok(is_freed)
        });
        outcome.map(|()| freed)
    }
}
