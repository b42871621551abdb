//! Pending blocks: released, and not freed yet, because the device may still use them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use dmr_core::sync::lock;
use dmr_core::{ResourceResult, StreamId};

use super::{Dependencies, Patience, Pending, PendingQueue};

/// The number of blocks that become pending on a stream between two polls.
const BATCH: usize = 16;

/// The pending blocks of one resource, with a value of the resource for each.
///
/// They are in queues by home stream, so that threads that work on streams of their own do not
/// contend. Pending blocks are freed oldest first. A query costs more than a free, but its result
/// holds for all earlier uses of the same stream, so one query serves many blocks. A block whose
/// free panics is leaked, and not pending any more.
#[derive(Debug)]
pub struct PendingFrees<T> {
    shards: Box<[Shard<T>]>,
    bytes_of: fn(&T) -> u64,
}

/// An amount of pending blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingAmount {
    /// The number of blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The blocks of some home streams, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T> {
    /// Never locked across a driver call.
    queue: Mutex<ShardQueue<T>>,
    /// The number of blocks in the queue, or that a thread is freeing.
    len: AtomicUsize,
    /// Held while blocks are freed, so that a call that waits also waits for the blocks that
    /// another call is freeing.
    freeing: Mutex<()>,
}

#[derive(Debug)]
struct ShardQueue<T> {
    pending: PendingQueue<T>,
    /// The bytes of the blocks in the queue, or that a thread is freeing.
    bytes: u64,
    /// The number of blocks that became pending since the last poll.
    unpolled: usize,
}

/// A block that was removed from the queue of a shard, and is still counted there. Dropping this
/// removes it from the count: it is freed, or leaked by a panic.
struct BeingFreed<'a, T> {
    shard: &'a Shard<T>,
    bytes: u64,
}

impl<T> PendingFrees<T> {
    /// Makes queues, of which the home streams share `shards`. `bytes_of` returns the bytes of a
    /// block.
    #[must_use]
    pub fn new(shards: usize, bytes_of: fn(&T) -> u64) -> Self {
        Self { shards: (0..shards.max(1)).map(|_| Shard::new()).collect(), bytes_of }
    }

    /// Returns whether no block is pending, nor being freed by a thread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(Shard::is_empty)
    }

    /// Adds a block whose home stream is `home`.
    pub fn push(&self, home: StreamId, pending: Pending<T>) {
        let shard = self.shard(home);
        let mut queue = shard.queue();
        shard.len.fetch_add(1, Ordering::SeqCst);
        queue.unpolled += 1;
        queue.bytes += (self.bytes_of)(&pending.value);
        queue.pending.push(pending);
    }

    /// Returns the dependencies to poll, if a poll is due: those of the newest block of this home
    /// stream whose uses have had time to complete, and those of the oldest.
    pub fn due_for_poll(&self, home: StreamId) -> Option<[Dependencies; 2]> {
        let mut queue = self.shard(home).queue();
        if queue.unpolled < BATCH || queue.pending.len() < 2 * BATCH {
            return None;
        }
        queue.unpolled = 0;
        let young = queue.pending.newest_first().nth(BATCH)?.after.clone();
        Some([young, queue.pending.iter().next()?.after.clone()])
    }

    /// Returns the amount of blocks that are pending in the queue of the home stream `home`, or
    /// that a thread is freeing.
    #[must_use]
    pub fn pending(&self, home: StreamId) -> PendingAmount {
        let shard = self.shard(home);
        let bytes = shard.queue().bytes;
        PendingAmount { blocks: shard.len.load(Ordering::SeqCst), bytes }
    }

    /// Frees the oldest blocks of the home stream `home` that are pending now, up to `most`, and up
    /// to the first that is not ready or that `free` does not free, which then becomes the newest.
    /// `free` returns whether it has freed a block; on an error it has not. Frees none if another
    /// thread is freeing. Returns the number of blocks freed.
    pub fn free_oldest(
        &self,
        home: StreamId,
        most: usize,
        is_ready: impl Fn(&Pending<T>) -> bool,
        mut free: impl FnMut(&mut Pending<T>) -> ResourceResult<bool>,
    ) -> usize {
        let shard = self.shard(home);
        if shard.is_empty() {
            return 0;
        }
        let Some(_alone) = Patience::Poll.lock(&shard.freeing) else { return 0 };
        // Those that other threads add meanwhile are theirs.
        let most = most.min(shard.queue().pending.len());
        for freed in 0..most {
            let Some(mut oldest) = shard.queue().pop_if(&is_ready) else { return freed };
            let being_freed = shard.begin_free(self.bytes_of, &oldest);
            // The next reap returns the error.
            if !matches!(free(&mut oldest), Ok(true)) {
                being_freed.push_again(oldest);
                return freed;
            }
        }
        most
    }

    /// Calls `free` for every pending block once; `free` returns whether it has freed the block.
    /// With [`Patience::Poll`], skips the queues that another thread is freeing.
    ///
    /// # Errors
    ///
    /// The first error of `free`. The block is still pending.
    pub fn reap(
        &self,
        patience: Patience,
        mut free: impl FnMut(&mut Pending<T>) -> ResourceResult<bool>,
    ) -> ResourceResult<()> {
        let outcomes =
            self.shards.iter().map(|shard| shard.reap(patience, self.bytes_of, &mut free));
        outcomes.fold(Ok(()), ResourceResult::and)
    }

    /// As [`reap`](Self::reap), for the blocks of the home stream `home`.
    ///
    /// # Errors
    ///
    /// As [`reap`](Self::reap).
    pub fn reap_of(
        &self,
        home: StreamId,
        patience: Patience,
        mut free: impl FnMut(&mut Pending<T>) -> ResourceResult<bool>,
    ) -> ResourceResult<()> {
        self.shard(home).reap(patience, self.bytes_of, &mut free)
    }

    #[inline]
    fn shard(&self, home: StreamId) -> &Shard<T> {
        &self.shards[home.slot() % self.shards.len()]
    }
}

impl<T> Shard<T> {
    fn new() -> Self {
        let queue = ShardQueue { pending: PendingQueue::default(), bytes: 0, unpolled: 0 };
        Self { queue: Mutex::new(queue), len: AtomicUsize::new(0), freeing: Mutex::default() }
    }

    fn reap(
        &self,
        patience: Patience,
        bytes_of: fn(&T) -> u64,
        free: &mut impl FnMut(&mut Pending<T>) -> ResourceResult<bool>,
    ) -> ResourceResult<()> {
        let mut outcome = Ok(());
        if self.is_empty() {
            return outcome;
        }
        let Some(_alone) = patience.lock(&self.freeing) else { return outcome };
        let left = self.queue().pending.len();
        for _ in 0..left {
            let Some(mut oldest) = self.queue().pending.pop() else { break };
            let being_freed = self.begin_free(bytes_of, &oldest);
            match free(&mut oldest) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
            being_freed.push_again(oldest);
        }
        outcome
    }

    fn begin_free(&self, bytes_of: fn(&T) -> u64, block: &Pending<T>) -> BeingFreed<'_, T> {
        BeingFreed { shard: self, bytes: bytes_of(&block.value) }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    fn queue(&self) -> MutexGuard<'_, ShardQueue<T>> {
        lock(&self.queue)
    }
}

impl<T> BeingFreed<'_, T> {
    /// Adds the block again, as the newest.
    fn push_again(self, block: Pending<T>) {
        self.shard.queue().pending.push(block);
        std::mem::forget(self);
    }
}

impl<T> Drop for BeingFreed<'_, T> {
    fn drop(&mut self) {
        self.shard.queue().bytes -= self.bytes;
        self.shard.len.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T> ShardQueue<T> {
    /// Removes the oldest block, if it is ready.
    fn pop_if(&mut self, is_ready: impl Fn(&Pending<T>) -> bool) -> Option<Pending<T>> {
        let oldest = self.pending.oldest()?;
        self.pending.get(oldest).filter(|oldest| is_ready(oldest))?;
        self.pending.remove(oldest)
    }
}
