//! What happens on every free: where the chunk goes, and what it still depends on.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use dmr_core::{
    BlockId, BlockState, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};
use dmr_streams::uses::{Carried, Surrender, Vacancy};

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
        if is_known && !self.device().is_lost() {
            self.refuse_captured(id.alloc_stream())?;
        }
        let mut after = Carried::default();
        match self.uses().surrender(id, &self.owner, &mut after) {
            Surrender::Free { payload, vacancy } => {
                let (home, freed) = (id.alloc_stream(), block.bytes() as u64);
                if let Some(place) = Place::from_payload(payload) {
                    let is_own = place.arena == home.slot();
                    if !after.is_empty() || !is_own || self.puts_specially {
                        let back = Back { returned: freed, freed };
                        self.put_used(place, home, after, vacancy, back);
                    } else if let Some(arena) = self.arena_at(place.arena) {
                        let mut state = arena.lock();
                        state.counts.freed += freed;
                        state.counts.returned += freed;
                        state.keep_vacancy(place.chunk, vacancy);
                        state.release(place.chunk, self.uses().submitted(home));
                    }
                }
                Ok(BlockState::Freed)
            }
            Surrender::InUse(payload) => {
                self.retire(block, payload);
                Ok(BlockState::Retired)
            }
            Surrender::Before => Err(ResourceError::use_after_free(id.generation())),
            Surrender::Foreign => Err(ResourceError::foreign_block(block, self.device_ordinal())),
        }
    }

    /// Puts a chunk back that other streams may have used, or that another stream has lent.
    #[inline(never)]
    fn put_used(&self, place: Place, home: StreamId, after: Carried, vacancy: Vacancy, back: Back) {
        if self.puts_specially {
            return self.put_specially(place, home, after, (vacancy, back));
        }
        self.put(place, home, after, Some(vacancy), back);
    }

    /// Puts a chunk that `from` has freed, and that depends on `after`, into its arena.
    #[inline(always)]
    pub(crate) fn put(
        &self,
        place: Place,
        from: StreamId,
        mut after: Carried,
        vacancy: Option<Vacancy>,
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
        if let Some(vacancy) = vacancy {
            state.keep_vacancy(place.chunk, vacancy);
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
                self.ask(arena, &asked);
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
        let mut retired = self.retired();
        retired.push(Retired { id, payload, bytes });
        self.retired_count.store(retired.len(), Ordering::SeqCst);
        drop(retired);
        // The window may have closed meanwhile.
        self.sweep();
    }

    /// Puts retired blocks whose windows have closed back into the arenas, and returns their bytes.
    /// On a lost device an open window keeps no block.
    pub(crate) fn sweep(&self) -> u64 {
        if !self.has_retired() {
            return 0;
        }
        let hand = self.transit.open();
        let mut closed = Vec::new();
        let mut lost = Vec::new();
        let mut retired = self.retired();
        if self.device().is_lost() {
            lost.append(&mut retired);
        }
        retired.retain(|&block| {
            let left = self.uses().surrender_retired(block.id, &self.owner);
            let stays = left.is_none();
            closed.extend(left.map(|vacancy| (block, vacancy)));
            stays
        });
        if !closed.is_empty() {
            hand.hold();
        }
        self.retired_count.store(retired.len(), Ordering::SeqCst);
        drop(retired);
        let mut freed = 0;
        for Retired { id, payload, bytes } in lost {
            self.uses().remove(&self.owner, id);
            if let Some(arena) = Place::from_payload(payload).and_then(|at| self.arena_at(at.arena))
            {
                arena.lock().counts.freed += bytes;
            }
            freed += bytes;
        }
        for (Retired { id, payload, bytes }, mut vacancy) in closed {
            if let Some(place) = Place::from_payload(payload) {
                let (home, back) = (id.alloc_stream(), Back { returned: 0, freed: bytes });
                let after = self.uses().carry(&mut vacancy, home);
                self.put_used(place, home, after, vacancy, back);
            }
            freed += bytes;
        }
        freed
    }

    /// Returns whether there are blocks that were given back while a window was open.
    #[inline]
    pub(crate) fn has_retired(&self) -> bool {
        self.retired_count.load(Ordering::SeqCst) > 0
    }

    fn retired(&self) -> MutexGuard<'_, Vec<Retired>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
