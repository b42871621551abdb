//! The slack of a pool: the memory that it may reserve before it saves memory at the cost of time.
//!
//! A wait costs overlap each time, growth costs memory once. So a pool grows as long as it reserves
//! hardly more than is live, or was at the peak, and beyond that makes streams wait, moves pages or
//! returns segments first. Two things move the bound. *Contention*: threads that find each other's
//! arenas locked pay for sharing memory with time, so they get more of it. *Decay*: a program that
//! was large once, or had many threads, is not granted that for ever.
//!
//! All of it is a hint: the counters are relaxed, and a lost update makes the bound a little wrong
//! for a while.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The contention that one conflict of two threads adds, and the most contention, in 1024ths of the
/// peak.
const STEP: u32 = 8;
const MOST: u32 = 448;
/// Contention and peak decay each time that the pool has allocated this multiple of the peak.
const PEAKS: u64 = 16;
/// The contention loses 1/`DECAY`, and the peak 1/`DECAY` of its distance to the live bytes.
const DECAY: u32 = 8;
/// The most steps of one decay: after these both have decayed completely.
const MOST_STEPS: u64 = 128;

/// The memory that a pool may reserve. Threads that borrow from each other's arenas contend for
/// their locks, so each time that a thread finds an arena locked the pool may reserve a little
/// more, up to 7/16 more than the bytes that were live at the peak; over pages up to 21/32 more,
/// because each page that moves costs 50 µs.
#[derive(Debug)]
pub(crate) struct Slack {
    divisor: u64,
    /// In 1024ths of the peak.
    contention: AtomicU32,
    /// The most bytes that were live lately.
    peak: AtomicU64,
    /// The bytes that had been allocated when contention and peak decayed last.
    decayed_at: AtomicU64,
}

impl Slack {
    /// Bytes that are always allowed: beyond the live bytes, or in all where pages move.
    pub(crate) const SMALL: u64 = 64 << 20;

    pub(crate) fn new(divisor: u32) -> Self {
        Self {
            divisor: u64::from(divisor.max(1)),
            contention: AtomicU32::new(0),
            peak: AtomicU64::new(0),
            decayed_at: AtomicU64::new(0),
        }
    }

    /// Counts a conflict: a search found an arena locked by another thread.
    pub(crate) fn count_conflict(&self) {
        let contention = self.contention.load(Ordering::Relaxed);
        if contention < MOST {
            // A lost update is corrected by later ones.
            self.contention.store(contention + STEP, Ordering::Relaxed);
        }
    }

    /// Returns whether threads found arenas locked lately.
    pub(crate) fn is_contended(&self) -> bool {
        self.contention.load(Ordering::Relaxed) > 0
    }

    /// Lets contention and peak decay, when `live` bytes are live of `allocated` bytes so far.
    pub(crate) fn decay(&self, allocated: u64, live: u64) {
        let before = self.decayed_at.load(Ordering::Relaxed);
        let mut peak = self.peak.load(Ordering::Relaxed);
        // The clock is bytes that were allocated, not time: a program that pauses loses nothing.
        let steps = allocated.saturating_sub(before) / (peak.max(Self::SMALL) * PEAKS);
        // One of several threads does it.
        let is_mine = steps > 0
            && self
                .decayed_at
                .compare_exchange(before, allocated, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !is_mine {
            return;
        }
        let mut contention = self.contention.load(Ordering::Relaxed);
        for _ in 0..steps.min(MOST_STEPS) {
            contention -= contention.div_ceil(DECAY);
            peak -= peak.saturating_sub(live).div_ceil(u64::from(DECAY));
        }
        self.contention.store(contention, Ordering::Relaxed);
        self.peak.store(peak, Ordering::Relaxed);
    }

    /// Returns the bytes that may be reserved when `live` bytes are live and no memory is returned
    /// in between: 1/`divisor` more than the peak, or more where threads contend.
    pub(crate) fn allowance_of_peak(&self, live: u64, divisor: u64) -> u64 {
        let peak = self.peak(live);
        let contention = u64::from(self.contention.load(Ordering::Relaxed));
        let more = peak / 1024 * (contention + contention / 2);
        peak.saturating_add((peak / divisor).max(more)).max(Self::SMALL)
    }

    /// Returns the bytes that may be reserved when moving pages takes too much time.
    pub(crate) fn twice_the_peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).saturating_mul(2)
    }

    /// Returns the bytes that may be reserved when `live` bytes are live.
    pub(crate) fn allowance(&self, live: u64) -> u64 {
        let peak = self.peak(live);
        let saving = live.saturating_add(live / self.divisor);
        match u64::from(self.contention.load(Ordering::Relaxed)) {
            0 => saving,
            contention => saving.max(peak.saturating_add(peak / 1024 * contention)),
        }
        .saturating_add(Self::SMALL)
    }

    /// Returns the peak, which is at least `live`.
    fn peak(&self, live: u64) -> u64 {
        let peak = self.peak.load(Ordering::Relaxed);
        if live > peak {
            self.peak.store(live, Ordering::Relaxed);
        }
        peak.max(live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Slack with a peak of 8 GiB and as much contention as there can be.
    fn contended() -> Slack {
        let slack = Slack::new(16);
        slack.allowance(8 * GIB);
        (0..100).for_each(|_| slack.count_conflict());
        slack
    }

    #[test]
    fn contention_and_peak_decay_when_much_has_been_allocated() {
        let slack = contended();
        let calm = Slack::new(16);
        assert!(slack.allowance(GIB) > 11 * GIB, "the peak, and nearly half of it");
        // A thousand times the old peak.
        (1..=8_000).for_each(|allocated| slack.decay(allocated * GIB, GIB));
        assert!(!slack.is_contended());
        assert_eq!(slack.allowance(GIB), calm.allowance(GIB));
        assert_eq!(slack.allowance_of_peak(GIB, 50), calm.allowance_of_peak(GIB, 50));
        assert_eq!(slack.twice_the_peak(), 2 * GIB);
    }

    #[test]
    fn nothing_decays_before_sixteen_peaks_have_been_allocated() {
        let slack = contended();
        let before = slack.allowance(GIB);
        slack.decay(16 * 8 * GIB - 1, GIB);
        assert_eq!(slack.allowance(GIB), before);
        slack.decay(16 * 8 * GIB, GIB);
        assert!(slack.allowance(GIB) < before);
        assert!(slack.is_contended());
    }

    #[test]
    fn one_long_interval_counts_as_many_short_ones() {
        let slack = contended();
        let live = 8 * GIB;
        slack.decay(10 * 16 * live, live);
        let other = contended();
        (1..=10).for_each(|step| other.decay(step * 16 * live, live));
        assert_eq!(slack.allowance(live), other.allowance(live));
    }

    #[test]
    fn a_peak_that_is_live_still_is_the_peak() {
        let slack = contended();
        (1..=100).for_each(|step| slack.decay(step * 1000 * GIB, 8 * GIB));
        assert_eq!(slack.twice_the_peak(), 16 * GIB);
    }
}
