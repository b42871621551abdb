//! Growing a block in place: [`try_grow`](dmr_core::DeviceMemoryResource::try_grow) of the pool.

use dmr_core::size::checked_round_up;
use dmr_core::{DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult};

use crate::PoolResource;
use crate::arena::{Arena, ChunkLocation, Request};
use crate::heap::{ChunkId, UNIT};

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Makes a block larger in place, as the trait's method says.
    pub(crate) fn grow_in_place(
        &self,
        block: &mut DeviceBlock,
        bytes: usize,
    ) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        let id = block.id();
        let old_bytes = block.bytes();
        if bytes <= old_bytes {
            return Ok(true);
        }
        let wanted_units = self.units_of(bytes)?;
        let stream = self.streams.enter(id.alloc_stream())?;
        let home = stream.id();
        stream.refuse_capture()?;
        let location = self.uses().payload(&self.owner, id).and_then(ChunkLocation::from_payload);
        let arena = location.and_then(|location| self.arena_at(location.arena));
        let Some((ChunkLocation { chunk, .. }, arena)) = location.zip(arena) else {
            return Err(ResourceError::foreign_block(block, self.device_ordinal()));
        };
        if self.observed.is_some() {
            // A region that ends and begins again would not exist for a moment, under work in
            // flight.
            return Ok(false);
        }
        let old_units = arena.lock().heap.units(chunk);
        let more_bytes = (bytes - old_bytes) as u64;
        if wanted_units > old_units {
            let more_units = wanted_units - old_units;
            if !self.extend(arena, chunk, block, more_units, more_bytes)? {
                return Ok(false);
            }
        }
        // Other streams use the new bytes after what their last owner submitted to the home stream.
        if let Err(error) = self.uses().record(id, home) {
            let since = self.uses().submitted(arena.home);
            let mut state = arena.lock();
            if let Some(rest) = state.heap.cut_off(chunk, old_units) {
                state.heap.merge(rest, since);
            }
            return Err(error);
        }
        let mut state = arena.lock();
        state.counts.live += more_bytes;
        state.counts.allocated += more_bytes;
        let reserved_bytes = u64::from(state.heap.units(chunk)) * UNIT;
        drop(state);
        // SAFETY: the block was not narrowed, so its address is that of its chunk; the chunk is
        // this block's alone, and has `reserved_bytes` bytes, at least `bytes`.
        #[allow(unsafe_code, reason = "the pool is responsible for the memory of its blocks")]
        unsafe {
            block.set_sizes(bytes, reserved_bytes as usize);
        }
        dmr_recorder::hooks::grown(|| (&*block).into());
        Ok(true)
    }

    /// Returns the units that a chunk for `bytes` bytes has.
    fn units_of(&self, bytes: usize) -> ResourceResult<u32> {
        let total = self.device().total_memory();
        let too_large = || ResourceError::beyond_device(bytes, total);
        let rounded = checked_round_up(bytes, self.config.alignment)? as u64;
        if bytes as u64 > total {
            return Err(too_large());
        }
        u32::try_from(rounded / UNIT).map_err(|_| too_large())
    }

    /// Moves `more_units` units of free memory behind a chunk to that chunk, for `more_bytes` more
    /// requested bytes. Returns `false` if there is none that the block's home stream may use at
    /// once.
    fn extend(
        &self,
        arena: &Arena,
        chunk: ChunkId,
        block: &DeviceBlock,
        more_units: u32,
        more_bytes: u64,
    ) -> ResourceResult<bool> {
        let home = block.alloc_stream();
        let lender = arena.home.slot();
        let is_own = home.slot() == lender;
        let is_ready = |since| is_own || self.uses().is_after_number(home, lender, since);
        let mut state = arena.lock();
        if state.heap.extend(chunk, more_units, is_ready) {
            return Ok(true);
        }
        // The memory behind it may have been kept for requests of its size, or is not pending any
        // more.
        state.free_ordered(self.uses());
        if state.heap.flush() && state.heap.extend(chunk, more_units, is_ready) {
            return Ok(true);
        }
        drop(state);
        if !is_own {
            return Ok(false);
        }
        let request = Request { units: more_units, bytes: more_bytes, tag: block.tag() };
        match self.map_behind(arena, chunk, request) {
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. }) => Ok(false),
            other => other,
        }
    }
}
