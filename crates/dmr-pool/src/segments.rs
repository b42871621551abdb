//! Memory from upstream, and its way back.

use std::sync::atomic::Ordering;

use dmr_core::error::Limit;
use dmr_core::{
    AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};

use dmr_streams::uses::Carried;

use crate::PoolResource;
use crate::arena::{Arena, Pending, Request, Segment, State};
use crate::config::SEGMENT_STEP;
use crate::heap::{ChunkId, Taken, UNIT};
use crate::in_flight::Flight;

/// How messages name the memory that a pool holds.
pub(crate) const TAG: AllocTag = AllocTag::new("pool");

/// How many pending chunks of an arena may turn out to be in use before no more are asked about.
const QUESTIONS: usize = 4;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Gives free memory back to upstream, as [`trim_own_to`](Self::trim_own_to) does, and trims
    /// upstream.
    pub(crate) fn trim_all_to(&self, bytes: u64) -> ResourceResult<()> {
        let own = self.trim_own_to(bytes);
        own.and(self.upstream.trim_to(bytes).map(drop))
    }

    /// Gives free memory back to upstream, as long as more than `bytes` bytes are reserved. Does
    /// not wait: what other streams are still using stays, and so does every segment or page with a
    /// block in it. A page goes back only when its home stream is known to be done with it, too.
    ///
    /// # Errors
    ///
    /// What upstream answered first; that memory is still the pool's, and the rest was given back
    /// all the same.
    pub(crate) fn trim_own_to(&self, bytes: u64) -> ResourceResult<()> {
        self.settle_ending();
        for arena in self.arenas().filter(|_| self.reserved.load(Ordering::Relaxed) > bytes) {
            // What cannot be found out stays pending.
            arena.settle_oldest(self.uses(), |after| drop(self.uses().poll(after)));
        }
        self.trim_known_to(bytes)
    }

    /// As [`trim_own_to`](Self::trim_own_to), for memory that other streams are known to be done
    /// with.
    pub(crate) fn trim_known_to(&self, bytes: u64) -> ResourceResult<()> {
        if self.pages.is_some() {
            return self.trim_pages(bytes);
        }
        let mut outcome = Ok(());
        for arena in self.arenas() {
            if self.reserved.load(Ordering::Relaxed) <= bytes {
                break;
            }
            arena.settle_everything(self.uses());
            arena.lock().heap.flush();
            outcome = outcome.and(self.trim_arena(arena, bytes));
        }
        outcome
    }

    /// Gives the free segments of an arena back, as long as more than so many bytes are reserved.
    fn trim_arena(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let (mut refused, mut outcome) = (Vec::new(), Ok(()));
        while self.reserved.load(Ordering::Relaxed) > bytes {
            let is_new = |segment: &Segment| !refused.contains(&segment.block.ptr());
            let Some((segment, _flight)) = self.take_out(arena, is_new) else { break };
            let ptr = segment.block.ptr();
            if let Err(error) = self.give_up(arena, segment) {
                refused.push(ptr);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Takes memory from upstream into an arena, and a chunk out of it; `None` if that would be more
    /// than the pool may have.
    ///
    /// # Errors
    ///
    /// Upstream's.
    pub(crate) fn grow(&self, arena: &Arena, request: Request) -> ResourceResult<Option<Taken>> {
        let _alone = self.growing.lock();
        if let Some(taken) = arena.lock().take(request) {
            // Another thread has made room meanwhile.
            return Ok(Some(taken));
        }
        let Request { units, is_apart, .. } = request;
        let Some(block) = self.take_segment(arena, request.needed(), is_apart)? else {
            return Ok(None);
        };
        let mut state = arena.lock();
        let first = self.add(&mut state, arena.home, block, is_apart);
        let heap = &mut state.heap;
        Ok(Some(if is_apart { heap.taken(first) } else { heap.take_from(first, units) }))
    }

    /// Takes memory from upstream into an arena, for later.
    pub(crate) fn reserve(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let total = self.device().total_memory();
        if bytes > total {
            let asked = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(ResourceError::beyond_device(asked, total));
        }
        if self.pages.is_some() {
            return self.reserve_pages(arena, bytes);
        }
        match self.take_segment(arena, bytes, true)? {
            Some(block) => self.add(&mut arena.lock(), arena.home, block, false),
            None => return Err(self.out_of_memory(bytes)),
        };
        Ok(())
    }

    /// A segment for an arena: free, or taken if it is for large blocks.
    fn add(
        &self,
        state: &mut State,
        home: StreamId,
        block: DeviceBlock,
        is_apart: bool,
    ) -> ChunkId {
        let (ptr, units) = aligned_part(&block, self.config.alignment as u64);
        let first = match is_apart {
            true => state.heap.add_apart(ptr, units),
            false => state.heap.add_segment(ptr, units, self.uses().submitted(home)),
        };
        state.segments.push(Segment { block, first, is_apart });
        first
    }

    /// Asks upstream for a large step, and for less if it has not that much. `None` if the pool may
    /// not have that much, or no device has.
    fn take_segment(
        &self,
        arena: &Arena,
        needed: u64,
        is_apart: bool,
    ) -> ResourceResult<Option<DeviceBlock>> {
        let reserved = self.reserved.load(Ordering::Relaxed);
        // Upstream need not align better than every resource does.
        let for_alignment = self.config.alignment as u64 - UNIT;
        let least = (needed + for_alignment).next_multiple_of(SEGMENT_STEP);
        // Many streams that took as much as one would have too much together.
        let share = reserved / (2 * self.arenas().count() as u64).max(1);
        let growth = share.min(self.config.growth).next_multiple_of(SEGMENT_STEP);
        let step = if is_apart { least } else { least.max(growth) };
        let room = self.config.maximum_size.unwrap_or(u64::MAX).saturating_sub(reserved);
        let mut outcome = Ok(None);
        for bytes in [step, least].into_iter().filter(|&bytes| bytes <= room) {
            match self.upstream.allocate(bytes as usize, arena.home, TAG) {
                Ok(block) => {
                    self.tell_created(block.ptr(), block.bytes() as u64);
                    self.count_reserved(block.bytes() as u64);
                    return Ok(Some(block));
                }
                // The step is the pool's, not the caller's.
                Err(ResourceError::InvalidSize { .. }) => {}
                Err(other) => outcome = Err(other),
            }
        }
        outcome
    }

    /// Gives free segments back that are too large to be kept.
    pub(crate) fn give_up_largest(&self, arena: &Arena) {
        let largest = self.config.largest_pooled;
        let most = largest.checked_next_multiple_of(SEGMENT_STEP as usize).unwrap_or(usize::MAX);
        let is_too_large = |segment: &Segment| segment.is_apart && segment.block.bytes() > most;
        loop {
            let Some((segment, _flight)) = self.take_out(arena, is_too_large) else { return };
            if self.give_up(arena, segment).is_err() {
                // It is kept, for the next trim to say why.
                return;
            }
        }
    }

    /// Takes a segment out of its arena that is free as a whole, of those that are such.
    fn take_out(
        &self,
        arena: &Arena,
        such: impl Fn(&Segment) -> bool,
    ) -> Option<(Segment, Flight<'_>)> {
        let mut state = arena.lock();
        let segment = state.remove_segment(such)?;
        Some((segment, self.in_flight.leave()))
    }

    /// Gives a segment back that was taken out of its arena.
    fn give_up(&self, arena: &Arena, segment: Segment) -> ResourceResult<()> {
        let (ptr, bytes) = (segment.block.ptr(), segment.block.bytes() as u64);
        self.tell_destroyed(ptr);
        match self.upstream.deallocate(segment.block) {
            Ok(_) => {
                self.reserved.fetch_sub(bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(refused) => {
                self.tell_created(ptr, bytes);
                self.add(&mut arena.lock(), arena.home, refused.block, false);
                Err(refused.error)
            }
        }
    }

    /// Waits until other streams are done with everything that is pending; where an observer is
    /// told, until all are.
    pub(crate) fn wait_for_pending(&self) -> ResourceResult<()> {
        let mut outcome = self.wait_for_ending();
        for arena in self.arenas() {
            arena.settle_oldest(self.uses(), |after| {
                outcome =
                    std::mem::replace(&mut outcome, Ok(())).and(self.uses().synchronize(after));
            });
            arena.settle_everything(self.uses());
        }
        outcome
    }

    /// Asks the driver for chunks that are pending, and makes those free that others are done with.
    pub(crate) fn ask(&self, arena: &Arena, questions: &[Carried]) {
        for after in questions {
            // No answer: it is asked again.
            let _ = self.uses().poll(after);
        }
        arena.lock().settle_some(arena.home, self.uses());
    }

    /// Asks the driver about what is pending in an arena, until it has said often enough that
    /// something is not done, and makes free what is.
    pub(crate) fn settle_what_is_done(&self, arena: &Arena) {
        let mut busy = 0;
        for after in &arena.newest_pending() {
            // No answer: it is asked again.
            busy += usize::from(!self.uses().poll(after).unwrap_or_default());
            if busy == QUESTIONS {
                break;
            }
        }
        arena.lock().settle_all(arena.home, self.uses());
    }

    /// Everything goes back, ordered by waits on the home streams. Segments with a block in them
    /// are leaked: something may be using it.
    pub(crate) fn surrender_segments(&self) {
        if self.device().bind().is_err() {
            return;
        }
        self.sweep();
        // What is not known to be done is leaked.
        let _ = self.wait_for_ending();
        for arena in self.arenas() {
            while let Some(Pending { chunk, after }) = {
                let mut state = arena.lock();
                let oldest = state.pending.oldest();
                oldest.and_then(|entry| state.remove_pending(entry))
            } {
                let is_ordered = match self.uses().has_ended(arena.home) {
                    // It can be given no wait any more.
                    true => self.uses().poll(&after).unwrap_or(false),
                    false => self.uses().wait_for(arena.home, &after).is_ok(),
                };
                if is_ordered {
                    let mut state = arena.lock();
                    state.release(chunk, self.uses().submitted(arena.home));
                }
            }
        }
        match self.pages {
            Some(_) => self.surrender_pages(),
            None => drop(self.trim_own_to(0)),
        }
        for arena in self.arenas() {
            for vacancy in arena.lock().take_vacancies() {
                self.uses().give_up(vacancy);
            }
        }
    }

    /// The error of a pool that takes no more from upstream: because of its maximum, or because
    /// upstream can have no piece of memory as large as that.
    pub(crate) fn out_of_memory(&self, requested: u64) -> ResourceError {
        let memory = self.device().memory_info().unwrap_or_default();
        let (ordinal, usage) = (self.device_ordinal(), self.own_usage());
        let error = ResourceError::out_of_memory(requested as usize, ordinal, memory, &usage);
        let reserved = self.reserved.load(Ordering::Relaxed);
        let piece = self.pages.as_ref().map_or(SEGMENT_STEP, |pages| pages.size);
        let needed = requested.saturating_add(piece - 1) / piece * piece;
        match self.config.maximum_size {
            Some(bytes) if reserved.saturating_add(needed) > bytes => {
                error.by_limit(Limit { name: "PoolConfig::maximum_size", bytes, reserved })
            }
            _ => error,
        }
    }
}

/// Where the first aligned address of a segment is, and how many units of whole alignments follow.
fn aligned_part(block: &DeviceBlock, alignment: u64) -> (u64, u32) {
    let address = block.ptr().next_multiple_of(alignment);
    let bytes = (block.bytes() as u64).saturating_sub(address - block.ptr());
    (address, ((bytes - bytes % alignment) / UNIT) as u32)
}
