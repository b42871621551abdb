//! The ring of a thread: its last events. The thread writes it, and any thread may read it
//! meanwhile.
//!
//! There is one number that both look at, the head: the number of events that were ever pushed.
//! A reader copies slots, and then looks at the head again: what the writer may have begun to
//! overwrite by then is discarded. So the writer never waits, and never writes a line that another
//! thread writes.

use crate::sync::{AtomicU64, Ordering, fence};

/// The words of an event.
pub(crate) const WORDS: usize = 8;

/// The words of one event: a cache line of its own.
#[repr(align(64))]
#[derive(Debug)]
struct Slot<const N: usize>([AtomicU64; N]);

/// The last events of a thread, on cache lines of its own: two of them, because processors fetch
/// lines in pairs.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Ring<const N: usize = WORDS> {
    /// The number of events that were pushed.
    head: AtomicU64,
    /// A power of two of them.
    slots: Box<[Slot<N>]>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot<WORDS>>() == 64 && align_of::<Slot<WORDS>>() == 64);
    assert!(size_of::<Ring>() == 128 && align_of::<Ring>() == 128);
};

/// Events that were read from a ring.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied<const N: usize = WORDS> {
    /// Oldest first.
    pub(crate) events: Vec<[u64; N]>,
    /// The number of events that were pushed since `from`, and are not there any more.
    pub(crate) lost: u64,
    /// The number of the first event that has not been read.
    pub(crate) next: u64,
}

impl<const N: usize> Ring<N> {
    /// Makes a ring of at least this many events, and touches its memory.
    pub(crate) fn new(events: usize) -> Self {
        let slot = |_| Slot(std::array::from_fn(|_| AtomicU64::new(0)));
        let slots = (0..events.next_power_of_two().max(1)).map(slot).collect();
        Self { head: AtomicU64::new(0), slots }
    }

    /// Returns whether it was made for this many events.
    pub(crate) fn has_room_for(&self, events: usize) -> bool {
        self.slots.len() == events.next_power_of_two().max(1)
    }

    /// Adds an event. Called by one thread at a time, the ring's.
    #[inline(always)]
    pub(crate) fn push(&self, words: [u64; N]) {
        self.push_at(self.head.load(Ordering::Relaxed), words);
    }

    #[inline(always)]
    fn push_at(&self, at: u64, words: [u64; N]) {
        let Some(slot) = self.slots.get(at as usize & (self.slots.len() - 1)) else { return };
        // A reader that finds one of the words below finds the head above, or a later one.
        fence(Ordering::Release);
        for (word, value) in slot.0.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.head.store(at + 1, Ordering::Release);
    }

    /// Returns the number of events that were pushed.
    pub(crate) fn pushed(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Copies the events from number `from` on.
    pub(crate) fn copy(&self, from: u64) -> Copied<N> {
        let end = self.head.load(Ordering::Acquire);
        let room = self.slots.len() as u64;
        let first = end.saturating_sub(room).max(from);
        let mut events: Vec<_> = (first..end)
            .filter_map(|at| self.slots.get(at as usize & (self.slots.len() - 1)))
            .map(|slot| slot.0.each_ref().map(|word| word.load(Ordering::Relaxed)))
            .collect();
        fence(Ordering::Acquire);
        // The slot of event `now` may be half written.
        let now = self.head.load(Ordering::Relaxed);
        let valid = (now + 1).saturating_sub(room).max(first).min(end);
        events.drain(..(valid - first) as usize);
        Copied { events, lost: valid.saturating_sub(from), next: end.max(from) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_ring_keeps_the_last_events_and_counts_the_others() {
        let ring = Ring::<2>::new(4);
        assert_eq!(ring.copy(0), Copied::default());
        for event in 0..10 {
            ring.push([event, !event]);
        }
        let Copied { events, lost, next } = ring.copy(0);
        // One slot fewer than there are: the writer may be in it.
        assert_eq!(events, [[7, !7], [8, !8], [9, !9]]);
        assert_eq!((lost, next), (7, 10));
        assert_eq!(ring.copy(9).events, [[9, !9]]);
        assert_eq!(ring.copy(10), Copied { events: Vec::new(), lost: 0, next: 10 });
    }

    #[test]
    fn a_reader_never_finds_half_an_event() {
        let ring = Ring::<8>::new(8);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut event = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    ring.push([event; 8]);
                    event += 1;
                }
            });
            let mut next = 0;
            let mut read = 0;
            while read < 1_000 {
                let copied = ring.copy(next);
                let first = next + copied.lost;
                for (nth, words) in copied.events.iter().enumerate() {
                    assert_eq!(*words, [first + nth as u64; 8]);
                }
                read += copied.events.len();
                next = copied.next;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// A ring of two slots: the third event overwrites the first.
    #[test]
    fn loom_a_reader_never_finds_half_an_event() {
        loom::model(|| {
            let ring = Arc::new(Ring::<2>::new(2));
            let written = Arc::clone(&ring);
            let writer = loom::thread::spawn(move || {
                // A load of the head by the writer would hide those of the reader from loom.
                for event in 0..3 {
                    written.push_at(event, [event + 1; 2]);
                }
            });
            let copied = ring.copy(0);
            for (nth, words) in copied.events.iter().enumerate() {
                assert_eq!(*words, [copied.lost + nth as u64 + 1; 2]);
            }
            writer.join().unwrap();
            let all = ring.copy(copied.next);
            assert_eq!(all.next, 3);
            assert_eq!(all.events.last(), (copied.next < 3).then_some(&[3, 3]));
        });
    }
}
