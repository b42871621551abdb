//! The pending chunks of an arena: freed, and perhaps still used by other streams.
//!
//! A free makes no stream wait. It puts the chunk into a queue with its dependencies, and the chunk
//! becomes free when the arena's stream is ordered after all of them: because the device has
//! completed them, or because the stream has waited for them for another reason. Nothing tells the
//! pool of either, so each free of such a chunk looks at the oldest entries, whose work is most
//! likely done, and now and then has the device polled. Looking is cheap and polling is a driver
//! call, so one poll is for many chunks: uses of a stream complete in order, and the newest one's
//! completion covers all before it.
//!
//! The chunks are in the heap's bins too, by size: a stream that would rather wait than grow finds
//! a pending chunk that fits.

use dmr_streams::uses::{Dependencies, DependencyOrder, Pending, UseTable};

use super::{Arena, Locked, Request, State};
use crate::heap::{AcquiredChunk, ChunkId, UNIT};

/// The pace at which pending chunks are polled.
struct Pace {
    /// The number of chunks that become pending between two polls.
    batch: usize,
    /// The number of newest chunks that are not polled: the device has had no time for them.
    young: usize,
}

const PACE: Pace = Pace { batch: 16, young: 16 };
/// The pace while the pending chunks are little memory: queries are expensive, and so are many
/// events in turn.
const PACE_OF_LITTLE: Pace = Pace { batch: 64, young: 8 };
/// Units that are little memory: 16 MiB.
const LITTLE: u64 = (16 << 20) / UNIT;
/// The most chunks that become free with each that becomes pending: more than one, so that pending
/// chunks do not gather.
const AT_ONCE: usize = 2;
/// The most pending chunks that are looked at while the arena is locked.
const AT_A_TIME: usize = 512;
/// The most pending chunks that a search tries.
const TRIES: usize = 256;

impl Arena {
    /// Returns the dependencies of its pending chunks. Unlocks the arena now and then.
    pub(crate) fn pending_uses(&self) -> Dependencies {
        let mut left = self.lock().pending.len();
        let mut uses = Dependencies::default();
        self.lock().pending.restart();
        while left > 0 {
            let mut state = self.lock();
            for _ in 0..left.min(AT_A_TIME) {
                let next = state.pending.advance().and_then(|entry| state.pending.get(entry));
                next.into_iter().for_each(|pending| uses.add_all(&pending.after));
            }
            left = left.saturating_sub(AT_A_TIME);
        }
        uses
    }

    /// Frees all pending chunks that its stream may use without waiting. Unlocks the arena now and
    /// then.
    pub(crate) fn free_all_ordered(&self, uses: UseTable<'_>) {
        let mut left = self.lock().pending.len();
        while left > 0 {
            self.lock().free_ordered(uses);
            left = left.saturating_sub(AT_A_TIME);
        }
    }
}

impl Locked<'_> {
    /// Frees the oldest pending chunks, up to a few, as long as the arena's stream is ordered after
    /// their dependencies.
    #[inline]
    pub(crate) fn free_oldest_ordered(&mut self, uses: UseTable<'_>) {
        for _ in 0..AT_ONCE {
            let Some(oldest) = self.pending.oldest() else { return };
            if !self.free_if_ordered(oldest, uses) {
                return;
            }
        }
    }

    /// Looks at the next few hundred pending chunks, and frees those whose dependencies the arena's
    /// stream is ordered after; returns whether there were any. The next call continues behind
    /// them.
    pub(crate) fn free_ordered(&mut self, uses: UseTable<'_>) -> bool {
        let before = self.pending.len();
        if before <= AT_A_TIME {
            self.pending.restart();
        }
        for _ in 0..before.min(AT_A_TIME) {
            let Some(next) = self.pending.advance() else { break };
            self.free_if_ordered(next, uses);
        }
        self.pending.len() < before
    }

    /// Frees a pending chunk, if the arena's stream is ordered after its dependencies.
    #[inline]
    fn free_if_ordered(&mut self, entry: u32, uses: UseTable<'_>) -> bool {
        #[cfg(test)]
        crate::tests::work::look();
        let stream = self.arena.home;
        let Some(pending) = self.pending.get(entry) else { return false };
        let order = uses.order_of(stream, &pending.after);
        if order == DependencyOrder::Unordered {
            return false;
        }
        let Some(Pending { value: chunk, .. }) = self.remove_pending(entry) else { return false };
        // Another stream comes after those uses by coming after this stream, whose waits for them
        // are all submitted by now.
        let since = match order {
            // No stream has to be ordered after work that is known to be done.
            DependencyOrder::Done => self.heap.acquired(chunk).since,
            _ => uses.submitted(stream),
        };
        self.record_ready(chunk);
        self.heap.release(chunk, since);
        true
    }
}

impl State {
    /// Makes an acquired chunk pending until the arena's stream is ordered after all of `after`.
    /// Other streams may use it after that and after the work that had been submitted to the
    /// arena's stream up to `since`.
    #[inline]
    pub(crate) fn push(&mut self, chunk: ChunkId, after: Dependencies, since: u64) {
        if self.pending.is_empty() {
            self.heap.set_changed();
        }
        self.pending_units += u64::from(self.heap.units(chunk));
        let entry = self.pending.push(Pending { value: chunk, after });
        self.heap.set_pending(chunk, since, entry);
        self.unpolled += 1;
    }

    /// Returns the dependencies to poll, if a poll is due: those of the newest chunk that is not
    /// young, whose uses cover all earlier ones of their streams, and those of the oldest chunk.
    #[inline]
    pub(crate) fn due_for_poll(&mut self) -> Option<[Dependencies; 2]> {
        let is_little = self.pending_units <= LITTLE;
        let Pace { batch, young } = if is_little { PACE_OF_LITTLE } else { PACE };
        if self.unpolled < batch || self.pending.len() < batch + young {
            return None;
        }
        self.unpolled = 0;
        let due = self.pending.newest_first().nth(young)?;
        Some([due.after.clone(), self.pending.iter().next()?.after.clone()])
    }

    /// Returns the dependencies of the newest pending chunks, some hundreds of them.
    pub(crate) fn newest_uses(&self) -> Dependencies {
        let newest = self.pending.newest_first().take(AT_A_TIME);
        newest.map(|pending| &pending.after).collect()
    }

    /// Returns the dependencies of the oldest pending chunks, some hundreds of them.
    pub(crate) fn oldest_uses(&self) -> Dependencies {
        self.uses_of_oldest(AT_A_TIME)
    }

    /// Returns the dependencies of the oldest `number` pending chunks.
    pub(crate) fn uses_of_oldest(&self, number: usize) -> Dependencies {
        self.pending.iter().take(number).map(|pending| &pending.after).collect()
    }

    /// Acquires a pending chunk that fits and whose dependencies and free number `predicate`
    /// accepts. Tries only some of those that fit.
    pub(crate) fn acquire_pending(
        &mut self,
        request: Request,
        predicate: impl Fn(&Dependencies, u64) -> bool,
    ) -> Option<Pending<ChunkId>> {
        let units = request.units;
        let mut size = units;
        let mut tries = 0;
        let most = units.saturating_add(units / 8);
        loop {
            let mut found = None;
            let mut larger = None;
            for (chunk, entry) in self.heap.pending_of(size) {
                #[cfg(test)]
                crate::tests::work::look();
                let AcquiredChunk { units, since, .. } = self.heap.acquired(chunk);
                // A pending chunk is acquired whole: a much larger one would be wasted on the
                // request.
                if units > most || tries == TRIES {
                    return None;
                }
                tries += 1;
                larger = Some(units + 1);
                let is_accepted = |pending: &Pending<ChunkId>| predicate(&pending.after, since);
                if self.pending.get(entry).is_some_and(is_accepted) {
                    found = Some(entry);
                    break;
                }
            }
            match found {
                Some(entry) => return self.remove_pending(entry),
                None => size = larger?,
            }
        }
    }

    /// Finds the oldest pending chunk of at least `units` of which `part` returns a part. Returns
    /// its index in the queue, and the part.
    pub(crate) fn find_pending<T>(
        &self,
        units: u32,
        part: impl Fn(ChunkId) -> Option<T>,
    ) -> Option<(u32, T)> {
        let mut oldest = None;
        self.heap.visit_pending(units, |chunk, entry| {
            let number = self.pending.number(entry);
            if oldest.as_ref().is_none_or(|&(_, least, _)| number < least)
                && let Some(part) = part(chunk)
            {
                oldest = Some((entry, number, part));
            }
        });
        oldest.map(|(entry, _, part)| (entry, part))
    }

    /// Acquires the pending chunk with this index in the queue.
    #[inline]
    pub(crate) fn remove_pending(&mut self, entry: u32) -> Option<Pending<ChunkId>> {
        let pending = self.pending.remove(entry)?;
        if self.pending.is_empty() {
            self.heap.set_changed();
        }
        self.heap.set_acquired(pending.value);
        self.pending_units -= u64::from(self.heap.units(pending.value));
        Some(pending)
    }
}
