//! A stream's arena: its spans, and the free and pending chunks cut from them.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `cooling` | chunks that were freed and that one other stream may still use |
//! | `pending` | chunks that were freed and may still be used by other streams |
//! | `spans` | what chunks are cut from, and what is mapped where |
//! | `transfer` | a chunk on its way between its arena and a block |

pub(crate) mod cooling;
mod pending;
mod spans;
mod transfer;

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmr_core::{AllocTag, StreamId};
use dmr_core::{SpinLock, SpinLockGuard};
use dmr_streams::uses::{FreeSlot, PendingQueue};

use cooling::Cooling;
pub(crate) use transfer::{ChunkLocation, FreedChunk, Placement, RetiredChunk};

use crate::heap::{ChunkId, Heap, UNIT, smallest_of_bin};
use crate::ladder::{LadderStep, StepCounts};
use crate::span::Span;

/// An arena. Its lock is never held across a driver call, nor while more than some thousand chunks
/// are looked at; threads of other streams lock it only when their own arena has no room.
///
/// *Free* means that the arena's own stream may use a chunk without waiting. Another stream may use
/// the chunk after the work that had been submitted to the arena's stream when the chunk became
/// free.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Arena {
    /// The arena's stream.
    pub(crate) home: StreamId,
    state: SpinLock<State>,
    hints: Hints,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) heap: Heap,
    cooling: Cooling,
    /// Chunks that the arena's stream may not use yet without waiting.
    pub(crate) pending: PendingQueue<ChunkId>,
    /// Units of the pending chunks.
    pub(crate) pending_units: u64,
    /// Chunks that became pending since the last poll.
    pub(crate) unpolled: usize,
    pub(crate) spans: Vec<Span>,
    /// Bytes of a page; 0 in a pool over blocks.
    pub(crate) page: u64,
    /// Addresses of the pages that are leaving.
    pub(crate) leaving: BTreeSet<u64>,
    pub(crate) counts: Counts,
    /// Blocks that were allocated. Not beside the counts of bytes: the compiler would add to both
    /// at once, with more instructions.
    pub(crate) blocks: u64,
    /// Chunks that its stream acquired by a step of the ladder.
    pub(crate) steps: StepCounts,
    /// Chunks that it borrowed from other arenas since it last looked for a page of its own
    /// instead.
    loans: u32,
    /// The fewest live bytes for which the hint is exact enough.
    live_from: u64,
    /// The most live bytes for which it is, less `live_from`.
    live_range: u64,
    exactness: u32,
    /// The thread that has locked it last while the process recorded.
    recorded_by: u64,
}

/// Blocks and bytes, as requested, since the pool was made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Bytes of blocks that were not deallocated.
    pub(crate) live: u64,
    /// Bytes of blocks that were deallocated while a window was open, and are not freed yet.
    pub(crate) retired: u64,
    /// Bytes that were allocated, or by which blocks have grown.
    pub(crate) allocated: u64,
}

/// The chunk that an allocation needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) units: u32,
    /// The bytes of the block; 0 if the memory is reserved for later blocks.
    pub(crate) bytes: u64,
    /// The tag of the block. Memory that is taken from upstream for it gets the tag, and keeps it.
    pub(crate) tag: AllocTag,
}

impl Request {
    /// Returns the bytes of the chunk.
    pub(crate) fn needed(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}

/// The state of the arena when it was last unlocked, approximately. Other threads read it without
/// the lock; it has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Hints {
    /// A size in the bin of the largest free chunk; 0 if there is none.
    largest: AtomicU32,
    /// 1 if there are pending or cooling chunks.
    pending: AtomicU32,
    /// Bytes of live blocks, up to 1 part in 2 to the power of [`State::exactness`], or to
    /// [`TOLERANCE`].
    live: AtomicU64,
    /// Bytes of all blocks so far, when the hints were last updated.
    allocated: AtomicU64,
}

/// A locked arena's state. Updates the hints when it is unlocked.
pub(crate) struct Locked<'a> {
    pub(crate) arena: &'a Arena,
    state: SpinLockGuard<'a, State>,
}

/// Bytes by which the hint of an arena's live bytes may always be wrong, so that a small block that
/// is allocated and freed again and again does not change the hint each time.
const TOLERANCE: u64 = 256 << 10;

/// Loans that cost about as much as moving a page does: each is a search of other arenas, with
/// queries.
const LOANS_OF_A_PAGE: u32 = 64;

impl Arena {
    /// Makes an arena whose hint of the live bytes is exact up to 1 part in 2 to the power of
    /// `exactness`, or up to the tolerance of small blocks.
    pub(crate) fn new(home: StreamId, exactness: u32, page: u64) -> Self {
        let state = State { exactness, page, ..State::default() };
        Self { home, state: SpinLock::new(state), hints: Hints::default() }
    }

    /// Locks the arena.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        let mut locked = self.lock_for_block();
        locked.settle();
        locked
    }

    /// Locks the arena, for its warm and its cooling chunks and [`Heap::acquire`] only: the chunk
    /// that was freed last may not be merged yet, and cooling chunks are not among the pending
    /// ones.
    #[inline(always)]
    pub(crate) fn lock_for_block(&self) -> Locked<'_> {
        let mut state = self.state.lock();
        dmr_recorder::hooks::take_over(&mut state.recorded_by);
        #[cfg(test)]
        crate::tests::work::locked();
        Locked { arena: self, state }
    }

    /// Locks the arena, unless another thread has locked it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let mut state = self.state.try_lock()?;
        dmr_recorder::hooks::take_over(&mut state.recorded_by);
        #[cfg(test)]
        crate::tests::work::locked();
        let mut locked = Locked { arena: self, state };
        locked.settle();
        Some(locked)
    }

    /// Returns whether the arena may have a chunk for a request of `units`.
    #[inline]
    pub(crate) fn may_have(&self, units: u32) -> bool {
        self.hints.largest.load(Ordering::Relaxed) >= smallest_of_bin(units)
            || self.hints.pending.load(Ordering::Relaxed) > 0
    }

    /// Returns about the bytes of its live blocks.
    pub(crate) fn live(&self) -> u64 {
        self.hints.live.load(Ordering::Relaxed)
    }

    /// Returns about the bytes of all its blocks so far.
    pub(crate) fn allocated(&self) -> u64 {
        self.hints.allocated.load(Ordering::Relaxed)
    }
}

impl State {
    /// Counts an allocation.
    #[inline(always)]
    pub(crate) fn count_block(&mut self, bytes: u64) {
        self.counts.live += bytes;
        self.blocks += 1;
        self.counts.allocated += bytes;
    }

    /// Counts bytes of a chunk's block as deallocated and as freed, and keeps its use slot for the
    /// chunk's next block.
    pub(crate) fn end_block(
        &mut self,
        chunk: ChunkId,
        slot: Option<FreeSlot>,
        deallocated: u64,
        freed: u64,
    ) {
        self.counts.live -= deallocated;
        self.counts.retired = self.counts.retired + deallocated - freed;
        if let Some(slot) = slot {
            self.heap.keep_slot(chunk, slot);
        }
    }

    /// Counts a step of the ladder that has found a chunk, which is in another arena if it is a
    /// loan.
    pub(crate) fn count_step(&mut self, step: LadderStep, is_loan: bool) {
        self.steps.count(step);
        self.loans += u32::from(is_loan);
    }

    /// Restarts the count of borrowed chunks if it is so large that a page of the stream's own
    /// costs less; returns whether it was.
    pub(crate) fn restart_many_loans(&mut self) -> bool {
        let exceeds_page_cost = self.loans >= LOANS_OF_A_PAGE;
        if exceeds_page_cost {
            self.loans = 0;
        }
        exceeds_page_cost
    }
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(test)]
        crate::tests::work::unlocks();
        // Every allocation and free ends here. While the live bytes are in the range for which the
        // hint is exact enough, this costs a subtraction and a comparison.
        let live = self.state.counts.live;
        if live.wrapping_sub(self.state.live_from) > self.state.live_range {
            self.update_live(live);
        }
        if self.state.heap.has_changed() {
            self.update_hints();
        }
    }
}

impl Locked<'_> {
    /// Makes all chunks free or pending that are neither.
    #[inline]
    fn settle(&mut self) {
        if !self.cooling.is_empty() {
            self.end_cooling();
        }
        self.heap.merge_recent();
    }

    /// Updates the hints that follow from the counts.
    #[inline]
    fn update_live(&mut self, live: u64) {
        let state = &mut *self.state;
        let hints = &self.arena.hints;
        hints.live.store(live, Ordering::Relaxed);
        hints.allocated.store(state.counts.allocated, Ordering::Relaxed);
        let tolerance = (live >> state.exactness).max(TOLERANCE);
        state.live_from = live.saturating_sub(tolerance);
        state.live_range = live + tolerance - state.live_from;
    }

    /// Updates the hints that follow from the free and the pending chunks.
    #[inline(never)]
    fn update_hints(&mut self) {
        let state = &mut *self.state;
        let hints = &self.arena.hints;
        store_if_changed(&hints.largest, state.heap.largest());
        let any_pending = !state.pending.is_empty() || !state.cooling.is_empty();
        store_if_changed(&hints.pending, u32::from(any_pending));
        hints.allocated.store(state.counts.allocated, Ordering::Relaxed);
        state.heap.clear_changed();
    }
}

/// Stores a hint if it has changed: each store costs the threads that read it a cache miss.
#[inline]
fn store_if_changed(hint: &AtomicU32, now: u32) {
    if hint.load(Ordering::Relaxed) != now {
        hint.store(now, Ordering::Relaxed);
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
