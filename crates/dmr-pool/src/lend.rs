//! Chunks that change hands: those of a stream's own arena that other streams have used, and those of
//! other arenas.
//!
//! A chunk that is lent stays in the books of its arena, and its pages stay mapped where they are.

use dmr_core::{DeviceMemoryResource, StreamId};
use dmr_streams::uses::{Dependencies, Pending};

use crate::PoolResource;
use crate::acquire::Found;
use crate::arena::{Arena, Locked, Request};
use crate::heap::Taken;

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// Acquires a chunk that this stream may use without a wait: of its own arena, or another one's.
    pub(crate) fn lend_ready(&self, own: &Arena, request: Request) -> Option<Found> {
        if let Some(taken) = self.settle_and_take(own, request) {
            return Some(own.found(taken));
        }
        let (uses, home) = (self.uses(), own.home);
        self.lenders(home, request).find_map(|(arena, mut state)| {
            let lender = arena.home.slot();
            let is_after = |since| uses.is_after_number(home, lender, since);
            let ready = |after: &Dependencies, since| is_after(since) && uses.is_after(home, after);
            if let Some(Pending { value: chunk, .. }) = state.take_pending(request, ready) {
                return Some(arena.found(state.heap.taken(chunk)));
            }
            state.settle_all(arena.home, uses);
            let taken = state.take(request)?;
            if is_after(taken.since) {
                return Some(arena.found(taken));
            }
            state.release(taken.id, taken.since);
            None
        })
    }

    /// Acquires a chunk that this stream is made to wait for: of its own arena, of the one whose free
    /// chunk is hardly larger than the request, or of any. An arena whose stream can record no event
    /// now is skipped.
    pub(crate) fn lend_waiting(&self, own: &Arena, request: Request) -> Option<Found> {
        if self.pages.is_some() {
            // A pending chunk keeps its neighbours from being merged.
            self.others(own.home).for_each(|arena| self.settle_newest(arena));
        }
        if let Some(found) = self.wait_and_take(own, request) {
            return Some(found);
        }
        if self.pages.is_some()
            && let Some(found) = self.lend_closest(own.home, request)
        {
            return Some(found);
        }
        let lend = |(arena, state)| self.lend_from(arena, state, own.home, request);
        self.lenders(own.home, request).find_map(lend)
    }

    /// Acquires a chunk of any other arena, also if another thread is in it.
    pub(crate) fn lend_any(&self, home: StreamId, request: Request) -> Option<Found> {
        self.others(home).find_map(|arena| self.lend_from(arena, arena.lock(), home, request))
    }

    /// Acquires what other streams are done with in the own arena.
    pub(crate) fn settle_and_take(&self, own: &Arena, request: Request) -> Option<Taken> {
        if self.pages.is_none() {
            let mut state = own.lock();
            if state.settle_all(own.home, self.uses())
                && let Some(taken) = state.take(request)
            {
                return Some(taken);
            }
        }
        self.settle_newest(own);
        own.lock().take(request)
    }

    /// Polls what the newest pending chunks of an arena depend on, and frees those that its stream may
    /// use.
    fn settle_newest(&self, arena: &Arena) {
        let newest = arena.lock().newest_uses();
        self.uses().poll_each(&newest);
        arena.lock().settle_all(arena.home, self.uses());
    }

    /// Acquires what other streams have used in the own arena, and has its stream wait for them. Without
    /// a pending chunk that is large enough, has it wait for many that may be neighbors.
    fn wait_and_take(&self, own: &Arena, request: Request) -> Option<Found> {
        if let Some(found) = self.lend_from(own, own.lock(), own.home, request) {
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
        state.settle_all(own.home, self.uses());
        Some(own.found(state.take(request)?))
    }

    /// Acquires a chunk of the arena whose free chunk is hardly larger than the request.
    fn lend_closest(&self, home: StreamId, request: Request) -> Option<Found> {
        let fit =
            |(arena, mut state): (_, Locked<'_>)| Some((state.heap.fit(request.units)?, arena));
        let fits = self.lenders(home, request).filter_map(fit);
        let (_, arena) = fits.min_by_key(|(units, _): &(u32, &Arena)| *units)?;
        self.lend_from(arena, arena.try_lock()?, home, request)
    }

    /// Acquires a chunk of this arena, and has `home` wait for all that it depends on.
    fn lend_from(
        &self,
        arena: &Arena,
        mut state: Locked<'_>,
        home: StreamId,
        request: Request,
    ) -> Option<Found> {
        let hand = self.transit.open();
        let (taken, pending) = match state.take(request) {
            Some(taken) => (taken, Dependencies::default()),
            None => {
                let Pending { value: chunk, after } = state.take_pending(request, |_, _| true)?;
                (state.heap.taken(chunk), after)
            }
        };
        hand.hold();
        drop(state);
        let mut after = pending.clone();
        after.add(arena.home, taken.since);
        if self.uses().wait_for(home, &after).is_ok() {
            hand.spend();
            return Some(arena.found(taken));
        }
        let mut state = arena.lock();
        if pending.is_empty() {
            state.release(taken.id, taken.since);
        } else {
            state.push(taken.id, pending, taken.since);
        }
        None
    }

    /// Returns the arenas of other streams.
    pub(crate) fn others(&self, home: StreamId) -> impl Iterator<Item = &Arena> {
        self.arenas().filter(move |arena| arena.home.slot() != home.slot())
    }

    /// Returns the other streams' arenas that may have a chunk for the request, and that no thread is
    /// in.
    fn lenders(
        &self,
        home: StreamId,
        request: Request,
    ) -> impl Iterator<Item = (&Arena, Locked<'_>)> {
        self.others(home).filter(move |arena| arena.may_have(request.units)).filter_map(|arena| {
            let state = arena.try_lock();
            if state.is_none() {
                self.slack.contended();
            }
            Some((arena, state?))
        })
    }
}
