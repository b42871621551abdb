//! Chunks for one stream that another stream has used: pending chunks of its own arena, and chunks
//! that it borrows from other arenas.
//!
//! A chunk that is lent stays in its arena, and its pages stay mapped at their addresses: when its
//! block is freed, it is pending there until the borrower is done with it. So an address never
//! changes its arena, and neighbours are always merged, whichever streams have used them.
//!
//! Lending comes in two strengths. *Ready*: the borrower is ordered after the lender's work and all
//! uses already, so the chunk is as good as its own. *Waiting*: it is made to wait, which costs
//! overlap, so the ladder first grows within the slack. Locks of other arenas are only tried: a
//! thread that queued for them would be in the way of the streams that own them.

use dmr_core::{DeviceMemoryResource, StreamId};
use dmr_streams::uses::{Dependencies, Pending};

use crate::PoolResource;
use crate::acquire::Found;
use crate::arena::{Arena, Locked, Request};
use crate::heap::AcquiredChunk;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Acquires a chunk that the own stream may use without a wait, of its own arena or of another.
    pub(crate) fn lend_ready<'p>(&'p self, own: &'p Arena, request: Request) -> Option<Found<'p>> {
        if let Some(chunk) = self.poll_and_acquire(own, request) {
            return Some(own.found(chunk));
        }
        let uses = self.uses();
        let home = own.home;
        self.lenders(home, request).find_map(|mut state| {
            let arena = state.arena;
            let lender = state.arena.home.slot();
            // The lender's own work is in no dependency list: it is everything up to `since`.
            let is_after = |since| uses.is_after_number(home, lender, since);
            let ready = |after: &Dependencies, since| is_after(since) && uses.is_after(home, after);
            if let Some(Pending { value: chunk, .. }) = state.acquire_pending(request, ready) {
                return Some(arena.found(state.heap.acquired(chunk)));
            }
            state.free_ordered(uses);
            let chunk = state.heap.acquire(request.units)?;
            if is_after(chunk.since) {
                return Some(arena.found(chunk));
            }
            state.heap.release(chunk.id, chunk.since);
            None
        })
    }

    /// Acquires a chunk and makes the own stream wait for its dependencies: a chunk of its own
    /// arena, of the arena whose free chunk is hardly larger than the request, or of any. An arena
    /// whose stream can record no event now is skipped.
    pub(crate) fn lend_waiting<'p>(
        &'p self,
        own: &'p Arena,
        request: Request,
    ) -> Option<Found<'p>> {
        if self.pages.is_some() {
            // A pending chunk keeps its neighbours from being merged. An arena that another thread
            // has locked is left alone: the ladder's end looks at it again.
            for arena in self.others(own.home) {
                let is_pending = arena.try_lock().is_some_and(|state| state.pending_units > 0);
                if is_pending {
                    self.poll_newest(arena);
                }
            }
        }
        if let Some(found) = self.wait_and_acquire(own, request) {
            return Some(found);
        }
        if self.pages.is_some()
            && let Some(found) = self.lend_closest(own.home, request)
        {
            return Some(found);
        }
        self.lenders(own.home, request).find_map(|state| self.lend_from(state, own.home, request))
    }

    /// Acquires a chunk of any other arena, and waits for the locks of arenas.
    pub(crate) fn lend_any(&self, home: StreamId, request: Request) -> Option<Found<'_>> {
        self.others(home).find_map(|arena| self.lend_from(arena.lock(), home, request))
    }

    /// Frees the pending chunks of the own arena that other streams are done with, and acquires a
    /// chunk.
    pub(crate) fn poll_and_acquire(&self, own: &Arena, request: Request) -> Option<AcquiredChunk> {
        if self.pages.is_none() {
            let mut state = own.lock();
            if state.free_ordered(self.uses())
                && let Some(chunk) = state.heap.acquire(request.units)
            {
                return Some(chunk);
            }
            let newest = state.pending.newest_first().next().map(|newest| newest.after.clone());
            drop(state);
            // A query costs about as much as a wait that a later step queues, so there is one.
            if let Some(newest) = newest {
                let _ = self.uses().poll(&newest);
                own.lock().free_ordered(self.uses());
            }
        } else {
            self.poll_newest(own);
        }
        own.lock().heap.acquire(request.units)
    }

    /// Polls the dependencies of the newest pending chunks of an arena, and frees those that its
    /// stream may use.
    fn poll_newest(&self, arena: &Arena) {
        let newest = arena.lock().newest_uses();
        self.uses().poll_each(&newest);
        arena.lock().free_ordered(self.uses());
    }

    /// Acquires a pending chunk of the own arena, and makes its stream wait for the dependencies.
    /// If none is large enough, makes it wait for those of many chunks, which may be neighbours.
    fn wait_and_acquire<'p>(&'p self, own: &'p Arena, request: Request) -> Option<Found<'p>> {
        if let Some(found) = self.lend_from(own.lock(), own.home, request) {
            return Some(found);
        }
        let oldest = {
            let state = own.lock();
            if state.pending_units + state.heap.free_units() < u64::from(request.units) {
                return None;
            }
            state.oldest_uses()
        };
        self.uses().wait_for(own.home, &oldest.newest_of_each_stream()).ok()?;
        let mut state = own.lock();
        state.free_ordered(self.uses());
        Some(own.found(state.heap.acquire(request.units)?))
    }

    /// Acquires a chunk of the arena whose free chunk is hardly larger than the request.
    fn lend_closest(&self, home: StreamId, request: Request) -> Option<Found<'_>> {
        // The first that fits would often be a much larger chunk, whose pages another stream could
        // have had as a whole.
        let fits = self
            .lenders(home, request)
            .filter_map(|mut state| Some((state.heap.fit(request.units)?, state.arena)));
        let (_, arena) = fits.min_by_key(|(units, _)| *units)?;
        self.lend_from(arena.try_lock()?, home, request)
    }

    /// Acquires a chunk of this arena, and makes the stream `home` wait for its dependencies.
    fn lend_from<'p>(
        &'p self,
        mut state: Locked<'p>,
        home: StreamId,
        request: Request,
    ) -> Option<Found<'p>> {
        let arena = state.arena;
        // The wait is a driver call, made with the arena unlocked. Until then a search that comes
        // by does not see the chunk, so it has to see the hand.
        let hand = self.transit.open();
        let (chunk, pending) = match state.heap.acquire(request.units) {
            Some(chunk) => (chunk, Dependencies::default()),
            None => {
                let Pending { value: chunk, after } =
                    state.acquire_pending(request, |_, _| true)?;
                (state.heap.acquired(chunk), after)
            }
        };
        let found = arena.found(chunk).lent_after(pending.clone()).in_hand(hand);
        drop(state);
        let mut after = pending;
        after.add(arena.home, chunk.since);
        match self.uses().wait_for(home, &after) {
            Ok(()) => Some(found),
            Err(_) => {
                self.put_back(found, home);
                None
            }
        }
    }

    /// Returns the arenas of other streams.
    pub(crate) fn others(&self, home: StreamId) -> impl Iterator<Item = &Arena> {
        self.arenas().filter(move |arena| arena.home.slot() != home.slot())
    }

    /// Locks and returns the other streams' arenas that may have a chunk for the request. Skips
    /// those that another thread has locked.
    fn lenders(&self, home: StreamId, request: Request) -> impl Iterator<Item = Locked<'_>> {
        self.others(home).filter(move |arena| arena.may_have(request.units)).filter_map(|arena| {
            let state = arena.try_lock();
            if state.is_none() {
                self.slack.count_conflict();
            }
            state
        })
    }
}
