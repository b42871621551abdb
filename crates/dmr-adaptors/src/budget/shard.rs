//! What one thread has in hand of one account: bytes taken in advance, and who holds what.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering};

use super::tags::TagTable;

/// One thread's part of one account.
///
/// Its *credit* is bytes that the account has drawn and that no block uses: what was given, less
/// what was used. Only the thread that the shard belongs to takes from it, gives to it and opens
/// it. Whoever holds the lock of the books may close it: then nothing is taken any more, and the
/// thread goes to the books.
///
/// **Why taking is a locked instruction and giving is a store.** A take must not be made of credit
/// that somebody else collects, so one of the two has to fail. A give only makes the credit larger,
/// and may as well come after it was collected: it is there for the next time. So the credit of
/// many shards is collected in two passes: close all, then collect all. Between the two is an
/// instant from which nothing is taken; what is collected is at least the credit of that instant,
/// for every give that a take came after is seen by whoever closes the shard of that take.
#[derive(Debug)]
pub(super) struct Shard {
    /// Twice the bytes taken, less those it was opened with; it wraps. Or [`CLOSED`].
    used: CachePadded<AtomicU64>,
    /// Twice the bytes given; it wraps. Only its own thread writes it.
    given: AtomicU64,
    /// Of a closed shard, what of `given` is in the books. Written with the lock.
    collected: AtomicU64,
    /// How much credit it may keep. Written when it is opened.
    cap: AtomicU64,
    /// Spreads threads over the lists of retired blocks.
    number: usize,
    pub(super) tags: TagTable,
}

/// What is used of a closed shard: nothing else is odd.
const CLOSED: u64 = 1;

/// The most credit that a shard is opened with, in bytes: differences of wrapping counters stay
/// far from where they are ambiguous.
pub(super) const MOST_CREDIT: u64 = 1 << 60;

impl Shard {
    /// A closed shard.
    pub(super) fn new(number: usize) -> Self {
        Self {
            used: CachePadded::new(AtomicU64::new(CLOSED)),
            given: AtomicU64::new(0),
            collected: AtomicU64::new(0),
            cap: AtomicU64::new(0),
            number,
            tags: TagTable::default(),
        }
    }

    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Takes bytes from the credit, if it has them. By its own thread.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> bool {
        let (used, given) = (self.used.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed));
        if used == CLOSED || credit(given, used) < bytes {
            return false;
        }
        let then = used.wrapping_add(2 * bytes);
        self.used.compare_exchange(used, then, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Adds bytes to the credit; `false` if that would be more than it may keep, or if it is
    /// closed: then they go to the books. By its own thread.
    #[inline]
    pub(super) fn give(&self, bytes: u64) -> bool {
        let (used, given) = (self.used.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed));
        let sum = credit(given, used).saturating_add(bytes);
        if used == CLOSED || sum > self.cap.load(Ordering::Relaxed) {
            return false;
        }
        // Who takes over credit from here comes after what freed it: hence the release.
        self.given.store(given.wrapping_add(2 * bytes), Ordering::Release);
        true
    }

    /// Closes it. With the books' lock.
    pub(super) fn close(&self) {
        match self.used.swap(CLOSED, Ordering::AcqRel) {
            CLOSED => {}
            used => self.collected.store(used, Ordering::Relaxed),
        }
    }

    /// Takes all credit, of a closed shard. With the books' lock, after all shards that matter are
    /// closed.
    pub(super) fn collect(&self) -> u64 {
        let given = self.given.load(Ordering::Acquire);
        let collected = self.collected.load(Ordering::Relaxed);
        self.collected.store(given, Ordering::Relaxed);
        credit(given, collected)
    }

    /// Opens it. By its own thread, with the books' lock, when it is closed and collected.
    pub(super) fn open(&self, credit: u64, cap: u64) {
        let given = self.given.load(Ordering::Relaxed);
        self.cap.store(cap.min(2 * MOST_CREDIT), Ordering::Relaxed);
        self.used.store(given.wrapping_sub(2 * credit), Ordering::Release);
    }

    /// Whether it is closed. With the books' lock.
    pub(super) fn is_closed(&self) -> bool {
        self.used.load(Ordering::Relaxed) == CLOSED
    }

    /// The credit that it has now, unless it is closed.
    pub(super) fn peek(&self) -> u64 {
        match self.used.load(Ordering::Acquire) {
            CLOSED => 0,
            // Nothing is used before it is given.
            used => credit(self.given.load(Ordering::Relaxed), used),
        }
    }
}

#[inline]
const fn credit(given: u64, used: u64) -> u64 {
    given.wrapping_sub(used) / 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_goes_to_the_books_and_nothing_that_was_there_before() {
        let shard = Shard::new(0);
        shard.open(100, 150);
        assert!(shard.give(50));
        assert!(!shard.give(1), "that is the books' now");
        assert_eq!(shard.peek(), 150);
        shard.close();
        assert_eq!(shard.collect(), 150);
        assert!(!shard.give(1) && !shard.take(0));
        assert_eq!(shard.collect(), 0);
    }

    #[test]
    fn counters_wrap_and_the_credit_does_not_change() {
        let (shard, block) = (Shard::new(0), 1 << 59);
        shard.open(block, 2 * block);
        for _ in 0..100 {
            assert!(shard.take(block) && !shard.take(1));
            assert!(shard.give(block));
            assert_eq!(shard.peek(), block);
        }
        shard.close();
        assert_eq!(shard.collect(), block);
    }
}
