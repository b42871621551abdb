//! A pool whose observer is told what it carves up.
//!
//! An observer that judges work when it runs is told what is true of the device: a block ends when
//! all work with it is known to be done, and only then does its memory serve again. So the arenas of
//! such a pool have nothing free that a stream would have to come after, and the paths that find
//! memory need not know of observers. One that follows the order of streams is told of each block's
//! end when it is given back, and the pool does what it does without an observer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::process::LeakedInChild;
use dmr_core::size::checked_round_up;
use dmr_core::{
    AllocTag, DeviceBlock, DeviceMemoryResource, Generation, MemoryObserver, ResourceError,
    ResourceResult, StreamId,
};
use dmr_streams::uses::{Dependencies, FreeSlot};

use crate::PoolResource;
use crate::arena::{Arena, Request};
use crate::give_back::Back;
use crate::heap::{ChunkId, Taken};
use crate::resource::Place;
use crate::span::Span;

/// At least so many bytes behind each block are no block's, so that an overrun is seen.
const GAP: usize = 1;

/// The observer, and the blocks that it sees.
#[derive(Debug)]
pub(crate) struct Observed {
    observer: Arc<dyn MemoryObserver>,
    /// As [`MemoryObserver::follows_streams`] says: nothing new is `ending` then.
    follows_streams: bool,
    /// The blocks that it was told of and that were not given back, by address.
    regions: LeakedInChild<Mutex<HashMap<u64, Generation>>>,
    /// Deallocated, and not known to be done with; oldest first. While it is locked, neither the
    /// driver nor the observer is called.
    ending: LeakedInChild<Mutex<Vec<Ending>>>,
}

/// A block that was given back.
#[derive(Debug)]
struct Ending {
    place: Place,
    /// All work with it.
    after: Dependencies,
    address: u64,
    /// `None` if the observer was not told of it.
    generation: Option<Generation>,
}

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Tells `observer`, a memory checker, what the pool carves up: its segments are heaps, and so
    /// are the ranges of addresses that it maps pages into; its blocks are regions, of as many
    /// bytes as were asked for. Call it before the first allocation: a block that was handed out
    /// earlier is never a region. A heap ends before upstream is given its memory; one that upstream
    /// does not take begins anew. An observer that was told before is told nothing more.
    ///
    /// For an observer that [follows the order of streams](MemoryObserver::follows_streams), a region
    /// is freed when its block is given back, or when the last window on it closes. For any other, it
    /// is freed when all uses of the block, and what had been submitted to its home stream when it was
    /// given back, are known to be done. That is found out by the next allocation, free, reap or trim,
    /// and when the pool is dropped. Until then the memory serves no other block, so no work in flight
    /// is ever outside of the regions.
    ///
    /// What changes otherwise:
    ///
    /// - At least one byte behind each block is no region's, so a block may take up to
    ///   [`alignment`](crate::PoolConfig::alignment) bytes more.
    /// - [`try_grow`](DeviceMemoryResource::try_grow) returns `false`: a region that ends and begins anew would be
    ///   none for a moment, under work in flight.
    /// - Unless the observer follows the order of streams, allocations and frees ask the driver, which
    ///   records events for that; and where a stream would be made to wait for memory, the host waits
    ///   for it, as it does when the pool is dropped. Work that waits for the host to go on must not be
    ///   in flight then.
    #[must_use]
    pub fn with_observer(mut self, observer: Arc<dyn MemoryObserver>) -> Self {
        for arena in self.arenas() {
            let state = arena.lock();
            for (ptr, bytes) in state.spans.iter().map(Span::range) {
                observer.heap_created(ptr, bytes as usize);
            }
        }
        let before = self.observed.take();
        let mut ending = before.map_or_else(Vec::new, |it| std::mem::take(&mut *it.ending()));
        ending.iter_mut().for_each(|block| block.generation = None);
        let (regions, ending) = (LeakedInChild::default(), LeakedInChild::new(Mutex::new(ending)));
        let follows_streams = observer.follows_streams();
        self.observed = Some(Observed { observer, follows_streams, regions, ending });
        self.disable_fast_path();
        self
    }

    /// Memory was taken from upstream.
    pub(crate) fn report_created(&self, ptr: u64, bytes: u64) {
        if let Some(observed) = &self.observed {
            observed.observer.heap_created(ptr, bytes as usize);
        }
    }

    /// Memory is about to go back: afterwards upstream may hand it out again.
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
        self.settle_ending();
        let block = self.hand_out(bytes, bytes.saturating_add(GAP), stream, tag)?;
        if let Some(observed) = &self.observed {
            let (ptr, generation) = (block.ptr(), block.generation());
            observed.regions().insert(ptr, generation);
            observed.observer.region_allocated(ptr, bytes, tag, generation);
        }
        Ok(block)
    }

    /// Releases a chunk of an observed pool that comes after others' uses and what `home` has done with
    /// it. Unless the observer follows the order of streams, its memory serves no block before all of
    /// that is done.
    pub(crate) fn put_observed(
        &self,
        observed: &Observed,
        place: Place,
        home: StreamId,
        others: Dependencies,
        (slot, back): (FreeSlot, Back),
    ) {
        let Some(arena) = self.arena_at(place.arena) else { return };
        if observed.follows_streams {
            // Before the chunk can be another block's.
            let (address, _) = arena.lock().heap.range(place.chunk);
            observed.tell_freed(address);
            return self.put(place, home, others, Some(slot), back);
        }
        // What the home stream has waited for is done when that is. It is asked first: that
        // records its event as early as can be.
        let mut after = Dependencies::on(home, self.uses().submitted(home));
        after.add_all(&others);
        let mut state = arena.lock();
        state.counts.freed += back.freed;
        state.counts.returned += back.returned;
        state.keep_slot(place.chunk, slot);
        let (address, _) = state.heap.range(place.chunk);
        drop(state);
        let generation = observed.regions().remove(&address);
        observed.ending().push(Ending { place, after, address, generation });
        self.settle_ending();
    }

    /// A chunk of the own arena, before memory is looked for elsewhere. The host waits where
    /// another pool would have a stream wait. Only for observers that do not follow streams.
    pub(crate) fn take_ended(&self, own: &Arena, request: Request) -> Option<Taken> {
        self.observed.as_ref().filter(|observed| !observed.follows_streams)?;
        if !self.may_grow(request) {
            // What is not known to be done stays.
            let _ = self.wait_for_ending();
        }
        own.lock().take(request)
    }

    /// Frees the regions that the device is done with, which the driver is asked about.
    pub(crate) fn settle_ending(&self) {
        let Some(observed) = &self.observed else { return };
        self.uses().poll_each(&observed.ending_uses());
        let hand = self.transit.open();
        let is_done = |block: &mut Ending| self.uses().is_known_done(&block.after);
        let ended: Vec<_> = observed.ending().extract_if(.., is_done).collect();
        if !ended.is_empty() {
            hand.hold();
        }
        ended.iter().for_each(|block| self.end(observed, block));
    }

    /// Waits until the device is done with everything that was given back.
    ///
    /// # Errors
    ///
    /// The driver's first; of what failed it is not known.
    pub(crate) fn wait_for_ending(&self) -> ResourceResult<()> {
        let Some(observed) = &self.observed else { return Ok(()) };
        let outcome = self.uses().synchronize(&observed.ending_uses());
        self.settle_ending();
        outcome
    }

    /// The chunks of an arena that were given back, and serve nobody yet.
    pub(crate) fn ending_in(&self, arena: &Arena) -> HashSet<ChunkId> {
        let Some(observed) = &self.observed else { return HashSet::new() };
        let ending = observed.ending();
        let places = ending.iter().map(|block| block.place);
        places.filter(|place| place.arena == arena.home.slot()).map(|place| place.chunk).collect()
    }

    /// Refuses a number of bytes that no block has.
    fn check_size(&self, bytes: usize) -> ResourceResult<()> {
        if bytes.wrapping_sub(1) < self.max_block {
            return Ok(());
        }
        checked_round_up(bytes, self.config.alignment)?;
        Err(ResourceError::beyond_device(bytes, self.device().total_memory()))
    }

    fn end(&self, observed: &Observed, block: &Ending) {
        if let Some(generation) = block.generation {
            observed.observer.region_freed(block.address, generation);
        }
        if let Some(arena) = self.arena_at(block.place.arena) {
            // All work with it is complete, so no stream has to wait.
            arena.lock().release(block.place.chunk, 0);
        }
    }
}

impl Observed {
    /// The block at `address` was given back, and no window on it is open.
    fn tell_freed(&self, address: u64) {
        let generation = self.regions().remove(&address);
        if let Some(generation) = generation {
            self.observer.region_freed(address, generation);
        }
    }

    fn regions(&self) -> MutexGuard<'_, HashMap<u64, Generation>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ending_uses(&self) -> Dependencies {
        self.ending().iter().map(|block| &block.after).collect()
    }

    fn ending(&self) -> MutexGuard<'_, Vec<Ending>> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
