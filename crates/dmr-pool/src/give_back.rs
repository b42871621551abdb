//! What happens on every free: where the chunk goes, and what it still depends on.

use dmr_core::{
    BlockId, BlockState, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};
use dmr_streams::uses::{Dependencies, FreeSlot, Patience, Released};

use crate::PoolResource;
use crate::resource::Place;

/// A block that was given back while a window was open.
#[derive(Clone, Copy)]
pub(crate) struct Retired {
    id: BlockId,
    payload: u64,
    bytes: u64,
}

/// What is counted when a chunk comes back.
pub(crate) struct Back {
    /// Bytes that its owner has given back now; none if the block was retired then.
    pub(crate) returned: u64,
    /// Bytes that are in the pool again.
    pub(crate) freed: u64,
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Takes a block back from its owner. On an error nothing has changed.
    #[inline(always)]
    pub(crate) fn give_back(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        let id = block.id();
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        let is_known = id.alloc_stream().pool() == Some(self.streams.id());
        if self.config.checks_capture && is_known && !self.device().is_lost() {
            self.refuse_captured(id.alloc_stream())?;
        }
        let mut after = Dependencies::default();
        match self.uses().release(&self.owner, id, &mut after) {
            Released::Free { payload, slot } => {
                let (home, freed) = (id.alloc_stream(), block.bytes() as u64);
                if let Some(place) = Place::from_payload(payload) {
                    let is_own = place.arena == home.slot();
                    if !after.is_empty() || !is_own || self.observed.is_some() {
                        let back = Back { returned: freed, freed };
                        self.put_used(place, home, after, slot, back);
                    } else if let Some(arena) = self.arena_at(place.arena) {
                        let mut state = arena.lock_for_block();
                        state.counts.freed += freed;
                        state.counts.returned += freed;
                        state.keep_slot(place.chunk, slot);
                        state.keep(place.chunk, self.uses().submitted(home));
                    }
                }
                Ok(BlockState::Freed)
            }
            Released::InUse { payload } => {
                self.retire(block, payload);
                Ok(BlockState::Retired)
            }
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    /// Puts a chunk back that other streams may have used, or that another stream has lent.
    #[inline(never)]
    fn put_used(
        &self,
        place: Place,
        home: StreamId,
        after: Dependencies,
        slot: FreeSlot,
        back: Back,
    ) {
        if let Some(observed) = &self.observed {
            return self.put_observed(observed, place, home, after, (slot, back));
        }
        self.put(place, home, after, Some(slot), back);
    }

    /// Puts a chunk that `from` has freed, and that depends on `after`, into its arena.
    #[inline(always)]
    pub(crate) fn put(
        &self,
        place: Place,
        from: StreamId,
        mut after: Dependencies,
        slot: Option<FreeSlot>,
        back: Back,
    ) {
        let Some(arena) = self.arena_at(place.arena) else { return };
        let uses = self.uses();
        let is_lent = arena.home.slot() != from.slot();
        if is_lent {
            after.add(from, uses.submitted(from));
        }
        let mut state = arena.lock();
        state.counts.freed += back.freed;
        state.counts.returned += back.returned;
        if let Some(slot) = slot {
            state.keep_slot(place.chunk, slot);
        }
        if after.is_empty() || uses.is_after(arena.home, &after) {
            state.release(place.chunk, uses.submitted(arena.home));
            drop(state);
        } else {
            // The borrowing stream is already ordered after the lender's work.
            let since = if is_lent { 0 } else { uses.submitted(arena.home) };
            state.push(place.chunk, after, since);
            state.settle_some(arena.home, uses);
            let question = state.question();
            drop(state);
            if let Some(asked) = question {
                for after in &asked {
                    // On an error it is polled again later.
                    let _ = uses.poll(after);
                }
                arena.lock().settle_some(arena.home, uses);
            }
        }
    }

    fn retire(&self, block: &DeviceBlock, payload: u64) {
        let (id, bytes) = (block.id(), block.bytes() as u64);
        if let Some(arena) =
            Place::from_payload(payload).and_then(|place| self.arena_at(place.arena))
        {
            arena.lock().counts.returned += bytes;
        }
        self.in_use.insert(id, Retired { id, payload, bytes });
        // The last window may have closed meanwhile.
        self.settle_closed(Patience::Poll);
    }

    /// Puts the retired blocks whose last window has closed into the arenas, and returns their bytes. On a
    /// lost device an open window keeps no block.
    pub(crate) fn settle_closed(&self, patience: Patience) -> u64 {
        if self.in_use.is_empty() {
            return 0;
        }
        let hand = self.transit.open();
        let mut freed = 0;
        let is_lost = self.device().is_lost();
        let free = |Retired { id, payload, bytes }: Retired| {
            hand.hold();
            let mut after = Dependencies::default();
            let slot = self.uses().release_retired(&self.owner, id, &mut after);
            freed += bytes;
            let (Some(place), Some(slot)) = (Place::from_payload(payload), slot) else { return };
            if !is_lost {
                let back = Back { returned: 0, freed: bytes };
                return self.put_used(place, id.alloc_stream(), after, slot, back);
            }
            self.uses().vacate(slot);
            if let Some(arena) = self.arena_at(place.arena) {
                arena.lock().counts.freed += bytes;
            }
        };
        match is_lost {
            true => self.in_use.settle_all(free),
            false => self.in_use.settle(patience, free),
        }
        freed
    }
}
