//! Where memory comes from when a stream's own arena has none at hand.

use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_streams::uses::Carried;

use crate::PoolResource;
use crate::arena::{Arena, Pending};
use crate::heap::Taken;

/// A chunk, and the slot of its arena's stream.
type Found = (usize, Taken);

impl<U: DeviceMemoryResource> PoolResource<U> {
    /// A chunk that the arena's stream may use at once, from wherever it can be had.
    #[cold]
    pub(crate) fn acquire_elsewhere(
        &self,
        own: &Arena,
        units: u32,
        bytes: u64,
    ) -> ResourceResult<Found> {
        if bytes > self.config.largest_pooled as u64 {
            return self.take_new(own, units, bytes, true);
        }
        self.sweep();
        if let Some(taken) = self.settle_and_take(own, units, bytes) {
            return Ok((own.home.slot(), taken));
        }
        if let Some(found) = self.borrow(own.home, units, bytes)? {
            return Ok(found);
        }
        self.take_new(own, units, bytes, false)
    }

    /// What others are known to be done with in the own arena.
    fn settle_and_take(&self, own: &Arena, units: u32, bytes: u64) -> Option<Taken> {
        let mut state = own.lock();
        if !state.settle_all(own.home, self.uses()) {
            return None;
        }
        state.take(units, bytes)
    }

    /// A chunk of another arena: at best one that needs no wait.
    fn borrow(&self, home: StreamId, units: u32, bytes: u64) -> ResourceResult<Option<Found>> {
        let uses = self.uses();
        let mut second_best: Option<(&Arena, Taken)> = None;
        for arena in self.arenas().filter(|arena| arena.home.slot() != home.slot()) {
            let lender = arena.home.slot();
            let Some(mut state) = arena.try_lock() else { continue };
            let ready = |after: &Carried| uses.is_after(home, after);
            if let Some(Pending { chunk, .. }) = state.take_pending(units, ready) {
                state.counts.allocated += bytes;
                return Ok(Some((lender, state.heap.taken(chunk))));
            }
            state.settle_all(arena.home, uses);
            if state.heap.largest() < units {
                continue;
            }
            let Some(taken) = state.take(units, bytes) else { continue };
            if uses.is_after_number(home, lender, taken.since) {
                drop(state);
                self.return_unused(second_best, bytes);
                return Ok(Some((lender, taken)));
            }
            match second_best {
                None => second_best = Some((arena, taken)),
                Some(_) => state.untake(taken, bytes),
            }
        }
        let Some((arena, taken)) = second_best else { return Ok(None) };
        let lender = Carried::of(arena.home, taken.since);
        match uses.wait_for(home, &lender) {
            Ok(()) => Ok(Some((arena.home.slot(), taken))),
            Err(error) => {
                self.return_unused(second_best, bytes);
                Err(error)
            }
        }
    }

    fn return_unused(&self, chunk: Option<(&Arena, Taken)>, bytes: u64) {
        if let Some((arena, taken)) = chunk {
            arena.lock().untake(taken, bytes);
        }
    }

    /// New memory from upstream. If it has none, what the pool keeps goes back to it first, and
    /// then what has to be waited for is waited for.
    fn take_new(
        &self,
        own: &Arena,
        units: u32,
        bytes: u64,
        is_dedicated: bool,
    ) -> ResourceResult<Found> {
        let found = |taken| Ok((own.home.slot(), taken));
        let full = match self.grow(own, units, bytes, is_dedicated) {
            Ok(taken) => return found(taken),
            Err(error) if is_full(&error) => error,
            Err(error) => return Err(error),
        };
        // What cannot go back stays, and the error says that upstream is full.
        let _ = self.trim_to(0);
        if let Ok(taken) = self.grow(own, units, bytes, is_dedicated) {
            return found(taken);
        }
        let _ = self.wait_for_pending();
        if let Some(taken) = self.settle_and_take(own, units, bytes) {
            return found(taken);
        }
        if let Ok(Some(found)) = self.borrow(own.home, units, bytes) {
            return Ok(found);
        }
        let _ = self.trim_to(0);
        let _ = self.upstream.reap_pending();
        self.grow(own, units, bytes, is_dedicated).map_or(Err(full), found)
    }
}

/// Whether memory that is given back may help.
fn is_full(error: &ResourceError) -> bool {
    matches!(error, ResourceError::OutOfMemory { .. } | ResourceError::OutOfBudget { .. })
}
