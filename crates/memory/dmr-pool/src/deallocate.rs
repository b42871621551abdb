//! Frees on the slow path: of chunks that other streams have used, and of blocks with an open
//! window.

use dmr_core::DeviceMemoryResource;
use dmr_streams::uses::{Dependencies, Patience};

use crate::PoolResource;
use crate::arena::{ChunkLocation, FreedChunk, RetiredChunk};

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Frees a chunk that other streams have used, or that another stream has borrowed.
    #[inline(never)]
    pub(crate) fn free_used(&self, chunk: FreedChunk) {
        match &self.observed {
            Some(observed) => self.free_observed(observed, chunk),
            None => self.free_chunk(chunk),
        }
    }

    /// Frees a chunk: it is pending as long as its arena's stream is not ordered after its uses.
    #[inline(always)]
    pub(crate) fn free_chunk(&self, freed: FreedChunk) {
        let FreedChunk { location, home, mut after, slot, deallocated, freed } = freed;
        let Some(arena) = self.arena_at(location.arena) else { return };
        let uses = self.uses();
        let is_borrowed = arena.home.slot() != home.slot();
        if is_borrowed {
            after.add(home, uses.submitted(home));
        }
        let mut state = arena.lock();
        state.end_block(location.chunk, slot, deallocated, freed);
        // Often the home stream has waited for the other uses already, or they are done.
        if after.is_empty() || uses.is_after(arena.home, &after) {
            if freed > 0 {
                state.record_ready(location.chunk);
            }
            state.heap.release(location.chunk, uses.submitted(arena.home));
            return;
        }
        // The borrowing stream is already ordered after the lender's work.
        let since = if is_borrowed { 0 } else { uses.submitted(arena.home) };
        state.push(location.chunk, after, since);
        state.free_oldest_ordered(uses);
        let polled = state.due_for_poll();
        drop(state);
        if let Some(polled) = polled {
            for after in &polled {
                // On an error it is polled again later.
                let _ = uses.poll(after);
            }
            arena.lock().free_oldest_ordered(uses);
        }
    }

    /// Keeps a block that was released in a window until the last one has closed.
    pub(crate) fn retire(&self, block: RetiredChunk) {
        let location = ChunkLocation::from_payload(block.payload);
        if let Some(arena) = location.and_then(|location| self.arena_at(location.arena)) {
            let mut state = arena.lock();
            state.counts.live -= block.bytes;
            state.counts.retired += block.bytes;
        }
        self.in_use.insert(block.id, block);
        // The last window may have closed meanwhile.
        self.free_closed();
    }

    /// Frees the retired blocks whose last window has closed, and returns their bytes. On a lost
    /// device an open window keeps no block.
    pub(crate) fn free_closed(&self) -> u64 {
        if self.in_use.is_empty() {
            return 0;
        }
        let hand = self.transit.open();
        let mut freed = 0;
        let is_lost = self.device().is_lost();
        let free = |RetiredChunk { id, payload, bytes }: RetiredChunk| {
            hand.hold();
            let mut after = Dependencies::default();
            let slot = self.uses().release_retired(&self.owner, id, &mut after);
            freed += bytes;
            let location = ChunkLocation::from_payload(payload);
            let (Some(location), Some(slot)) = (location, slot) else { return };
            if !is_lost {
                let home = id.alloc_stream();
                let slot = Some(slot);
                let chunk =
                    FreedChunk { location, home, after, slot, deallocated: 0, freed: bytes };
                return self.free_used(chunk);
            }
            self.uses().vacate(slot);
            if let Some(arena) = self.arena_at(location.arena) {
                arena.lock().counts.retired -= bytes;
            }
        };
        match is_lost {
            true => self.in_use.drain_all(free),
            false => self.in_use.drain_closed(Patience::Poll, free),
        }
        freed
    }
}
