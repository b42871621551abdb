//! The peak of a number that goes up and down on many threads.
//!
//! Each thread keeps its changes in a [`Part`] of its own and tells the [`Whole`] now and then:
//! when what it has kept back has grown by more than a step, or has fallen by more than a step
//! from its highest. Then it adds what it kept back to the whole, and raises the peak to what the
//! whole was before plus its highest.
//!
//! **How exact the peak is.** What a thread keeps back is at most a step, up or down.
//! Let *n* threads count. When the sum is at its highest, the next thread to tell sees a whole
//! that lacks only what the other *n* − 1 keep back: the peak is too low by at most *n* − 1
//! steps. A highest that is told late comes on top of a whole that has moved on; as the thread
//! has fallen from it by a step at most, the peak is too high by at most *n* steps. One thread
//! alone tells, and reads, what is exact.

use std::sync::atomic::{AtomicI64, Ordering};

use crossbeam_utils::CachePadded;

/// One thread's part. Only that thread writes it, so that plain loads and stores do.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// What the whole was not told.
    rest: AtomicI64,
    /// The highest that the rest has been since the whole was told, and at least zero.
    highest: AtomicI64,
}

impl Part {
    /// Counts up. Answers whether the whole has to be told, as [`is_due`](Self::is_due). Without
    /// a branch: whether this is a new highest is anybody's guess.
    #[inline]
    pub(super) fn add(&self, amount: u64, step: i64) -> bool {
        let rest = self.rest.load(Ordering::Relaxed).wrapping_add_unsigned(amount);
        self.rest.store(rest, Ordering::Relaxed);
        self.highest.store(self.highest.load(Ordering::Relaxed).max(rest), Ordering::Relaxed);
        rest > step
    }

    /// Counts down. Answers as [`add`](Self::add).
    #[inline]
    pub(super) fn remove(&self, amount: u64, step: i64) -> bool {
        let rest = self.rest.load(Ordering::Relaxed).wrapping_sub_unsigned(amount);
        self.rest.store(rest, Ordering::Relaxed);
        self.highest.load(Ordering::Relaxed) - rest > step
    }

    /// Whether more is kept back than a step.
    pub(super) fn is_due(&self, step: i64) -> bool {
        let (rest, highest) = (self.rest.load(Ordering::Relaxed), self.highest());
        rest > step || highest - rest > step
    }

    /// Tells the whole.
    pub(super) fn tell(&self, whole: &Whole) {
        let (rest, highest) = (self.rest.load(Ordering::Relaxed), self.highest());
        // First, so that whoever reads the whole afterwards does not count it twice.
        self.rest.store(0, Ordering::Relaxed);
        self.highest.store(0, Ordering::Relaxed);
        whole.change(rest, highest);
    }

    /// The highest that what the whole was not told has been.
    pub(super) fn highest(&self) -> i64 {
        self.highest.load(Ordering::Relaxed)
    }
}

/// What all threads have told.
#[derive(Debug, Default)]
pub(super) struct Whole {
    current: CachePadded<AtomicI64>,
    // Apart, because a thread that tells hardly ever writes it.
    peak: CachePadded<AtomicI64>,
}

impl Whole {
    fn change(&self, by: i64, highest: i64) {
        let before = self.current.fetch_add(by, Ordering::AcqRel);
        let reached = before.saturating_add(highest);
        if reached > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(reached, Ordering::AcqRel);
        }
    }

    /// The peak of what was told.
    pub(super) fn told_peak(&self) -> i64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// The peak, where `highest` answers the highest of what any one thread keeps back.
    pub(super) fn peak(&self, highest: impl FnOnce() -> i64) -> u64 {
        let current = self.current.load(Ordering::Acquire);
        let reached = current.saturating_add(highest());
        self.peak.load(Ordering::Acquire).max(reached).max(0).unsigned_abs()
    }

    /// Starts the peak again from what is current.
    pub(super) fn reset_peak(&self) {
        self.peak.store(self.current.load(Ordering::Acquire), Ordering::Release);
        // What was told between the two is not lost.
        self.peak.fetch_max(self.current.load(Ordering::Acquire), Ordering::AcqRel);
    }
}
