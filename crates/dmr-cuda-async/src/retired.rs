//! Blocks that were given back and that the next sweep is to free: a window on them was open, their
//! users were slow, or their free has failed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use dmr_core::{BlockId, ResourceError, ResourceResult};

/// A block that was given back and cannot be freed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) id: BlockId,
    pub(crate) bytes: u64,
}

/// The retired blocks, and who sweeps them.
#[derive(Debug, Default)]
pub(crate) struct RetiredBlocks {
    /// Never locked across a driver call.
    blocks: Mutex<Vec<Retired>>,
    len: AtomicUsize,
    /// Something may have become free since the last sweep began.
    stirred: AtomicBool,
    /// Held by whoever sweeps, so that a reap that waits also waits for what another sweep has in
    /// hand. Only sweeps take it.
    sweeping: Mutex<()>,
}

impl RetiredBlocks {
    pub(crate) fn push(&self, block: Retired) {
        let mut blocks = lock(&self.blocks);
        blocks.push(block);
        self.len.store(blocks.len(), Ordering::SeqCst);
    }

    /// Whether there are none, and none is in the hand of a sweep. One load where that is so.
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Something may have become free: sweeps, unless another thread does. Never waits, and misses
    /// nothing: whoever is at it goes over the blocks again.
    pub(crate) fn stir(&self, sweep: impl FnMut()) {
        self.stirred.store(true, Ordering::SeqCst);
        self.settle(sweep);
    }

    /// Sweeps on as long as something stirs, unless another thread does.
    fn settle(&self, mut sweep: impl FnMut()) {
        while self.stirred.load(Ordering::SeqCst) {
            let _alone = match self.sweeping.try_lock() {
                Ok(alone) => alone,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if self.stirred.swap(false, Ordering::SeqCst) {
                sweep();
            }
        }
    }

    /// Sweeps when nobody else does any more.
    pub(crate) fn sweep_alone(&self, mut sweep: impl FnMut()) {
        let alone = lock(&self.sweeping);
        sweep();
        drop(alone);
        self.settle(sweep);
    }

    /// Goes over the blocks and keeps those for which `keep` answers `true`. Called while sweeping.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&Retired) -> bool) {
        let mut taken = std::mem::take(&mut *lock(&self.blocks));
        taken.retain(|block| keep(block));
        let mut blocks = lock(&self.blocks);
        blocks.append(&mut taken);
        self.len.store(blocks.len(), Ordering::SeqCst);
    }
}

/// What the sweeps of one reap have come to.
#[derive(Default)]
pub(crate) struct Reaped {
    bytes: u64,
    /// Of the last sweep, which has tried everything again.
    error: Option<ResourceError>,
}

impl Reaped {
    pub(crate) fn add(&mut self, (bytes, outcome): (u64, ResourceResult<()>)) {
        self.bytes += bytes;
        self.error = outcome.err();
    }

    pub(crate) fn answer(self) -> ResourceResult<u64> {
        self.error.map_or(Ok(self.bytes), Err)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
