//! Reports of a pool's blocks to a memory checker, its observer.
//!
//! An observer that checks work when it runs gets reports that are true of the device: a region is
//! freed when all work with it is known to be done, and only then does its memory serve again. So
//! the arenas of such a pool have nothing free that a stream would have to wait for, and the paths
//! that find memory are the same with and without an observer. For one that follows the order of
//! streams, a region is freed when its block is, and the pool does what it does without an
//! observer.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use dmr_core::process::LeakedInChild;
use dmr_core::size::checked_round_up;
use dmr_core::{
    AllocTag, CaughtObserver, DeviceBlock, DeviceMemoryResource, MemoryObserver, ResourceError,
    ResourceResult, StreamId,
};
use dmr_streams::uses::Dependencies;

use crate::PoolResource;
use crate::arena::{Arena, FreedChunk, Request};
use crate::heap::{AcquiredChunk, ChunkId};
use crate::regions::{FreedRegion, Observed};
use crate::span::Span;
use crate::sync::Mutex;

/// Bytes behind each block, at least, that are no block's, so that an overrun is found.
const GAP: usize = 1;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Reports the pool's memory to `observer`, a memory checker: its segments are heaps, and so
    /// are the addresses that it maps pages into; its blocks are regions of the requested bytes.
    /// Call it before the first allocation: a block that was allocated earlier is never a region. A
    /// heap is reported as destroyed before its memory goes back to upstream, and as created again
    /// if upstream refuses it. An earlier observer gets no more reports.
    ///
    /// For an observer that [follows the order of streams](MemoryObserver::follows_streams), a
    /// region is freed when its block is deallocated, or when the last window on it closes. For any
    /// other, it is freed when all uses of the block, and what had been submitted to its home
    /// stream before its `deallocate`, are known to be done. The next allocation, free, reap or
    /// trim finds that out, and so does dropping the pool. Until then the memory serves no other
    /// block, so no work in flight is ever outside of the regions.
    ///
    /// What changes otherwise:
    ///
    /// - At least one byte behind each block is no region's, so a block may take up to
    ///   [`alignment`](crate::PoolConfig::alignment) bytes more.
    /// - [`try_grow`](DeviceMemoryResource::try_grow) returns `false`: a region that ends and
    ///   begins anew would be none for a moment, under work in flight.
    /// - A panic of the observer is caught and counted
    ///   ([`observer_panics`](Self::observer_panics)): the call goes on.
    /// - Unless the observer follows the order of streams, allocations and frees poll the device,
    ///   and record events for that; and where a stream would be made to wait for memory, the host
    ///   waits for it, as it does when the pool is dropped. Work that waits for the host to go on
    ///   must not be in flight then.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn MemoryObserver>) -> Self {
        let observer = CaughtObserver::new(observer);
        for arena in self.arenas() {
            let state = arena.lock();
            for Range { start, end } in state.spans.iter().map(Span::addresses) {
                observer.heap_created(start, (end - start) as usize);
            }
        }
        let before = self.observed.take();
        let mut freed = before.map_or_else(Vec::new, |it| std::mem::take(&mut *it.freed()));
        freed.iter_mut().for_each(|region| region.generation = None);
        let regions = LeakedInChild::default();
        let freed = LeakedInChild::new(Mutex::new(freed));
        let follows_streams = observer.follows_streams();
        self.observed = Some(Observed { observer, follows_streams, regions, freed });
        self.disable_fast_path();
        self
    }

    /// Returns how often the observer has panicked.
    #[must_use]
    pub fn observer_panics(&self) -> u64 {
        self.observed.as_ref().map_or(0, |observed| observed.observer.panics())
    }

    /// Reports memory that was taken from upstream.
    pub(crate) fn report_created(&self, ptr: u64, bytes: u64) {
        if let Some(observed) = &self.observed {
            observed.observer.heap_created(ptr, bytes as usize);
        }
    }

    /// Reports memory that is about to go back to upstream, which may serve others then.
    pub(crate) fn report_destroyed(&self, ptr: u64) {
        if let Some(observed) = &self.observed {
            observed.observer.heap_destroyed(ptr);
        }
    }

    /// Allocates on the slow path: checks the size and reports the block to the observer.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_observed(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        self.check_size(bytes)?;
        // Another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        self.free_done_regions();
        let block = self.allocate_chunk(bytes, bytes.saturating_add(GAP), stream, tag)?;
        if let Some(observed) = &self.observed {
            let ptr = block.ptr();
            let generation = block.generation();
            observed.regions().insert(ptr, generation);
            observed.observer.region_allocated(ptr, bytes, tag, generation);
        }
        Ok(block)
    }

    /// Frees a chunk of an observed pool. Unless the observer follows the order of streams, its
    /// memory serves no block before all work with it is done.
    pub(crate) fn free_observed(&self, observed: &Observed, freed: FreedChunk) {
        let FreedChunk { location, home, .. } = freed;
        let Some(arena) = self.arena_at(location.arena) else { return };
        let address = arena.lock().heap.addresses(location.chunk).start;
        let generation = observed.regions().remove(&address);
        if observed.follows_streams {
            // Before the chunk can be another block's.
            observed.report_freed(address, generation);
            return self.free_chunk(freed);
        }
        let mut after = Dependencies::on(home, self.uses().submitted(home));
        after.add_all(&freed.after);
        let mut state = arena.lock();
        state.end_block(location.chunk, freed.slot, freed.deallocated, freed.freed);
        drop(state);
        observed.freed().push(FreedRegion { location, after, address, generation });
        self.free_done_regions();
    }

    /// Acquires a chunk of the own arena. The host waits where a pool without an observer would
    /// have a stream wait. `None` unless there is an observer that does not follow streams.
    pub(crate) fn acquire_done_with(&self, own: &Arena, request: Request) -> Option<AcquiredChunk> {
        self.observed.as_ref().filter(|observed| !observed.follows_streams)?;
        if !self.may_grow(request) {
            // What is not known to be done stays.
            let _ = self.wait_for_freed_regions();
        }
        own.lock().heap.acquire(request.units)
    }

    /// Polls the freed regions, and frees the memory of those that the device is done with.
    pub(crate) fn free_done_regions(&self) {
        let Some(observed) = &self.observed else { return };
        self.uses().poll_each(&observed.freed_uses());
        let hand = self.transit.open();
        let is_done = |region: &mut FreedRegion| self.uses().is_known_done(&region.after);
        let done: Vec<_> = observed.freed().extract_if(.., is_done).collect();
        for region in done {
            hand.hold();
            observed.report_freed(region.address, region.generation);
            if let Some(arena) = self.arena_at(region.location.arena) {
                // All work with it is complete, so no stream has to wait.
                arena.lock().heap.release(region.location.chunk, 0);
            }
        }
    }

    /// Waits until the device is done with all freed regions, and frees their memory.
    ///
    /// # Errors
    ///
    /// The driver's first. What is not known to be done stays.
    pub(crate) fn wait_for_freed_regions(&self) -> ResourceResult<()> {
        let Some(observed) = &self.observed else { return Ok(()) };
        let outcome = self.uses().synchronize(&observed.freed_uses());
        self.free_done_regions();
        outcome
    }

    /// Returns the chunks of an arena whose regions were freed and may still be used by the device.
    pub(crate) fn freed_regions_in(&self, arena: &Arena) -> HashSet<ChunkId> {
        let Some(observed) = &self.observed else { return HashSet::new() };
        let freed = observed.freed();
        let locations = freed.iter().map(|region| region.location);
        locations.filter(|at| at.arena == arena.home.slot()).map(|at| at.chunk).collect()
    }

    /// Refuses a number of bytes that no block has.
    fn check_size(&self, bytes: usize) -> ResourceResult<()> {
        if bytes.wrapping_sub(1) < self.max_block {
            return Ok(());
        }
        checked_round_up(bytes, self.config.alignment)?;
        Err(ResourceError::beyond_device(bytes, self.device().total_memory()))
    }
}
