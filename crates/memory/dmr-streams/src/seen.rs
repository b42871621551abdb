//! The uses of other streams that a stream has waited for.

use dmr_core::ledger::UseId;

use crate::sync::{AtomicU64, Ordering};

/// Words in a [`Seen`].
const WORDS: usize = 32;

/// The last use of each other stream that a stream has waited for, remembered for at most [`WORDS`]
/// streams.
///
/// A word holds a [`UseId`], or 0; the slot of its stream modulo [`WORDS`] is the word's index. Of
/// two streams with the same index only the one raised last is remembered. A use that was forgotten
/// costs a wait that was not needed; no wait is left out, because every word is true by itself.
pub(crate) struct Seen([AtomicU64; WORDS]);

impl Seen {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Returns whether use `seq` of the stream in `slot` is covered.
    #[inline]
    pub(crate) fn covers(&self, slot: usize, seq: u64) -> bool {
        let word = UseId::from_word(self.0[slot % WORDS].load(Ordering::Acquire));
        word.is_some_and(|known| known.covers(UseId::new(slot, seq)))
    }

    /// Remembers that use `seq` of the stream in `slot` is covered.
    ///
    /// If two threads call it at the same time, the smaller number may remain: that saves an atomic
    /// read-modify-write.
    pub(crate) fn raise(&self, slot: usize, seq: u64) {
        let word = &self.0[slot % WORDS];
        let known = word.load(Ordering::Relaxed);
        let used = UseId::new(slot, seq);
        if !UseId::from_word(known).is_some_and(|known| known.covers(used)) {
            // Release: a thread that reads this submits after the wait was queued.
            word.store(used.get(), Ordering::Release);
        }
    }

    /// Remembers all uses that `other` covers, except for those of the stream in `own` and those in
    /// words from index `reach` on.
    pub(crate) fn raise_all(&self, other: &Self, own: usize, reach: usize) {
        for (slot, seq) in other.iter(reach).filter(|(slot, _)| *slot != own) {
            self.raise(slot, seq);
        }
    }

    /// Makes this cover the same uses as `other` in the words below index `reach`.
    pub(crate) fn copy(&self, other: &Self, reach: usize) {
        for (mine, theirs) in self.0.iter().zip(&other.0).take(reach) {
            mine.store(theirs.load(Ordering::Acquire), Ordering::Relaxed);
        }
    }

    /// Returns the stream slots and sequence numbers in the words below index `reach`.
    pub(crate) fn iter(&self, reach: usize) -> impl Iterator<Item = (usize, u64)> {
        let words = self.0.iter().take(reach).map(|word| word.load(Ordering::Relaxed));
        words.filter_map(UseId::from_word).map(|used| (used.slot(), used.seq()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_collision_forgets_a_stream_and_claims_nothing_of_the_other() {
        let seen = Seen::new();
        seen.raise(1, 10);
        seen.raise(1 + WORDS, 4);
        assert!(seen.covers(1 + WORDS, 4));
        assert!(!seen.covers(1 + WORDS, 5));
        assert!(!seen.covers(1, 1), "forgotten");
        assert!(!seen.covers(1 + 2 * WORDS, 1));
    }

    #[test]
    fn every_word_that_is_raised_is_true_for_its_stream_alone() {
        let mine = Seen::new();
        let theirs = Seen::new();
        mine.raise(3, 9);
        theirs.raise(3, 7);
        theirs.raise(4 + WORDS, 5);
        theirs.raise(5, 6);
        mine.raise_all(&theirs, 5, WORDS);
        assert!(mine.covers(3, 9) && mine.covers(4 + WORDS, 5));
        assert!(!mine.covers(4, 5) && !mine.covers(5, 6));
    }
}
