//! What one thread has in hand of one account: bytes taken in advance, and who holds what.

use crate::sync::{AtomicU64, Ordering};

use super::tags::TagTable;

/// One thread's part of one account.
///
/// `credit` is bytes that the account has drawn and that no block uses. Only the thread that the
/// shard belongs to takes from it, gives to it and opens it; whoever holds the lock of the books
/// may close it and so take all. A closed shard sends its thread to the books: once all shards
/// are closed under that lock, the books alone say what is charged.
#[derive(Debug)]
pub(super) struct Shard {
    credit: AtomicU64,
    /// How much credit it may keep. Written when it is opened.
    cap: AtomicU64,
    /// Spreads threads over the lists of retired blocks.
    number: usize,
    pub(super) tags: TagTable,
}

/// The credit of a closed shard.
const CLOSED: u64 = u64::MAX;

impl Shard {
    /// A closed shard.
    pub(super) fn new(number: usize) -> Self {
        Self {
            credit: AtomicU64::new(CLOSED),
            cap: AtomicU64::new(0),
            number,
            tags: TagTable::default(),
        }
    }

    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Takes bytes from the credit, if it has them.
    #[inline]
    pub(super) fn take(&self, bytes: u64) -> bool {
        let mut credit = self.credit.load(Ordering::Relaxed);
        while credit != CLOSED && credit >= bytes {
            match self.exchange(credit, credit - bytes) {
                Ok(_) => return true,
                Err(now) => credit = now,
            }
        }
        false
    }

    /// Adds bytes to the credit; `false` if that would be more than it may keep, or if it is
    /// closed: then they go to the books, and the books take what is here under their lock. Never
    /// is credit from before in neither place: it would be missing when somebody is refused.
    #[inline]
    pub(super) fn give(&self, bytes: u64) -> bool {
        let mut credit = self.credit.load(Ordering::Relaxed);
        while credit != CLOSED {
            let sum = credit.saturating_add(bytes);
            if sum > self.cap.load(Ordering::Relaxed) {
                return false;
            }
            match self.exchange(credit, sum) {
                Ok(_) => return true,
                Err(now) => credit = now,
            }
        }
        false
    }

    /// Who takes over credit from here comes after what freed it: hence the release.
    #[inline]
    fn exchange(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.credit.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed)
    }

    /// Closes it; answers the credit that it had. With the books' lock.
    pub(super) fn close(&self) -> u64 {
        match self.credit.swap(CLOSED, Ordering::AcqRel) {
            CLOSED => 0,
            credit => credit,
        }
    }

    /// Opens it. By its own thread, with the books' lock.
    pub(super) fn open(&self, credit: u64, cap: u64) {
        self.cap.store(cap, Ordering::Relaxed);
        self.credit.store(credit.min(CLOSED - 1), Ordering::Release);
    }

    /// The credit that it has now.
    pub(super) fn peek(&self) -> u64 {
        match self.credit.load(Ordering::Relaxed) {
            CLOSED => 0,
            credit => credit,
        }
    }
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
        assert_eq!(shard.close(), 150);
        assert!(!shard.give(1));
    }
}
