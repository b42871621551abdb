//! Memory from upstream, and its way back. No lock is held while upstream is called.

use std::sync::atomic::Ordering;

use dmr_core::error::Limit;
use dmr_core::{
    AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
};

use dmr_streams::uses::{Patience, Pending};

use crate::PoolResource;
use crate::acquire::{Found, Share, is_full};
use crate::arena::{Arena, Request, Segment, State};
use crate::config::SEGMENT_STEP;
use crate::heap::{ChunkId, UNIT};
use crate::transit::Hand;

/// How messages name the memory that a pool holds.
pub(crate) const TAG: AllocTag = AllocTag::new("pool");

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
    /// Upstream's first; that memory is still the pool's, and the rest was given back all the same.
    pub(crate) fn trim_own_to(&self, bytes: u64) -> ResourceResult<()> {
        self.settle_ending();
        for arena in self.arenas().filter(|_| self.reserved.load(Ordering::Relaxed) > bytes) {
            // On an error it stays pending.
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

    /// Gives the free segments of an arena back, as long as more than `bytes` bytes are reserved.
    fn trim_arena(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let (mut refused, mut outcome) = (Vec::new(), Ok(()));
        while self.reserved.load(Ordering::Relaxed) > bytes {
            let is_new = |segment: &Segment| !refused.contains(&segment.block.ptr());
            let Some((segment, _hand)) = self.take_out(arena, is_new) else { break };
            let ptr = segment.block.ptr();
            if let Err(error) = self.give_up(arena, segment) {
                refused.push(ptr);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Takes memory from upstream into an arena and returns a chunk of it. `None` if that would be more
    /// than the share. Two threads of one stream may both grow; what neither needs is free then, and
    /// the share bounds it.
    ///
    /// # Errors
    ///
    /// Upstream's. Nothing has changed then.
    pub(crate) fn grow(
        &self,
        own: &Arena,
        request: Request,
        share: Share,
    ) -> ResourceResult<Option<Found>> {
        if let Some(paging) = self.paging() {
            return self.grow_pages(own, request, share, paging);
        }
        if share == Share::Slack && !self.may_grow(request) {
            return Ok(None);
        }
        let Request { units, is_dedicated, .. } = request;
        let hand = self.transit.open();
        let Some(block) = self.take_segment(own, request.needed(), is_dedicated, &hand)? else {
            return Ok(None);
        };
        let mut state = own.lock();
        let first = self.add(&mut state, own.home, block, is_dedicated);
        let heap = &mut state.heap;
        let taken = if is_dedicated { heap.taken(first) } else { heap.take_from(first, units) };
        Ok(Some(own.found(taken)))
    }

    /// Returns whether the pool takes more from upstream before it has a stream wait for another. Gives
    /// free segments back first that are too small.
    pub(crate) fn may_grow(&self, request: Request) -> bool {
        let needed = request.needed();
        let live = self.arenas().map(Arena::live).sum::<u64>() + needed;
        let most = self.slack.allowance(live).saturating_sub(needed);
        let is_enough = || self.claimed.load(Ordering::Relaxed) <= most;
        // Threads in each other's way would take from each other and from upstream in turn.
        if !is_enough() && !self.slack.is_contended() {
            // What cannot go back stays.
            let _ = self.trim_known_to(most);
        }
        is_enough()
    }

    /// Takes memory from upstream into an arena, for later.
    pub(crate) fn reserve(&self, arena: &Arena, bytes: u64) -> ResourceResult<()> {
        let total = self.device().total_memory();
        if bytes > total {
            let asked = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(ResourceError::beyond_device(asked, total));
        }
        if let Some(paging) = self.paging() {
            return self.reserve_pages(arena, bytes, paging);
        }
        let hand = self.transit.open();
        // Less than an alignment may have no aligned address in it.
        let bytes = bytes.max(self.config.alignment as u64);
        match self.take_segment(arena, bytes, true, &hand)? {
            Some(block) => self.add(&mut arena.lock(), arena.home, block, false),
            None => return Err(self.out_of_memory(bytes)),
        };
        Ok(())
    }

    /// Adds a segment to an arena: free, or taken if it is for one large block at a time.
    fn add(
        &self,
        state: &mut State,
        home: StreamId,
        block: DeviceBlock,
        is_dedicated: bool,
    ) -> ChunkId {
        let (ptr, units) = aligned_part(&block, self.config.alignment as u64);
        let first = match is_dedicated {
            true => state.heap.add_dedicated(ptr, units),
            false => state.heap.add_segment(ptr, units, self.uses().submitted(home)),
        };
        state.segments.push(Segment { block, first, is_dedicated });
        first
    }

    /// Asks upstream for a large step, and for less if it does not have that much. `None` if the pool
    /// may not have that much, or no device has.
    fn take_segment(
        &self,
        arena: &Arena,
        needed: u64,
        is_dedicated: bool,
        hand: &Hand<'_>,
    ) -> ResourceResult<Option<DeviceBlock>> {
        let reserved = self.reserved.load(Ordering::Relaxed);
        // Upstream need not align better than every resource does.
        let for_alignment = self.config.alignment as u64 - UNIT;
        let least = (needed + for_alignment).next_multiple_of(SEGMENT_STEP);
        // Many streams that took as much as one would have too much together.
        let share = reserved / (2 * self.arenas().count() as u64).max(1);
        let growth = share.min(self.config.growth).next_multiple_of(SEGMENT_STEP);
        let step = if is_dedicated { least } else { least.max(growth) };
        let mut outcome = Ok(None);
        for bytes in [step, least] {
            let Some(mut claim) = self.claim(bytes, |_| true) else { continue };
            hand.hold();
            match self.upstream.allocate(bytes as usize, arena.home, TAG) {
                Ok(block) => {
                    self.tell_created(block.ptr(), bytes);
                    self.fulfil(&mut claim, bytes);
                    return Ok(Some(block));
                }
                // The step is the pool's, not the caller's.
                Err(ResourceError::InvalidSize { .. }) => {}
                Err(other) => {
                    if is_full(&other) {
                        self.note_refusal(bytes);
                    }
                    outcome = Err(other);
                }
            }
        }
        outcome
    }

    /// Takes a segment out of its arena that is free as a whole and that matches `predicate`.
    fn take_out(
        &self,
        arena: &Arena,
        predicate: impl Fn(&Segment) -> bool,
    ) -> Option<(Segment, Hand<'_>)> {
        let hand = self.transit.open();
        let segment = arena.lock().remove_segment(predicate)?;
        hand.hold();
        Some((segment, hand))
    }

    /// Gives a segment back to upstream that was taken out of its arena.
    fn give_up(&self, arena: &Arena, segment: Segment) -> ResourceResult<()> {
        let (ptr, bytes) = (segment.block.ptr(), segment.block.bytes() as u64);
        self.tell_destroyed(ptr);
        match self.upstream.deallocate(segment.block) {
            Ok(_) => {
                self.count_given_back(bytes);
                Ok(())
            }
            Err(refused) => {
                self.tell_created(ptr, bytes);
                self.add(&mut arena.lock(), arena.home, refused.block, false);
                Err(refused.error)
            }
        }
    }

    /// Waits until other streams are done with everything that is pending; in an observed pool, until
    /// the home streams are, too.
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

    /// Gives everything back to upstream, ordered by waits on the home streams. Segments with a block
    /// in them are leaked: work may be using them.
    pub(crate) fn give_all_back(&self) {
        if self.device().bind().is_err() {
            return;
        }
        self.settle_closed(Patience::Poll);
        // What is not known to be done is leaked.
        let _ = self.wait_for_ending();
        for arena in self.arenas() {
            while let Some(Pending { value: chunk, after }) = {
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
            Some(_) => self.give_all_pages_back(),
            None => drop(self.trim_own_to(0)),
        }
        for arena in self.arenas() {
            for slot in arena.lock().take_slots() {
                self.uses().vacate(slot);
            }
        }
    }

    /// Returns the error of a pool that takes no more from upstream: because of its maximum, or because
    /// upstream has no piece of memory as large as that.
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

/// Returns the first aligned address of a segment, and how many units follow it, in whole
/// alignments.
fn aligned_part(block: &DeviceBlock, alignment: u64) -> (u64, u32) {
    let address = block.ptr().next_multiple_of(alignment);
    let bytes = (block.bytes() as u64).saturating_sub(address - block.ptr());
    (address, ((bytes - bytes % alignment) / UNIT) as u32)
}
