//! Deallocating the blocks of `Tracked` upstream: at once, or when all uses are done.

use std::sync::atomic::Ordering;

use dmr_core::upstream::PassedBlock;
use dmr_core::{
    BlockParts, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, Generation,
    ResourceError, ResourceResult, StreamId,
};

use super::Tracked;
use super::handed_over::{UpstreamId, with_slot};
use crate::HomeStream;
use crate::uses::{Dependencies, FreeSlot, Patience, Pending, Released};

/// A block that was released and is not deallocated upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleasedBlock {
    /// The block as its caller had it.
    parts: BlockParts,
    upstream: UpstreamId,
    /// The block that upstream has returned instead: it has kept this one, which is never passed to
    /// it again.
    exchanged_for: Option<Generation>,
}

/// The error of a released block that could not be freed, and its slot.
struct NotFreed {
    error: NotDeallocated,
    slot: FreeSlot,
}

/// The error of a block that upstream has not deallocated.
struct NotDeallocated {
    error: ResourceError,
    /// The block that upstream has returned instead of the one that it was given, and has kept.
    other: Option<Box<DeviceBlock>>,
}

impl From<ResourceError> for NotDeallocated {
    fn from(error: ResourceError) -> Self {
        Self { error, other: None }
    }
}

impl ReleasedBlock {
    pub(super) fn bytes(&self) -> u64 {
        self.parts.bytes as u64
    }

    fn block(&self) -> DeviceBlock {
        with_slot(self.parts, self.parts.slot)
    }
}

impl<R: DeviceMemoryResource> Tracked<R> {
    /// Releases a block, and frees it if that may be done now. On an error nothing has changed,
    /// unless upstream has kept the block and returned another one.
    pub(super) fn release(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        self.try_release(&block).map_err(|NotDeallocated { error, other }| {
            DeallocateError::new(error, other.map_or(block, |other| *other))
        })
    }

    fn try_release(&self, block: &DeviceBlock) -> Result<BlockState, NotDeallocated> {
        let id = block.id();
        // First: another thread may have held a lock when the process was forked.
        self.refuse_part(block)?;
        let retired = |payload| ReleasedBlock {
            parts: block.parts(),
            upstream: UpstreamId::from_payload(payload),
            exchanged_for: None,
        };
        let mut after = Dependencies::default();
        match self.uses().release(&self.owner, id, &mut after) {
            Released::Foreign => {
                Err(ResourceError::foreign_block(block, self.device_ordinal()).into())
            }
            Released::Stale => Err(ResourceError::use_after_free(id.generation()).into()),
            Released::InUse { payload, .. } => {
                self.retired_bytes.fetch_add(block.bytes() as u64, Ordering::SeqCst);
                self.in_use.insert(id, retired(payload));
                self.free_closed(Patience::Poll);
                Ok(BlockState::Retired)
            }
            Released::Free { slot, payload } => {
                let freed = self.free_or_defer(&mut retired(payload), slot, after);
                freed.map_err(|NotFreed { error, slot }| {
                    match error.other {
                        None => self.uses().restore(slot),
                        // The memory is upstream's.
                        Some(_) => self.uses().vacate(slot),
                    }
                    error
                })
            }
        }
    }

    /// Deallocates a released block upstream if that may be done now; makes it pending otherwise.
    fn free_or_defer(
        &self,
        retired: &mut ReleasedBlock,
        slot: FreeSlot,
        mut after: Dependencies,
    ) -> Result<BlockState, NotFreed> {
        let home = retired.parts.alloc_stream;
        match self.is_ordered_at(home, &mut after) {
            Ok(true) => match self.deallocate_upstream(retired) {
                Ok(state) => {
                    self.uses().vacate(slot);
                    Ok(state)
                }
                Err(error) => Err(NotFreed { error, slot }),
            },
            Ok(false) => {
                self.retired_bytes.fetch_add(retired.bytes(), Ordering::SeqCst);
                self.uses().defer(slot);
                self.pending.push(home, Pending { value: *retired, after });
                Ok(BlockState::Retired)
            }
            Err(error) => Err(NotFreed { error: error.into(), slot }),
        }
    }

    /// Returns whether work that upstream submits to the stream `home` comes after all of `after`.
    /// If the stream is retired, adds all its work to `after`.
    fn is_ordered_at(&self, home: StreamId, after: &mut Dependencies) -> ResourceResult<bool> {
        let entered = self.streams.enter_home(home).and_then(|home| {
            home.refuse_capture()?;
            Ok(home)
        });
        match entered {
            // The work of a lost device has ended.
            _ if self.streams.device().is_lost() => Ok(true),
            Ok(HomeStream::Live(_)) => Ok(after.is_empty()),
            Ok(HomeStream::Retired) => {
                after.add(home, self.uses().submitted(home));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Deallocates a pending block upstream if its uses are done, or waits for them; returns
    /// whether it has.
    fn try_free(
        &self,
        pending: &mut Pending<ReleasedBlock>,
        patience: Patience,
    ) -> ResourceResult<bool> {
        let Pending { value: retired, after } = pending;
        let uses = self.uses();
        let device = self.streams.device();
        if !device.is_lost() {
            let is_free = self.is_done(retired.parts.alloc_stream, after, patience);
            match is_free {
                // The query may have found the device lost.
                Err(error) if !device.is_lost() => return Err(error),
                Ok(false) => return Ok(false),
                _ => {}
            }
        }
        self.deallocate_upstream(retired).map_err(|refused| refused.error)?;
        let mut done = Dependencies::default();
        if let Some(slot) = uses.release_retired(&self.owner, retired.block().id(), &mut done) {
            uses.vacate(slot);
        }
        self.retired_bytes.fetch_sub(retired.bytes(), Ordering::SeqCst);
        Ok(true)
    }

    fn is_done(
        &self,
        home: StreamId,
        after: &Dependencies,
        patience: Patience,
    ) -> ResourceResult<bool> {
        let uses = self.uses();
        self.streams.enter_home(home)?.refuse_capture()?;
        if uses.is_after(home, after) && !uses.has_ended(home) {
            return Ok(true);
        }
        match patience {
            Patience::Poll => uses.poll(after),
            Patience::Wait => uses.synchronize(after).map(|()| true),
        }
    }

    /// Deallocates a block upstream, under its upstream id.
    fn deallocate_upstream(
        &self,
        retired: &mut ReleasedBlock,
    ) -> Result<BlockState, NotDeallocated> {
        let block = with_slot(retired.parts, retired.upstream.slot);
        let id = block.id();
        let passed = PassedBlock::of(&block);
        if let Some(other) = retired.exchanged_for {
            // Upstream has this memory.
            let _ = block.into_parts();
            let other = format_args!("block {other}");
            return Err(ResourceError::wrong_memory("deallocate", other, passed).into());
        }
        let state = self.upstream().deallocate(block).map_err(|refused| {
            match passed.check("deallocate", refused) {
                Ok(refused) => {
                    let DeallocateError { error, block, .. } = *refused;
                    // It is still in `retired`.
                    let _ = block.into_parts();
                    error.into()
                }
                Err(refused) => {
                    let DeallocateError { error, block, .. } = *refused;
                    retired.exchanged_for = Some(block.generation());
                    NotDeallocated { error, other: Some(Box::new(block)) }
                }
            }
        })?;
        if state != BlockState::Freed {
            self.retired_upstream().push(id, |id| self.upstream().is_retired(id));
        }
        Ok(state)
    }

    /// Frees the blocks whose last window has closed, or makes them pending.
    pub(super) fn free_closed(&self, patience: Patience) {
        let free = |mut retired: ReleasedBlock| {
            let mut after = Dependencies::default();
            let id = retired.block().id();
            let Some(slot) = self.uses().release_retired(&self.owner, id, &mut after) else {
                return;
            };
            match self.free_or_defer(&mut retired, slot, after.clone()) {
                // A block that is pending was counted again.
                Ok(_) => {
                    self.retired_bytes.fetch_sub(retired.bytes(), Ordering::SeqCst);
                }
                // The next reap returns the error.
                Err(NotFreed { slot, .. }) => {
                    self.uses().defer(slot);
                    self.pending.push(id.alloc_stream(), Pending { value: retired, after });
                }
            }
        };
        match self.streams.device().is_lost() {
            true => self.in_use.drain_all(free),
            false => self.in_use.drain_closed(patience, free),
        }
    }

    /// Frees the oldest pending blocks, up to the first whose uses are not done.
    pub(super) fn free_oldest(&self, home: StreamId) {
        if self.in_use.any_closed() {
            self.free_closed(Patience::Poll);
        }
        let free = |pending: &mut Pending<ReleasedBlock>| self.try_free(pending, Patience::Poll);
        self.pending.free_oldest(home, usize::MAX, |_| true, free);
    }

    pub(super) fn reap(
        &self,
        patience: Patience,
        reap_upstream: impl FnOnce(&R) -> ResourceResult<u64>,
    ) -> ResourceResult<u64> {
        self.streams.device().refuse_fork()?;
        self.free_closed(patience);
        let mut freed = 0;
        let outcome = self.pending.reap(patience, |pending| {
            let before = self.upstream().usage().total_freed;
            let is_freed = self.try_free(pending, patience)?;
            if is_freed {
                let freed_now = self.upstream().usage().total_freed.saturating_sub(before);
                freed += freed_now.min(pending.value.bytes());
            }
            Ok(is_freed)
        });
        let freed_upstream = reap_upstream(self.upstream())?;
        outcome.map(|()| freed + freed_upstream)
    }

    /// Makes the home streams wait for the uses of all blocks without an open window, and
    /// deallocates these blocks upstream.
    pub(super) fn drain(&mut self) {
        if self.streams.device().bind().is_err() {
            return;
        }
        self.free_closed(Patience::Wait);
        // A block that upstream refuses is leaked, like one that is dropped.
        let _ = self.pending.reap(Patience::Wait, |Pending { value: retired, after }| {
            let home = retired.parts.alloc_stream;
            let is_ordered = match self.uses().has_ended(home) {
                false => self.uses().wait_for(home, after).is_ok(),
                true => self.uses().poll(after).unwrap_or(false),
            };
            Ok(is_ordered && self.deallocate_upstream(retired).is_ok())
        });
    }
}
