//! Blocks that other streams have used, kept until the host knows that they are done with them.
//!
//! A free on the home stream makes the driver's next allocation there cheap, and it is allowed as
//! soon as all other users are done. Asking the driver costs more than the free; but one answer
//! counts for all earlier uses of the same stream. So frees are gathered, and one question is
//! asked for many.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use dmr_streams::uses::LastUse;
use smallvec::SmallVec;

use crate::retired::{Retired, RetiredBlocks};

/// How many blocks one question is asked for. As many younger ones are left alone meanwhile: their
/// users have had no time.
const BATCH: usize = 16;
/// How many blocks are freed after a push: more at a time, and the driver's next allocations are
/// dearer.
const AT_ONCE: usize = 2;
/// How many blocks a shard keeps while their users are not done.
const MOST_BLOCKS: usize = 8 * BATCH;
/// How many bytes all shards keep together.
const MOST_BYTES: u64 = 64 << 20;
/// A shard may have so many bytes more or less than the sum over all says: so small blocks do not
/// touch what threads share.
const GRAIN: u64 = 64 << 10;
/// Larger blocks are not kept.
const LARGEST: u64 = MOST_BYTES / 8;

/// A retired block, and what a free on its home stream would have to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub(crate) block: Retired,
    pub(crate) last: LastUse,
}

/// The blocks, by home stream: threads that work on streams of their own do not meet here.
pub(crate) struct Deferred {
    shards: Box<[Shard]>,
    /// The bytes in the queues, but for what is in their `unsaid`.
    bytes: AtomicI64,
    /// A bit for each shard that may have blocks, or may have some in hand.
    used: AtomicU64,
}

const SHARDS: usize = u64::BITS as usize;

/// On cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    /// Never locked across a driver call.
    queue: Mutex<Queue>,
    /// Held by whoever frees some of it, so that a reap that waits also waits for those.
    settling: Mutex<()>,
}

/// Oldest first.
#[derive(Default)]
struct Queue {
    blocks: VecDeque<Late>,
    /// Bytes added, less those gone, of which the sum over all shards does not know yet.
    unsaid: i64,
    /// Blocks added since the driver was last asked.
    added: usize,
}

impl Deferred {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, bytes: AtomicI64::new(0), used: AtomicU64::new(0) }
    }

    /// Whether a block of this size is kept here.
    pub(crate) fn takes(bytes: u64) -> bool {
        bytes <= LARGEST
    }

    /// Whether there is none, and none in anybody's hand; `false` also where that is not known
    /// before the next [`give_up_all`](Self::give_up_all). One load.
    pub(crate) fn is_empty(&self) -> bool {
        self.used.load(Ordering::SeqCst) == 0
    }

    /// Keeps a block. Then calls `free` on the oldest of its shard that are `ready`, a few at a
    /// time; for every batch, calls `ask` before that on those whose answer says most. What makes
    /// it too full goes to `retired`: `true`. If another thread frees, that is all there is to do.
    pub(crate) fn add(
        &self,
        late: Late,
        ask: impl FnMut(Late),
        ready: impl Fn(&Late) -> bool,
        free: impl FnMut(Retired),
        retired: &RetiredBlocks,
    ) -> bool {
        let number = late.block.id.alloc_stream().slot() % SHARDS;
        let shard = &self.shards[number];
        let mut queue = lock(&shard.queue);
        queue.blocks.push_back(late);
        queue.added += 1;
        self.count(&mut queue, late.block.bytes as i64);
        if self.used.load(Ordering::Relaxed) & 1 << number == 0 {
            self.used.fetch_or(1 << number, Ordering::SeqCst);
        }
        let is_full = self.is_full();
        if !is_full && !queue.has_work(&ready) {
            return false;
        }
        // Not waited for, so it may be taken under the queue's lock.
        let _alone = match shard.settling.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let asked = queue.ask_for(is_full);
        let has_asked = asked.is_some();
        if let Some(asked) = asked {
            drop(queue);
            asked.into_iter().for_each(ask);
            queue = lock(&shard.queue);
        }
        let taken = queue.take(is_full, has_asked, ready);
        let going: u64 = taken.iter().map(|block| block.bytes).sum();
        self.count(&mut queue, -(going as i64));
        let too_many = match queue.blocks.len() {
            all if self.is_full() => all,
            all if all >= MOST_BLOCKS => all / 2,
            _ => 0,
        };
        self.give_up(&mut queue, too_many, retired);
        drop(queue);
        taken.into_iter().for_each(free);
        too_many > 0
    }

    /// Moves all to `retired`. If `wait`, also waits for what another thread has in hand.
    pub(crate) fn give_up_all(&self, wait: bool, retired: &RetiredBlocks) {
        for (number, shard) in self.shards.iter().enumerate() {
            if self.used.load(Ordering::SeqCst) & 1 << number == 0 {
                continue;
            }
            let alone = match wait {
                true => Some(lock(&shard.settling)),
                false => shard.settling.try_lock().ok(),
            };
            let mut queue = lock(&shard.queue);
            let all = queue.blocks.len();
            self.give_up(&mut queue, all, retired);
            if alone.is_some() {
                self.used.fetch_and(!(1 << number), Ordering::SeqCst);
            }
        }
    }

    /// Under the queue's lock, so that a block is never in neither place.
    fn give_up(&self, queue: &mut Queue, count: usize, retired: &RetiredBlocks) {
        let mut gone = 0;
        for Late { block, .. } in queue.blocks.drain(..count) {
            retired.push(block);
            gone += block.bytes as i64;
        }
        self.count(queue, -gone);
    }

    /// Under the queue's lock.
    fn count(&self, queue: &mut Queue, change: i64) {
        queue.unsaid += change;
        if queue.unsaid.unsigned_abs() >= GRAIN {
            self.bytes.fetch_add(std::mem::take(&mut queue.unsaid), Ordering::Relaxed);
        }
    }

    /// Whether more may be kept than should be.
    fn is_full(&self) -> bool {
        const SAID: u64 = MOST_BYTES - SHARDS as u64 * GRAIN;
        self.bytes.load(Ordering::Relaxed) > SAID as i64
    }
}

impl Queue {
    /// Whether there is somebody to ask for, or to free, or too much.
    fn has_work(&self, ready: impl Fn(&Late) -> bool) -> bool {
        self.is_time() || self.blocks.len() >= MOST_BLOCKS || self.blocks.front().is_some_and(ready)
    }

    fn is_time(&self) -> bool {
        self.added >= BATCH && self.blocks.len() >= 2 * BATCH
    }

    /// Whom to ask for, if it is time: the youngest that has had time, whose answer counts for
    /// all older users of its stream; and the oldest.
    fn ask_for(&mut self, is_full: bool) -> Option<[Late; 2]> {
        let young = if is_full { 0 } else { BATCH };
        let is_time = is_full || self.is_time();
        let due = self.blocks.len().checked_sub(young + 1).filter(|_| is_time)?;
        self.added = 0;
        Some([*self.blocks.get(due)?, *self.blocks.front()?])
    }

    /// The oldest if they are ready: as many as keep up with the pushes. If that makes no room,
    /// any that are ready.
    fn take(
        &mut self,
        is_full: bool,
        has_asked: bool,
        ready: impl Fn(&Late) -> bool,
    ) -> SmallVec<[Retired; AT_ONCE]> {
        let mut taken = SmallVec::new();
        while !is_full
            && taken.len() < AT_ONCE
            && let Some(oldest) = self.blocks.front().filter(|oldest| ready(oldest))
        {
            taken.push(oldest.block);
            self.blocks.pop_front();
        }
        if is_full || (has_asked && taken.is_empty()) {
            self.blocks.retain(|late| {
                let ready = ready(late);
                if ready {
                    taken.push(late.block);
                }
                !ready
            });
        }
        taken
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
