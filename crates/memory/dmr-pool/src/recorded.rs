//! The events that a pool records.

use dmr_core::{BlockUse, DeviceBlock, DeviceMemoryResource, Generation, StreamId};
use dmr_recorder::hooks::{self, RecordedBlock, RecordedSpan};
use dmr_recorder::{Heap, HeapPart, HeapSource, HeapState};

use crate::PoolResource;
use crate::arena::{ChunkLocation, Locked, Request};
use crate::heap::{ChunkId, RegionState, UNIT};

#[inline(always)]
pub(crate) fn allocated(address: u64, request: Request, stream: StreamId, generation: Generation) {
    hooks::allocated_coarse(|| RecordedBlock {
        address,
        bytes: request.bytes,
        generation: generation.get(),
        stream,
        tag: request.tag,
    });
}

/// Records a free. If it `retires`, the memory may not be free yet.
#[inline(always)]
pub(crate) fn freed(block: &DeviceBlock, retires: bool) {
    hooks::freed(retires, || RecordedBlock::from(block));
}

/// Records the free of a block whose memory is ready at once.
#[inline(always)]
pub(crate) fn freed_at_once(block: &DeviceBlock) {
    let is_own = || block.generation().is_recent_of_thread();
    hooks::freed_coarse(is_own, || RecordedBlock::from(block));
}

/// Records that the memory of a chunk is free.
#[inline]
pub(crate) fn ready(address: u64, units: u32, stream: StreamId) {
    hooks::ready(|| RecordedSpan { address, bytes: u64::from(units) * UNIT, stream });
}

/// Returns the span of a page.
pub(crate) const fn page(address: u64, bytes: u64, stream: StreamId) -> RecordedSpan {
    RecordedSpan { address, bytes, stream }
}

impl Locked<'_> {
    /// Records that the memory of an acquired chunk is about to be free.
    #[inline]
    pub(crate) fn record_ready(&self, chunk: ChunkId) {
        if dmr_recorder::is_on() {
            let addresses = self.heap.addresses(chunk);
            ready(addresses.start, self.heap.units(chunk), self.arena.home);
        }
    }
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Describes the blocks of these uses for which a stream was made to wait just now.
    #[inline(never)]
    pub(crate) fn describe_awaited(&self, uses: &[BlockUse]) {
        for generation in hooks::take_awaited_blocks() {
            let is_it = |used: &&BlockUse| used.block.generation().get() == generation;
            let Some(used) = uses.iter().find(is_it) else { continue };
            let payload = self.uses().payload(&self.owner, used.block);
            let Some(location) = payload.and_then(ChunkLocation::from_payload) else { continue };
            let Some(arena) = self.arena_at(location.arena) else { continue };
            let state = arena.lock();
            let addresses = state.heap.addresses(location.chunk);
            let tag = state.heap.tag(location.chunk);
            drop(state);
            hooks::described(RecordedBlock {
                address: addresses.start,
                bytes: addresses.end - addresses.start,
                generation,
                stream: used.block.alloc_stream(),
                tag,
            });
        }
    }
}

impl<U: DeviceMemoryResource> HeapSource for PoolResource<U> {
    fn heap(&self) -> Heap {
        let state = |state| match state {
            RegionState::InUse => HeapState::InUse,
            RegionState::Cached => HeapState::Free,
            RegionState::Pending => HeapState::Pending,
        };
        let parts = self.heap_map().into_iter().map(|region| HeapPart {
            address: region.address,
            bytes: region.bytes,
            state: state(region.state),
            stream: region.stream,
            tag: region.tag,
            is_first: region.is_first,
        });
        let device = self.device_ordinal();
        Heap { device, reserved: self.reserved_now(), parts: parts.collect() }
    }
}
