//! Retired blocks whose last window has closed: the thread that closes it passes them to their
//! owner.
//!
//! A thread that closes a window cannot free the memory: it belongs to another resource, which may
//! be in the middle of a call. So it only adds the block to a queue of the owner, whose next call
//! looks there.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Waker;

use dmr_core::panics;
use dmr_core::sync::lock;

/// The number of a [`BlockOwner`](crate::BlockOwner), as it stands in the slots of its blocks.
/// Unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerNumber(NonZeroU64);

impl OwnerNumber {
    pub(crate) fn new() -> Self {
        static ISSUED: AtomicU64 = AtomicU64::new(1);
        // At one per nanosecond it wraps to 0 after 580 years.
        let number = ISSUED.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }
}

/// The generations of one owner's retired blocks whose last window has closed.
#[derive(Debug, Default)]
pub(crate) struct ClosedQueue {
    generations: Mutex<VecDeque<u64>>,
    len: AtomicUsize,
    /// Woken when a block was added, if the owner does not wait for its next call.
    waker: OnceLock<Waker>,
}

/// The queues of all owners of a stream pool.
#[derive(Debug, Default)]
pub(crate) struct ClosedQueues(Mutex<HashMap<OwnerNumber, Weak<ClosedQueue>>>);

impl ClosedQueue {
    /// Returns the number of blocks. One load.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn push(&self, added: u64) {
        let mut generations = lock(&self.generations);
        generations.push_back(added);
        self.len.store(generations.len(), Ordering::SeqCst);
    }

    /// Sets the waker, once for all.
    pub(super) fn set_waker(&self, waker: Waker) {
        // A second one is the same.
        let _ = self.waker.set(waker);
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            let _ = panics::catch(|| waker.wake_by_ref());
        }
    }

    pub(super) fn pop(&self) -> Option<u64> {
        let mut generations = lock(&self.generations);
        let oldest = generations.pop_front();
        self.len.store(generations.len(), Ordering::SeqCst);
        oldest
    }
}

impl ClosedQueues {
    pub(crate) fn add(&self, owner: OwnerNumber) -> Arc<ClosedQueue> {
        let queue = Arc::<ClosedQueue>::default();
        let mut queues = lock(&self.0);
        // Removes the queues of owners that were dropped.
        queues.retain(|_, queue| queue.strong_count() > 0);
        queues.insert(owner, Arc::downgrade(&queue));
        queue
    }

    /// Adds a retired block whose last window has closed.
    #[cold]
    pub(crate) fn push(&self, owner: OwnerNumber, generation: u64) {
        let queue = lock(&self.0).get(&owner).and_then(Weak::upgrade);
        if let Some(queue) = queue {
            queue.push(generation);
            queue.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_two_owners_have_the_same_number() {
        assert_ne!(OwnerNumber::new(), OwnerNumber::new());
    }
}
