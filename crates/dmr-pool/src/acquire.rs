//! Where memory comes from when a stream's own arena has none at hand.

use std::sync::atomic::Ordering;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_streams::uses::{Carried, Vacancy};

use crate::PoolResource;
use crate::arena::{Arena, Locked, Pending, Request};
use crate::heap::{ChunkId, Taken};
use crate::resource::Place;

/// How often all of the memory is looked over when there seems to be none.
const TRIES: usize = 16;

/// A chunk, and the slot of its arena's stream.
pub(crate) type Found = (usize, Taken);

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// A chunk that the arena's stream may use at once, and that it had `already` or that is had
    /// from elsewhere; and the slot for its block: the one that its last block has left, or a new
    /// one.
    #[inline(never)]
    pub(crate) fn acquire_slowly(
        &self,
        own: &Arena,
        already: Option<Taken>,
        request: Request,
        tag: AllocTag,
    ) -> ResourceResult<(usize, Taken, Vacancy)> {
        let (at, taken) = match already {
            Some(taken) => (own.home.slot(), taken),
            None => self.acquire_elsewhere(own, request).map_err(|error| {
                if !is_full(&error) {
                    return error;
                }
                error.in_pool(request.bytes as usize, &self.own_usage(), self.shortage())
            })?,
        };
        let vacancy = self.arena_at(at).and_then(|arena| arena.lock().vacancy(taken.id, tag));
        let vacancy = vacancy.map_or_else(|| self.new_vacancy(at, taken.id, own.home), Ok);
        match vacancy {
            Ok(vacancy) => {
                if let Some(arena) = self.arena_at(at) {
                    let mut state = arena.lock();
                    state.add_seat(taken.id, tag);
                    state.counts.add_block(request.bytes);
                }
                Ok((at, taken, vacancy))
            }
            Err(error) => {
                self.untake(Place { arena: at, chunk: taken.id }, own.home);
                Err(error)
            }
        }
    }

    fn new_vacancy(&self, arena: usize, chunk: ChunkId, home: StreamId) -> ResourceResult<Vacancy> {
        let full = || ResourceError::capacity("chunks of an arena", Place::MOST_CHUNKS);
        let inner_slot = Place { arena, chunk }.to_slot().ok_or_else(full)?;
        self.uses().reserve(self.owner, inner_slot, home)
    }

    /// A chunk that the arena's stream may use at once, from wherever it can be had.
    #[cold]
    fn acquire_elsewhere(&self, own: &Arena, request: Request) -> ResourceResult<Found> {
        let found = |taken| Ok((own.home.slot(), taken));
        self.sweep();
        self.decay_slack();
        if let Some(taken) = self.take_ended(own, request) {
            return found(taken);
        }
        if self.pages.is_some() {
            return self.acquire_pages(own, request);
        }
        if let Some(taken) = self.settle_and_take(own, request) {
            return found(taken);
        }
        if let Some(lent) = self.borrow_ready(own.home, request) {
            return Ok(lent);
        }
        // To wait costs overlap each time; to grow costs memory, until there is enough of it.
        if self.may_grow(request)
            && let Ok(Some(taken)) = self.grow(own, request)
        {
            return found(taken);
        }
        if let Some(taken) = self.wait_and_take(own, request) {
            return found(taken);
        }
        if let Some(lent) = self.borrow_waiting(own.home, request) {
            return Ok(lent);
        }
        match self.grow(own, request) {
            Ok(Some(taken)) => found(taken),
            Err(error) if !is_full(&error) => Err(error),
            refused => self.scrape_together(own, request).ok_or_else(|| match refused {
                Err(error) => error,
                Ok(_) => self.out_of_memory(request.bytes),
            }),
        }
    }

    /// The same, where the pool maps pages. Memory comes first: what is free is waited for before
    /// more is taken, unless that is little or threads get in each other's way; and before a hole is
    /// left, its pages are moved.
    fn acquire_pages(&self, own: &Arena, request: Request) -> ResourceResult<Found> {
        let found = |taken| Ok((own.home.slot(), taken));
        self.settle_what_is_done(own);
        if let Some(taken) = own.lock().take(request) {
            return found(taken);
        }
        if let Some(lent) = self.borrow_ready(own.home, request) {
            return Ok(lent);
        }
        if self.may_place_first(request)
            && let Ok(Some(placed)) = self.place(own, request)
        {
            return Ok(placed);
        }
        // A chunk that is pending is in the way of those beside it.
        self.others(own.home).for_each(|arena| self.settle_what_is_done(arena));
        if let Some(taken) = self.wait_and_take(own, request) {
            return found(taken);
        }
        if let Some(lent) = self.borrow_closest(own.home, request) {
            return Ok(lent);
        }
        if let Some(lent) = self.borrow_waiting(own.home, request) {
            return Ok(lent);
        }
        match self.place_anywhere(own, request) {
            Ok(Some(placed)) => Ok(placed),
            Err(error) if !is_full(&error) => Err(error),
            refused => self.scrape_together(own, request).ok_or_else(|| match refused {
                Err(error) => error,
                Ok(_) => self.out_of_memory(request.bytes),
            }),
        }
    }

    /// Lets what raises the allowance decay, by the bytes that were allocated since.
    fn decay_slack(&self) {
        let (mut allocated, mut live) = (0, 0);
        for arena in self.arenas() {
            allocated += arena.allocated();
            live += arena.live();
        }
        self.slack.decay(allocated, live);
    }

    /// Whether the pool takes more from upstream rather than to have a stream wait for another.
    /// First gives up segments that nobody has a block in, and that did not serve.
    pub(crate) fn may_grow(&self, request: Request) -> bool {
        let needed = request.needed();
        let live = self.arenas().map(Arena::live).sum::<u64>() + needed;
        let most = self.slack.allowance(live).saturating_sub(needed);
        let is_enough = || self.reserved.load(Ordering::Relaxed) <= most;
        // Threads that meet would take from each other and from upstream in turn.
        if !is_enough() && !self.slack.is_contended() {
            // What cannot go back stays.
            let _ = self.trim_known_to(most);
        }
        is_enough()
    }

    /// What others are known to be done with in the own arena; the driver is asked once.
    fn settle_and_take(&self, own: &Arena, request: Request) -> Option<Taken> {
        let mut state = own.lock();
        if state.settle_all(own.home, self.uses())
            && let Some(taken) = state.take(request)
        {
            return Some(taken);
        }
        let newest = state.pending.newest_first().next()?.after.clone();
        drop(state);
        self.ask(own, &[newest]);
        let mut state = own.lock();
        state.settle_all(own.home, self.uses());
        state.take(request)
    }

    /// A chunk of another arena that this stream may use without waiting.
    fn borrow_ready(&self, home: StreamId, request: Request) -> Option<Found> {
        let uses = self.uses();
        self.lenders(home, request).find_map(|(arena, mut state)| {
            let lender = arena.home.slot();
            let is_after = |since| uses.is_after_number(home, lender, since);
            let ready = |after: &Carried, since| is_after(since) && uses.is_after(home, after);
            if let Some(Pending { chunk, .. }) = state.take_pending(request, ready) {
                return Some((lender, state.heap.taken(chunk)));
            }
            state.settle_all(arena.home, uses);
            let taken = state.take(request)?;
            if is_after(taken.since) {
                return Some((lender, taken));
            }
            state.release(taken.id, taken.since);
            None
        })
    }

    /// What others have used in the own arena, once its stream waits for them.
    fn wait_and_take(&self, own: &Arena, request: Request) -> Option<Taken> {
        let uses = self.uses();
        let mut state = own.lock();
        if let Some(Pending { chunk, after }) = state.take_pending(request, |_, _| true) {
            let taken = state.heap.taken(chunk);
            drop(state);
            let is_ordered = uses.wait_for(own.home, &after).is_ok();
            if !is_ordered {
                own.lock().push(chunk, after, taken.since);
            }
            return is_ordered.then_some(taken);
        }
        if state.pending_units + state.heap.free_units() < u64::from(request.units) {
            return None;
        }
        let oldest = state.dependencies();
        drop(state);
        for after in &oldest {
            uses.wait_for(own.home, after).ok()?;
        }
        let mut state = own.lock();
        state.settle_all(own.home, uses);
        state.take(request)
    }

    /// A chunk of another arena, for which this stream is made to wait. An arena whose stream can
    /// record no event now is passed over.
    fn borrow_waiting(&self, home: StreamId, request: Request) -> Option<Found> {
        let borrow = |(arena, state)| self.borrow_from(arena, state, home, request);
        self.lenders(home, request).find_map(borrow)
    }

    /// The same from the arena whose free chunk is hardly larger than what is asked for.
    fn borrow_closest(&self, home: StreamId, request: Request) -> Option<Found> {
        let fit =
            |(arena, mut state): (_, Locked<'_>)| Some((state.heap.fit(request.units)?, arena));
        let fits = self.lenders(home, request).filter_map(fit);
        let (_, arena) = fits.min_by_key(|(units, _): &(u32, &Arena)| *units)?;
        self.borrow_from(arena, arena.try_lock()?, home, request)
    }

    fn borrow_from(
        &self,
        arena: &Arena,
        mut state: Locked<'_>,
        home: StreamId,
        request: Request,
    ) -> Option<Found> {
        let (taken, mut after) = match state.heap_take(request) {
            Some(taken) => (taken, Carried::default()),
            None => {
                let Pending { chunk, after } = state.take_pending(request, |_, _| true)?;
                (state.heap.taken(chunk), after)
            }
        };
        drop(state);
        let foreign = after.clone();
        after.add(arena.home, taken.since);
        let is_ordered = self.uses().wait_for(home, &after).is_ok();
        if is_ordered {
            return Some((arena.home.slot(), taken));
        }
        let mut state = arena.lock();
        if foreign.is_empty() {
            state.release(taken.id, taken.since);
        } else {
            state.push(taken.id, foreign, taken.since);
        }
        None
    }

    /// Upstream has no more: what the pool keeps goes back to it, what has to be waited for is
    /// waited for, and all is tried again: also what other threads had in hand meanwhile.
    fn scrape_together(&self, own: &Arena, request: Request) -> Option<Found> {
        for _ in 0..TRIES {
            let landed = self.in_flight.landed();
            if let Some(found) = self.scrape_once(own, request) {
                return Some(found);
            }
            if !self.in_flight.has_landed_since(landed) {
                break;
            }
        }
        None
    }

    /// The same once. No arena is passed over because a thread is in it.
    fn scrape_once(&self, own: &Arena, request: Request) -> Option<Found> {
        let grow = || {
            if self.pages.is_some() {
                return self.place_anywhere(own, request).ok().flatten();
            }
            // What cannot go back stays, and the caller has an error to answer with.
            let _ = self.trim_own_to(0);
            let taken = self.grow(own, request).ok().flatten()?;
            Some((own.home.slot(), taken))
        };
        if let Some(found) = grow() {
            return Some(found);
        }
        let _ = self.wait_for_pending();
        if let Some(taken) = self.settle_and_take(own, request) {
            return Some((own.home.slot(), taken));
        }
        let borrow = |arena: &Arena| self.borrow_from(arena, arena.lock(), own.home, request);
        if let Some(lent) = self.others(own.home).find_map(borrow) {
            return Some(lent);
        }
        let _ = self.upstream.reap_pending();
        grow()
    }

    /// The arenas of other streams.
    pub(crate) fn others(&self, home: StreamId) -> impl Iterator<Item = &Arena> {
        self.arenas().filter(move |arena| arena.home.slot() != home.slot())
    }

    /// The other streams' arenas that may have such a chunk, and that no thread is in.
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

/// Whether memory that is given back may help.
fn is_full(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}
