//! The regular path of allocations and frees: on a stream that the pool of streams has made, with
//! chunks that are warm.
//!
//! It stops at the first thing that is not regular, with everything consistent, and `resource` goes
//! on from there.

use dmr_core::ledger::UseId;
use dmr_core::{
    AllocTag, BlockSlot, DeviceBlock, DeviceMemoryResource, Generation, ResourceResult,
};
use dmr_streams::EnteredStream;
use dmr_streams::uses::{Dependencies, FreeSlot, LockedBlock, ReleasedBlock};

use crate::PoolResource;
use crate::arena::cooling::CoolingChunk;
use crate::arena::{ChunkLocation, FreedChunk, Locked, Placement, Request};
use crate::heap::{AcquiredChunk, UNIT, WarmChunk};
use crate::recorded;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Allocates a block on a stream that was entered and captures no graph.
    #[inline(always)]
    pub(crate) fn allocate_warm(
        &self,
        bytes: usize,
        home: EnteredStream<'_>,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let request = self.request(bytes, bytes, tag);
        let arena = self.arena(home.id());
        let mut state = arena.lock_for_block();
        let Some(warm) = state.heap.acquire_warm(request.units) else {
            return self.allocate_found(state, None, request, home);
        };
        let id = warm.id;
        let address = warm.address;
        let last = warm.tag;
        let Some(slot) = warm.slot.take() else {
            let since = warm.since;
            let chunk = AcquiredChunk { since, ..state.heap.acquired(id) };
            return self.allocate_found(state, Some(chunk), request, home);
        };
        if !std::ptr::eq(last.name(), tag.name()) {
            state.heap.set_tag(id, tag);
        }
        state.count_block(request.bytes);
        drop(state);
        let generation = Generation::next();
        // The slot of a chunk is of the use table of these streams.
        let slot = home.occupy(slot, generation).unwrap_or(BlockSlot::NONE);
        Ok(self.block(address, request, home.id(), generation, slot))
    }

    /// Allocates a block in the chunk that was acquired `already` and has had no block, or where no
    /// chunk of its size is warm.
    #[inline(never)]
    fn allocate_found(
        &self,
        mut state: Locked<'_>,
        already: Option<AcquiredChunk>,
        request: Request,
        home: EnteredStream<'_>,
    ) -> ResourceResult<DeviceBlock> {
        let arena = state.arena;
        let chunk = match already {
            Some(chunk) => Some(chunk),
            None if state.has_cooling() => state.acquire_cooled(request.units, self.uses()),
            None => state.heap.acquire_merged(request.units),
        };
        let Placement { chunk, slot } = self.place(arena, state, chunk, request)?;
        let generation = Generation::next();
        let slot = home.occupy(slot, generation).unwrap_or(BlockSlot::NONE);
        let request = Request { units: chunk.units, ..request };
        Ok(self.block(chunk.address, request, home.id(), generation, slot))
    }

    /// Frees a whole block on a stream that was entered and captures no graph, on the
    /// regular path. Returns `false`, and does nothing, if the block is not on it.
    #[inline(always)]
    pub(crate) fn free_warm(&self, block: &DeviceBlock, home: EnteredStream<'_>) -> bool {
        let uses = self.uses();
        let Some(locked) = uses.try_lock(&self.owner, block.id()) else { return false };
        if !locked.is_unused() {
            return self.free_used_block(block, home, locked);
        }
        self.keep_warm(block, home, locked.release());
        true
    }

    /// Frees the memory of a block that has left its slot and that no other stream uses: ready for
    /// the next block of its size, if it is of its home stream's arena.
    #[inline(always)]
    fn keep_warm(&self, block: &DeviceBlock, home: EnteredStream<'_>, released: ReleasedBlock) {
        let ReleasedBlock { slot, payload } = released;
        let Some(location) = ChunkLocation::from_payload(payload) else { return };
        if location.arena != home.slot() {
            return self.free_released(block, slot, location, None);
        }
        let Some(arena) = self.arena_at(location.arena) else { return };
        recorded::freed_at_once(block);
        let warm = warm_chunk(block, home, location, slot);
        let bytes = block.bytes() as u64;
        let units = (block.reserved_bytes() as u64 / UNIT) as u32;
        let mut state = arena.lock_for_block();
        state.counts.live -= bytes;
        state.heap.release_for_reuse(units, warm);
    }

    /// Frees a block that was used since its allocation, if no window is open and its home stream
    /// would have to wait for one use at most. Returns `false`, and does nothing, if it is another
    /// block.
    #[inline(never)]
    fn free_used_block(
        &self,
        block: &DeviceBlock,
        home: EnteredStream<'_>,
        mut locked: LockedBlock<'_>,
    ) -> bool {
        let Ok(after) = locked.settle(&home) else { return false };
        let released = locked.release();
        let Some(after) = after else {
            self.keep_warm(block, home, released);
            return true;
        };
        let ReleasedBlock { slot, payload } = released;
        let Some(location) = ChunkLocation::from_payload(payload) else { return true };
        let own = self.arena_at(location.arena).filter(|_| location.arena == home.slot());
        let Some(arena) = own else {
            self.free_released(block, slot, location, Some(after));
            return true;
        };
        recorded::freed(block, true);
        let chunk = warm_chunk(block, home, location, slot);
        let units = (block.reserved_bytes() as u64 / UNIT) as u32;
        let mut state = arena.lock_for_block();
        state.counts.live -= block.bytes() as u64;
        let polled = state.cool(CoolingChunk { chunk, units, after }, self.uses());
        drop(state);
        if let Some(polled) = polled {
            // On an error it is polled again later.
            let _ = self.uses().poll(&Dependencies::on_use(self.streams.id(), polled));
        }
        true
    }

    /// Frees a block that has left its slot, and whose memory comes after a use of another stream,
    /// or is of another stream's arena.
    #[inline(never)]
    fn free_released(
        &self,
        block: &DeviceBlock,
        slot: FreeSlot,
        location: ChunkLocation,
        used: Option<UseId>,
    ) {
        recorded::freed(block, true);
        let after = used.map_or_else(Dependencies::default, |used| {
            Dependencies::on_use(self.streams.id(), used)
        });
        let bytes = block.bytes() as u64;
        let home = block.alloc_stream();
        let slot = Some(slot);
        self.free_used(FreedChunk {
            location,
            home,
            after,
            slot,
            deallocated: bytes,
            freed: bytes,
        });
    }
}

/// Returns the chunk of a block that has left its slot.
#[inline(always)]
fn warm_chunk(
    block: &DeviceBlock,
    home: EnteredStream<'_>,
    location: ChunkLocation,
    slot: FreeSlot,
) -> WarmChunk {
    WarmChunk {
        id: location.chunk,
        address: block.ptr(),
        since: home.submitted(),
        slot: Some(slot),
        tag: block.tag(),
    }
}
