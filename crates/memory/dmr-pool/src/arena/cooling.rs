//! The cooling chunks of an arena: freed, and one other stream has used each last.
//!
//! Most chunks that another stream has used are free again soon, and nothing looks for them
//! meanwhile. So they wait in a ring, in the order in which they were freed, and not in the queue
//! and the bins of the pending chunks. What looks at more of an arena than its warm chunks finds
//! them there all the same: [`Arena::lock`](super::Arena::lock) makes them pending first.

use dmr_core::StreamPoolId;
use dmr_core::ledger::UseId;
use dmr_streams::uses::{Dependencies, DependencyOrder, UseTable};

use super::{Locked, State};
use crate::heap::{AcquiredChunk, WarmChunk};
use crate::recorded;

/// The most cooling chunks of an arena: a power of two.
const MOST: u32 = 128;
/// The number of chunks that are added between two polls.
const BATCH: u32 = 64;
/// The number of newest chunks that are not polled: the device has had no time for them.
const YOUNG: u32 = 8;
/// The number of chunks from which each that is added frees others.
const MANY: u32 = MOST / 4 * 3;

#[derive(Debug)]
pub(crate) struct Cooling {
    /// A chunk is at its number modulo [`MOST`].
    chunks: Box<[Option<CoolingChunk>; MOST as usize]>,
    /// The number of the oldest chunk.
    oldest: u32,
    /// The number of the next chunk.
    next: u32,
    /// Chunks that were added since the last poll.
    unpolled: u32,
}

/// A chunk that is free after one use of another stream.
#[derive(Debug)]
pub(crate) struct CoolingChunk {
    pub(crate) chunk: WarmChunk,
    pub(crate) units: u32,
    pub(crate) after: UseId,
}

impl Default for Cooling {
    fn default() -> Self {
        let chunks = Box::new([const { None }; MOST as usize]);
        Self { chunks, oldest: 0, next: 0, unpolled: 0 }
    }
}

impl Cooling {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    fn len(&self) -> u32 {
        self.next.wrapping_sub(self.oldest)
    }

    /// Adds a chunk. There is room for it.
    fn push(&mut self, added: CoolingChunk) {
        self.chunks[(self.next % MOST) as usize] = Some(added);
        self.next = self.next.wrapping_add(1);
        self.unpolled += 1;
    }

    fn oldest(&self) -> Option<&CoolingChunk> {
        self.chunks[(self.oldest % MOST) as usize].as_ref()
    }

    fn pop(&mut self) -> Option<CoolingChunk> {
        let oldest = self.chunks[(self.oldest % MOST) as usize].take()?;
        self.oldest = self.oldest.wrapping_add(1);
        Some(oldest)
    }

    /// Returns the use to poll, if a poll is due: it covers the older ones of its stream.
    fn due_for_poll(&mut self) -> Option<UseId> {
        if self.unpolled < BATCH || self.len() <= YOUNG {
            return None;
        }
        self.unpolled = 0;
        let polled = self.next.wrapping_sub(1 + YOUNG);
        self.chunks[(polled % MOST) as usize].as_ref().map(|chunk| chunk.after)
    }
}

impl Locked<'_> {
    /// Adds a chunk of this arena. Returns the use to poll then, if a poll is due.
    pub(crate) fn cool(&mut self, added: CoolingChunk, uses: UseTable<'_>) -> Option<UseId> {
        if self.cooling.len() >= MANY {
            self.settle_cooling(2, uses);
        }
        if self.cooling.len() == MOST
            && let Some(oldest) = self.cooling.pop()
            && let Some(pool) = self.arena.home.pool()
        {
            self.make_pending(oldest, pool);
        }
        if self.cooling.is_empty() {
            self.heap.set_changed();
        }
        self.cooling.push(added);
        self.cooling.due_for_poll()
    }

    /// Makes the oldest cooling chunks warm, up to `most`, as long as the arena's stream is ordered
    /// after the use of each.
    pub(crate) fn settle_cooling(&mut self, most: u32, uses: UseTable<'_>) {
        let home = self.arena.home;
        for _ in 0..most {
            let Some(oldest) = self.cooling.oldest() else { return };
            let order = uses.order_of_use(home, oldest.after);
            if order == DependencyOrder::Unordered {
                return;
            }
            let Some(CoolingChunk { mut chunk, units, .. }) = self.cooling.pop() else { return };
            if order == DependencyOrder::Before {
                // Another stream comes after that use by coming after this stream.
                chunk.since = uses.submitted(home);
            }
            if self.cooling.is_empty() {
                self.heap.set_changed();
            }
            recorded::ready(chunk.address, units, home);
            self.heap.release_for_reuse(units, chunk);
        }
    }

    /// Returns whether there are cooling chunks.
    #[inline(always)]
    pub(crate) fn has_cooling(&self) -> bool {
        !self.cooling.is_empty()
    }

    /// Acquires a chunk of at least this size, after some of the cooling chunks have become warm.
    #[inline(never)]
    pub(crate) fn acquire_cooled(
        &mut self,
        units: u32,
        uses: UseTable<'_>,
    ) -> Option<AcquiredChunk> {
        self.settle_cooling(4, uses);
        self.heap.acquire(units)
    }

    /// Makes all cooling chunks pending.
    #[inline(never)]
    pub(super) fn end_cooling(&mut self) {
        let Some(pool) = self.arena.home.pool() else { return };
        while let Some(chunk) = self.cooling.pop() {
            self.make_pending(chunk, pool);
        }
    }
}

impl State {
    fn make_pending(&mut self, cooling: CoolingChunk, pool: StreamPoolId) {
        let CoolingChunk { chunk, after, .. } = cooling;
        let since = chunk.since;
        let id = self.heap.restore(chunk);
        self.push(id, Dependencies::on_use(pool, after), since);
    }
}
