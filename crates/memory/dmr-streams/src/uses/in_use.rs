//! Blocks that were released while a window was open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use dmr_core::sync::{lock, try_lock};
use dmr_core::{BlockId, waits};

use super::ClosedQueue;
use crate::BlockOwner;
use crate::idle::POLL;

/// The blocks of one owner that were released while they were [`InUse`](super::Released::InUse),
/// with a value of the owner for each.
///
/// A block stays here until its last window has closed; a window that never closes costs nothing
/// more.
#[derive(Debug)]
pub struct BlocksInUse<T> {
    closed: Arc<ClosedQueue>,
    /// By generation. Never locked across a driver call.
    blocks: Mutex<HashMap<u64, T>>,
    /// The number of blocks that are here, or that [`drain_closed`](Self::drain_closed) is freeing.
    len: AtomicUsize,
    /// Held while blocks are drained, so that a call that waits also waits for the blocks that
    /// another call is freeing.
    draining: Mutex<()>,
}

/// The patience of a call: whether it waits for other threads and for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It does not wait.
    Poll,
    /// It waits.
    Wait,
}

impl Patience {
    /// Locks a mutex that is held while blocks are freed; `None` if another thread holds it and
    /// this does not wait, or the thread's [deadline](dmr_core::waits) has passed: the other thread
    /// may be waiting for the device.
    #[must_use]
    pub fn lock(self, mutex: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
        let deadline = match self {
            Self::Poll => return try_lock(mutex),
            Self::Wait => waits::deadline(),
        };
        let Some(deadline) = deadline else { return Some(lock(mutex)) };
        loop {
            match try_lock(mutex) {
                None if Instant::now() < deadline => std::thread::sleep(POLL),
                locked => return locked,
            }
        }
    }
}

impl<T> BlocksInUse<T> {
    /// Makes the only such value for the blocks of `owner`.
    #[must_use]
    pub fn new(owner: &BlockOwner) -> Self {
        Self {
            closed: Arc::clone(owner.closed()),
            blocks: Mutex::default(),
            len: AtomicUsize::new(0),
            draining: Mutex::default(),
        }
    }

    /// Wakes `waker` when the last window of a block has closed, on the thread that has closed it,
    /// whose locks are unknown: it may only pass the news to another thread. A waker that is set
    /// later has no effect.
    pub fn wake_when_closed(&self, waker: Waker) {
        self.closed.set_waker(waker);
    }

    /// Adds a block that was [`InUse`](super::Released::InUse). Call
    /// [`drain_closed`](Self::drain_closed) then: the last window may have closed meanwhile.
    pub fn insert(&self, block: BlockId, value: T) {
        let mut blocks = lock(&self.blocks);
        self.len.fetch_add(1, Ordering::SeqCst);
        blocks.insert(block.generation().get(), value);
    }

    /// Returns whether there is no block here, nor one that another thread's
    /// [`drain_closed`](Self::drain_closed) is freeing. One load.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Returns whether the last window of a block has closed that is still here. One load.
    #[must_use]
    #[inline]
    pub fn any_closed(&self) -> bool {
        self.closed.len() > 0
    }

    /// Removes each block whose last window has closed, and calls `free` with its value. With
    /// [`Patience::Poll`], returns at once if another thread is doing so, which misses none. If
    /// `free` panics, the next call goes on with the next block.
    pub fn drain_closed(&self, patience: Patience, mut free: impl FnMut(T)) {
        if patience == Patience::Wait && !self.is_empty() {
            // Blocks that another thread is freeing are not in the queue any more.
            drop(patience.lock(&self.draining));
        }
        while self.any_closed() {
            let Some(alone) = patience.lock(&self.draining) else { return };
            // A block that its release has not inserted yet is drained by the releasing thread.
            let mut early = Vec::new();
            for _ in 0..self.closed.len() {
                let Some(generation) = self.closed.pop() else { break };
                if !self.free(generation, &mut free) {
                    self.closed.push(generation);
                    early.push(generation);
                }
            }
            drop(alone);
            if early.is_empty() {
                continue;
            }
            let blocks = lock(&self.blocks);
            if !early.iter().any(|generation| blocks.contains_key(generation)) {
                return;
            }
        }
    }

    /// Removes every block, whether or not it has an open window, and calls `free` with its value:
    /// for a lost device. If `free` panics, the next call goes on with the next block.
    pub fn drain_all(&self, mut free: impl FnMut(T)) {
        let _alone = lock(&self.draining);
        while self.closed.pop().is_some() {}
        let generations: Vec<u64> = lock(&self.blocks).keys().copied().collect();
        for generation in generations {
            self.free(generation, &mut free);
        }
    }

    /// Removes a block and calls `free` with it; returns `false` if it is not here.
    fn free(&self, generation: u64, free: &mut impl FnMut(T)) -> bool {
        let Some(block) = lock(&self.blocks).remove(&generation) else { return false };
        let _counted = UncountOnDrop(&self.len);
        free(block);
        true
    }
}

/// Removes a block from the count when this is dropped, also by a panic.
struct UncountOnDrop<'a>(&'a AtomicUsize);

impl Drop for UncountOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
