//! Growing a block where it is.

use dmr_core::size::checked_round_up;
use dmr_core::{DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult};

use crate::PoolResource;
use crate::arena::{Arena, Request};
use crate::heap::{ChunkId, UNIT};
use crate::resource::Place;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Makes a block larger where it is: `bytes` bytes from its address on, the first of them as
    /// they were. `false`, and nothing has changed, if what follows it is not free, or its home
    /// stream would have to wait for that, or an [observer](Self::with_observer) is told of the
    /// pool's blocks. A block that has so many bytes stays as it is.
    ///
    /// Where the pool maps pages, addresses that follow the block and have no memory get some, if
    /// the pool may have it: a block at the end of its stream's memory always grows then.
    ///
    /// The block is the same one: its address, identity and home stream stay. What is new counts
    /// as a write on the home stream, as an allocation does: that is made to wait for what other
    /// streams do with the block, and other streams wait for it. Only for a block that this pool
    /// handed out itself; an adaptor around the pool counts what it saw it hand out.
    ///
    /// # Errors
    ///
    /// Nothing has changed then. [`InvalidSize`](ResourceError::InvalidSize) for more than the
    /// device has; [`StreamMisuse`](ResourceError::StreamMisuse) if the home stream's lease was
    /// returned; [`ForeignBlock`](ResourceError::ForeignBlock) for a block that is not this pool's;
    /// [`WindowConflict`](ResourceError::WindowConflict) while another stream has a window open;
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver);
    /// what upstream answers when pages are mapped, but that it is full.
    pub fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let (id, old) = (block.id(), block.bytes());
        if bytes <= old {
            return Ok(true);
        }
        let wanted = checked_round_up(bytes, self.config.alignment)? as u64;
        let total = self.device().total_memory();
        let too_large = || ResourceError::beyond_device(bytes, total);
        let wanted = u32::try_from(wanted / UNIT).map_err(|_| too_large())?;
        if bytes as u64 > total {
            return Err(too_large());
        }
        let stream = self.streams.enter(id.alloc_stream())?;
        let home = stream.id();
        self.refuse_capture(&stream)?;
        let place = self.uses().inner_slot(id, self.owner).and_then(Place::from_slot);
        let arena = place.and_then(|place| self.arena_at(place.arena));
        let Some((place, arena)) = place.zip(arena) else {
            return Err(ResourceError::foreign_block(block, self.device_ordinal()));
        };
        if self.observed.is_some() {
            return Ok(false);
        }
        let before = arena.lock().heap.range(place.chunk).1;
        let more = (bytes - old) as u64;
        if wanted > before && !self.extend(arena, place.chunk, block, wanted - before, more)? {
            return Ok(false);
        }
        // New bytes are used by other streams after what their last owner did at home.
        if let Err(error) = self.uses().record(id, home) {
            let since = self.uses().submitted(arena.home);
            let mut state = arena.lock();
            if let Some(rest) = state.heap.cut_off(place.chunk, before) {
                state.heap.merge(rest, since);
            }
            return Err(error);
        }
        let mut state = arena.lock();
        state.counts.add_bytes(more);
        let reserved = u64::from(state.heap.range(place.chunk).1) * UNIT;
        drop(state);
        // SAFETY: the chunk is this block's alone, and has been made so large.
        #[allow(unsafe_code, reason = "the pool answers for the memory of its blocks")]
        unsafe {
            block.set_sizes(bytes, reserved as usize);
        }
        Ok(true)
    }

    /// Puts so many units of what follows a chunk to it.
    fn extend(
        &self,
        arena: &Arena,
        chunk: ChunkId,
        block: &DeviceBlock,
        units: u32,
        bytes: u64,
    ) -> ResourceResult<bool> {
        let (home, lender) = (block.alloc_stream(), arena.home.slot());
        let is_own = home.slot() == lender;
        let is_ready = |since| is_own || self.uses().is_after_number(home, lender, since);
        let mut state = arena.lock();
        let is_apart = state.heap.is_apart(chunk);
        if is_apart {
            return Ok(false);
        }
        if state.heap.extend(chunk, units, is_ready) {
            return Ok(true);
        }
        // What follows may have been kept for requests of its size, or be pending no more.
        state.settle_all(arena.home, self.uses());
        if state.heap.flush() && state.heap.extend(chunk, units, is_ready) {
            return Ok(true);
        }
        drop(state);
        if !is_own {
            return Ok(false);
        }
        match self.place_after(arena, chunk, Request { units, bytes, is_apart }) {
            Err(ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. }) => Ok(false),
            other => other,
        }
    }
}
