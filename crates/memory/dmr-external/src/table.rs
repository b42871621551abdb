//! The adopted blocks of a stream pool: into the use table, out of it, and ended.

use std::mem;
use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockId, BlockParts, BlockSlot, BlockState, DeviceBlock, Generation,
    ResourceError, ResourceResult, Usage,
};
use dmr_streams::uses::{Dependencies, FreeSlot, Patience, Released};
use dmr_streams::{Attachment, Device, StreamGuard, StreamPool};

use crate::blocks::{AdoptedMemory, ReservedSlot, TakenBlock};
use crate::held::{Events, Held, Look, PendingUses};

/// The binary logarithm of the largest alignment that a block reports.
const MOST_ALIGNMENT_BITS: u32 = 21;

/// The adopted blocks of one kind of memory of a stream pool, whose attachment has them.
pub(crate) struct Table<'p, M> {
    streams: &'p StreamPool,
    held: &'p Arc<Held<M>>,
}

/// The part that a stream pool owns.
struct Adopted<M>(Arc<Held<M>>);

impl<M: AdoptedMemory> Attachment for Adopted<M> {
    fn attach(streams: &StreamPool) -> Self {
        Self(Held::new(streams))
    }

    /// Ends what is retired, without waiting: memory that waits for the device outlives the pool.
    fn end(&self, streams: &StreamPool) {
        if !streams.device().is_forked() {
            let _ = Table::<M>::of(streams).end_closed(Patience::Wait);
        }
    }
}

/// The result of ending the memory of a block.
enum Ended {
    /// Nothing uses it any more.
    Done,
    /// The device may still use it.
    Pending(PendingUses),
}

/// Retired blocks that have ended.
pub(crate) struct EndedBlocks<M> {
    /// Their memory, as far as nothing uses it any more: not dropped yet.
    pub(crate) memory: Vec<M>,
    outcome: ResourceResult<()>,
}

impl<'p, M: AdoptedMemory> Table<'p, M> {
    /// Returns the blocks of a stream pool. In a forked child, call it for the first time after a
    /// check for that: it takes a lock.
    pub(crate) fn of(streams: &'p StreamPool) -> Self {
        let Adopted(held) = streams.attachment::<Adopted<M>>();
        Self { streams, held }
    }

    fn device(&self) -> &'p Device {
        self.streams.device()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.held.usage()
    }

    pub(crate) fn is_waiting(&self, block: BlockId) -> bool {
        self.held.is_waiting(block)
    }

    pub(crate) fn watch_windows(&self, streams: &Arc<StreamPool>) {
        self.held.watch_windows(streams);
    }

    pub(crate) fn reserve(&self, home: &StreamGuard<'_>) -> ResourceResult<ReservedSlot> {
        let slot = self.streams.uses().reserve(&self.held.owner, 0, home.id())?;
        Ok(ReservedSlot(slot))
    }

    /// Makes the block of memory whose last use is the work of `home` so far.
    ///
    /// # Safety
    ///
    /// As [`AdoptedBlocks::hold`](crate::AdoptedBlocks::hold).
    pub(crate) unsafe fn hold(
        &self,
        ReservedSlot(slot): ReservedSlot,
        home: &StreamGuard<'_>,
        memory: M,
        tag: AllocTag,
    ) -> DeviceBlock {
        let generation = Generation::next();
        // The slot is of the use table of these streams.
        let slot = home.occupy(slot, generation).unwrap_or(BlockSlot::NONE);
        let ptr = memory.ptr();
        let bytes = memory.bytes();
        let alignment = 1 << ptr.trailing_zeros().min(MOST_ALIGNMENT_BITS);
        self.held.add(generation.get(), memory);
        // SAFETY: the caller's obligation: the memory has these bytes, which stay allocated until
        // it is dropped, freed or taken; which happens when the block is gone. The generation is
        // new.
        let block = unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr,
                bytes,
                reserved_bytes: bytes,
                alignment,
                device_ordinal: self.device().ordinal(),
                alloc_stream: home.id(),
                tag,
                generation,
                slot,
                state: BlockState::Live,
                part_depth: 0,
            })
        };
        self.device().report_block(&block);
        block
    }

    /// Takes a block out of the use table whose windows are closed.
    pub(crate) fn take(&self, block: &DeviceBlock) -> ResourceResult<TakenBlock<M>> {
        self.refuse_part(block)?;
        let uses = self.streams.uses();
        let id = block.id();
        let home = id.alloc_stream();
        let mut after = Dependencies::default();
        let slot = match uses.release_closed(&self.held.owner, id, &mut after) {
            Released::Free { slot, .. } => slot,
            Released::InUse { holder, .. } => {
                let access = Access::ReadWrite;
                return Err(ResourceError::window_conflict(id.generation(), holder, home, access));
            }
            Released::Foreign => {
                return Err(ResourceError::foreign_block(block, self.device().ordinal()));
            }
            Released::Stale => return Err(ResourceError::use_after_free(id.generation())),
        };
        after.add(home, uses.submitted(home));
        match self.held.take(id) {
            Ok(memory) => Ok(TakenBlock { memory, after, slot, id }),
            Err(error) => {
                uses.restore(slot);
                Err(error)
            }
        }
    }

    pub(crate) fn restore(&self, taken: TakenBlock<M>) {
        self.held.put_back(taken.id, taken.memory);
        self.streams.uses().restore(taken.slot);
    }

    pub(crate) fn give_up(&self, taken: TakenBlock<M>) -> M {
        self.streams.uses().vacate(taken.slot);
        self.held.count_ended(taken.memory.bytes(), false);
        self.device().report_given_away(taken.id);
        taken.memory
    }

    /// Deallocates a block: ends its memory, or retires the block while a window is open.
    pub(crate) fn deallocate(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        self.refuse_part(block)?;
        let uses = self.streams.uses();
        let id = block.id();
        let mut after = Dependencies::default();
        match uses.release(&self.held.owner, id, &mut after) {
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device().ordinal())),
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::InUse { .. } => {
                self.held.retire(id);
                self.held.in_use.insert(id, id);
                let _ = self.end_closed(Patience::Poll);
                Ok(BlockState::Retired)
            }
            Released::Free { slot, .. } => match self.end(id, after, false) {
                Ok(ended) => {
                    uses.vacate(slot);
                    Ok(match ended {
                        Some(memory) => {
                            self.held.drop_memory(memory);
                            BlockState::Freed
                        }
                        None => BlockState::Retired,
                    })
                }
                Err(error) => {
                    uses.restore(slot);
                    Err(error)
                }
            },
        }
    }

    /// Ends the memory of retired blocks whose last window has closed; returns its bytes.
    pub(crate) fn end_closed(&self, patience: Patience) -> ResourceResult<u64> {
        let EndedBlocks { memory, outcome } = self.take_closed(patience);
        let mut freed = 0;
        for memory in memory {
            freed += memory.bytes() as u64;
            self.held.drop_memory(memory);
        }
        outcome.map(|()| freed)
    }

    /// Ends the memory of retired blocks whose last window has closed, and returns what is to be
    /// dropped.
    pub(crate) fn take_closed(&self, patience: Patience) -> EndedBlocks<M> {
        let held = self.held;
        let mut ended = EndedBlocks { memory: Vec::new(), outcome: Ok(()) };
        let mut end = |id: BlockId| {
            let mut after = Dependencies::default();
            let released = self.streams.uses().release_retired(&held.owner, id, &mut after);
            let Some(slot) = released else { return };
            self.end_retired(id, slot, after, &mut ended);
        };
        held.take_not_ended().into_iter().for_each(&mut end);
        match self.device().is_lost() {
            true => held.in_use.drain_all(end),
            false => held.in_use.drain_closed(patience, end),
        }
        ended
    }

    fn end_retired(
        &self,
        id: BlockId,
        slot: FreeSlot,
        after: Dependencies,
        ended: &mut EndedBlocks<M>,
    ) {
        match self.end(id, after, true) {
            Ok(memory) => {
                self.streams.uses().vacate(slot);
                ended.memory.extend(memory);
            }
            Err(error) => {
                self.streams.uses().defer(slot);
                self.held.add_not_ended(id);
                ended.outcome = mem::replace(&mut ended.outcome, Ok(())).and(Err(error));
            }
        }
    }

    /// Ends the memory of a block that no window uses, after the uses that its home stream need not
    /// wait for. Returns the memory to drop, or keeps it until the device is done.
    fn end(
        &self,
        id: BlockId,
        mut after: Dependencies,
        was_retired: bool,
    ) -> ResourceResult<Option<M>> {
        let home = id.alloc_stream();
        after.add(home, self.streams.uses().submitted(home));
        let memory = self.held.take(id)?;
        match self.try_end(&memory, after) {
            Ok(Ended::Done) => {
                self.held.count_ended(memory.bytes(), was_retired);
                if !M::IS_FREED_IN_ORDER {
                    self.device().report_given_away(id);
                }
                Ok(Some(memory))
            }
            Ok(Ended::Pending(pending)) => {
                self.held.wait(self.streams, id, memory, pending, was_retired);
                Ok(None)
            }
            Err(error) => {
                self.held.put_back(id, memory);
                Err(error)
            }
        }
    }

    fn try_end(&self, memory: &M, after: Dependencies) -> ResourceResult<Ended> {
        if self.device().is_lost() {
            return Ok(Ended::Done);
        }
        let ended = if M::IS_FREED_IN_ORDER {
            // SAFETY: no window uses it; on an error it is ended again later, otherwise dropped.
            unsafe { memory.free_in_order(self.streams, &after) }.map(|()| Ended::Done)
        } else {
            self.uses_of(after)
        };
        // The work of a lost device has ended.
        if self.device().is_lost() { Ok(Ended::Done) } else { ended }
    }

    fn uses_of(&self, after: Dependencies) -> ResourceResult<Ended> {
        let uses = self.streams.uses();
        let after = after.newest_of_each_stream();
        if uses.poll(&after)? {
            return Ok(Ended::Done);
        }
        let events: Events = uses.events_of(&after)?;
        Ok(match events.is_empty() {
            true => Ended::Done,
            false => Ended::Pending(PendingUses { after, events }),
        })
    }

    /// Ends what is retired, and drops memory that the device is done with.
    pub(crate) fn reap(&self, patience: Patience) -> ResourceResult<u64> {
        let closed = self.end_closed(patience);
        let waited = match patience {
            Patience::Poll => Ok(()),
            Patience::Wait => self.streams.uses().synchronize(&self.held.pending_uses()),
        };
        let freed = self.held.release_done(Look::All);
        if self.device().is_lost() {
            return Ok(closed.unwrap_or(0) + freed.unwrap_or(0));
        }
        let closed = closed?;
        waited?;
        freed.map(|freed| closed + freed)
    }

    pub(crate) fn refuse_part(&self, block: &DeviceBlock) -> ResourceResult<()> {
        let is_ours = self.streams.uses().payload(&self.held.owner, block.id()).is_some();
        if is_ours { block.require_part_depth(0) } else { Ok(()) }
    }
}
