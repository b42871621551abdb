//! Where memory comes from when a stream's own arena has none at hand.

use std::sync::atomic::Ordering;

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_streams::uses::Carried;

use crate::PoolResource;
use crate::arena::{Arena, Pending, Request};
use crate::heap::Taken;

/// A chunk, and the slot of its arena's stream.
type Found = (usize, Taken);

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// A chunk that the arena's stream may use at once, from wherever it can be had.
    #[cold]
    pub(crate) fn acquire_elsewhere(
        &self,
        own: &Arena,
        request: Request,
    ) -> ResourceResult<Found> {
        self.sweep();
        if let Some(taken) = self.settle_and_take(own, request) {
            return Ok((own.home.slot(), taken));
        }
        if let Some(found) = self.borrow_ready(own.home, request) {
            return Ok(found);
        }
        // Waiting costs the program's overlap, as long as it waits; memory only until it is full.
        let needed = request.needed();
        if !self.may_grow(needed) {
            self.make_room(needed);
        }
        if self.may_grow(needed)
            && let Ok(taken) = self.grow(own, request)
        {
            return Ok((own.home.slot(), taken));
        }
        if let Some(taken) = self.wait_and_take(own, request)? {
            return Ok((own.home.slot(), taken));
        }
        if let Some(found) = self.borrow_waiting(own.home, request)? {
            return Ok(found);
        }
        self.take_new(own, request)
    }

    /// Whether the pool rather takes more from upstream than to have a stream wait for another.
    fn may_grow(&self, needed: u64) -> bool {
        self.reserved.load(Ordering::Relaxed) + needed <= self.allowance(needed)
    }

    /// How much may be reserved before streams wait for each other.
    fn allowance(&self, needed: u64) -> u64 {
        self.slack.allowance(self.arenas().map(Arena::live).sum::<u64>() + needed)
    }

    /// Gives up segments that nobody has a block in, and that did not serve.
    fn make_room(&self, needed: u64) {
        let most = self.allowance(needed).saturating_sub(needed);
        // What cannot go back stays.
        let _ = self.trim_to(most);
    }

    /// What others are known to be done with in the own arena.
    fn settle_and_take(&self, own: &Arena, request: Request) -> Option<Taken> {
        let mut state = own.lock();
        if state.settle_all(own.home, self.uses()) {
            return state.take(request);
        }
        let youngest = state.pending.back().map(|pending| pending.after.clone())?;
        drop(state);
        self.ask(own, &[youngest]);
        let mut state = own.lock();
        state.settle_all(own.home, self.uses());
        state.take(request)
    }

    /// A chunk of another arena that this stream may use without waiting.
    fn borrow_ready(&self, home: StreamId, request: Request) -> Option<Found> {
        let uses = self.uses();
        for arena in self.others(home) {
            let lender = arena.home.slot();
            if !arena.may_have(request.units) {
                continue;
            }
            let Some(mut state) = arena.try_lock() else {
                self.slack.contended();
                continue;
            };
            if let Some(pending) = state.take_pending(request, |after| uses.is_after(home, after)) {
                return Some((lender, state.heap.taken(pending.chunk)));
            }
            state.settle_all(arena.home, uses);
            let Some(taken) = state.take(request) else { continue };
            if uses.is_after_number(home, lender, taken.since) {
                return Some((lender, taken));
            }
            state.untake(taken, request.bytes);
        }
        None
    }

    /// What others have used in the own arena, once its stream waits for them.
    fn wait_and_take(&self, own: &Arena, request: Request) -> ResourceResult<Option<Taken>> {
        let uses = self.uses();
        let one = own.lock().take_pending(request, |_| true);
        if let Some(pending) = one {
            if let Err(error) = uses.wait_for(own.home, &pending.after) {
                own.lock().push(pending.chunk, pending.after);
                return Err(error);
            }
            let mut state = own.lock();
            state.release(pending.chunk, uses.submitted(own.home));
            state.settle_all(own.home, uses);
            return Ok(state.take(request));
        }
        let all: Vec<_> = {
            let state = own.lock();
            if state.pending_units + state.heap.free_units() < u64::from(request.units) {
                return Ok(None);
            }
            state.pending.iter().map(|pending| pending.after.clone()).collect()
        };
        for after in &all {
            uses.wait_for(own.home, after)?;
        }
        let mut state = own.lock();
        state.settle_all(own.home, uses);
        Ok(state.take(request))
    }

    /// A chunk of another arena, for which this stream is made to wait.
    fn borrow_waiting(
        &self,
        home: StreamId,
        request: Request,
    ) -> ResourceResult<Option<Found>> {
        for arena in self.others(home) {
            if !arena.may_have(request.units) {
                continue;
            }
            let Some(mut state) = arena.try_lock() else {
                self.slack.contended();
                continue;
            };
            let (taken, after) = match state.take(request) {
                Some(taken) => (taken, Carried::of(arena.home, taken.since)),
                None => match state.take_pending(request, |_| true) {
                    Some(Pending { chunk, after }) => {
                                (state.heap.taken(chunk), after)
                    }
                    None => continue,
                },
            };
            drop(state);
            if let Err(error) = self.uses().wait_for(home, &after) {
                let mut state = arena.lock();
                state.counts.allocated -= request.bytes;
                state.push(taken.id, after);
                return Err(error);
            }
            return Ok(Some((arena.home.slot(), taken)));
        }
        Ok(None)
    }

    fn others(&self, home: StreamId) -> impl Iterator<Item = &Arena> {
        self.arenas().filter(move |arena| arena.home.slot() != home.slot())
    }

    /// New memory from upstream. If it has none, what the pool keeps goes back to it first, and
    /// then what has to be waited for is waited for.
    fn take_new(
        &self,
        own: &Arena,
        request: Request,
    ) -> ResourceResult<Found> {
        let found = |taken| Ok((own.home.slot(), taken));
        let full = match self.grow(own, request) {
            Ok(taken) => return found(taken),
            Err(error) if is_full(&error) => error,
            Err(error) => return Err(error),
        };
        // What cannot go back stays, and the error says that upstream is full.
        let _ = self.trim_to(0);
        if let Ok(taken) = self.grow(own, request) {
            return found(taken);
        }
        let _ = self.wait_for_pending();
        if let Some(taken) = self.settle_and_take(own, request) {
            return found(taken);
        }
        if let Ok(Some(found)) = self.borrow_waiting(own.home, request) {
            return Ok(found);
        }
        let _ = self.trim_to(0);
        let _ = self.upstream.reap_pending();
        self.grow(own, request).map_or(Err(full), found)
    }
}

/// Whether memory that is given back may help.
fn is_full(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}
