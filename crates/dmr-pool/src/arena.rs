//! The memory that one stream was the first to have: its free and its pending chunks, and the spans
//! that they are cut from.

mod hints;

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use dmr_core::{AllocTag, StreamId};
use dmr_streams::SpinLock;
use dmr_streams::uses::{Dependencies, DependencyOrder, FreeSlot, Pending, PendingQueue, UseTable};

use crate::acquire::{LadderStep, StepCounts};
use crate::counts::Counts;
use crate::heap::{AcquiredChunk, ChunkId, Heap, UNIT, smallest_of_bin};
use crate::span::Span;
use hints::Hints;
pub(crate) use hints::Locked;

/// An arena. Its lock is never held across a driver call, nor while more than some thousand chunks
/// are looked at; threads of other streams lock it only when their own arena has no room.
///
/// *Free* means that the arena's own stream may use a chunk without waiting. Another stream may use the
/// chunk after the work that had been submitted to the arena's stream when the chunk became free.
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
    /// Chunks that its stream acquired by a step of the ladder.
    pub(crate) steps: StepCounts,
    /// Chunks that it borrowed from other arenas since it last looked for a page of its own instead.
    loans: u32,
    /// By chunk.
    block_records: Vec<Box<[BlockRecord; RECORDS]>>,
    /// The fewest live bytes for which the hint is exact enough.
    live_from: u64,
    /// The most live bytes for which it is, less `live_from`.
    live_range: u64,
    exactness: u32,
}

/// What a chunk keeps from one block in it to the next.
#[derive(Debug)]
struct BlockRecord {
    /// The use slot for the next block; `None` while there is a block.
    slot: Option<FreeSlot>,
    /// The tag of the last block.
    tag: AllocTag,
}

impl Default for BlockRecord {
    fn default() -> Self {
        Self { slot: None, tag: AllocTag::UNTAGGED }
    }
}

/// Block records of a row. They are never moved: for half a million of them that would take milliseconds.
const RECORDS: usize = 1024;

/// Returns the row and the index of a chunk's block record.
#[inline(always)]
fn block_record_index(chunk: ChunkId) -> (usize, usize) {
    let at = chunk.get() as usize;
    (at / RECORDS, at % RECORDS)
}

/// The chunk that an allocation needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) units: u32,
    /// The bytes of the block; 0 if the memory is reserved for later blocks.
    pub(crate) bytes: u64,
    /// Whether the block is to have a span of its own.
    pub(crate) is_dedicated: bool,
}

impl Request {
    /// Returns the bytes of the chunk.
    pub(crate) fn needed(&self) -> u64 {
        u64::from(self.units) * UNIT
    }
}

/// When pending chunks are polled.
struct Pace {
    /// The number of chunks that become pending between two polls.
    batch: usize,
    /// The number of newest chunks that are not polled: the device has had no time for them.
    young: usize,
}

const PACE: Pace = Pace { batch: 16, young: 16 };
/// The pace while the pending chunks are little memory: queries are expensive, and so are many
/// events in turn.
const PACE_OF_LITTLE: Pace = Pace { batch: 64, young: 8 };
/// Units that are little memory: 16 MiB.
const LITTLE: u64 = (16 << 20) / UNIT;
/// The most chunks that become free with each that becomes pending: more than one, so that pending
/// chunks do not gather.
const AT_ONCE: usize = 2;
/// The most pending chunks that are looked at while the arena is locked.
const AT_A_TIME: usize = 512;
/// Loans that cost about as much as moving a page does: each is a search of other arenas, with queries.
const LOANS_OF_A_PAGE: u32 = 64;
/// The most pending chunks that a search tries.
const TRIES: usize = 256;

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
        locked.heap.merge_recent();
        locked
    }

    /// Locks the arena, for [`State::acquire`] and [`State::release_for_reuse`] only: the chunk that was freed last may
    /// not be in the heap yet.
    #[inline(always)]
    pub(crate) fn lock_for_block(&self) -> Locked<'_> {
        let state = self.state.lock();
        #[cfg(test)]
        crate::work::locked();
        Locked { state, hints: &self.hints }
    }

    /// Locks the arena, unless another thread has locked it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let mut state = self.state.try_lock()?;
        #[cfg(test)]
        crate::work::locked();
        state.heap.merge_recent();
        Some(Locked { state, hints: &self.hints })
    }

    /// Returns the dependencies of its pending chunks. Unlocks the arena now and then.
    pub(crate) fn pending_uses(&self) -> Dependencies {
        let mut left = self.lock().pending.len();
        let mut uses = Dependencies::default();
        self.lock().pending.restart();
        while left > 0 {
            let mut state = self.lock();
            for _ in 0..left.min(AT_A_TIME) {
                let next = state.pending.advance().and_then(|entry| state.pending.get(entry));
                next.into_iter().for_each(|pending| uses.add_all(&pending.after));
            }
            left = left.saturating_sub(AT_A_TIME);
        }
        uses
    }

    /// Frees all pending chunks that its stream may use without waiting. Unlocks the arena now and
    /// then.
    pub(crate) fn settle_everything(&self, uses: UseTable<'_>) {
        let mut left = self.lock().pending.len();
        while left > 0 {
            self.lock().settle_all(self.home, uses);
            left = left.saturating_sub(AT_A_TIME);
        }
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
    /// Removes the use slot that a chunk's last block has left, for its next block, which has this tag.
    /// `None` if the chunk has had no block.
    #[inline(always)]
    pub(crate) fn use_slot(&mut self, chunk: ChunkId, tag: AllocTag) -> Option<FreeSlot> {
        let record = self.block_record(chunk)?;
        record.tag = tag;
        record.slot.take()
    }

    /// Keeps the use slot for the chunk's next block. (Chunks that are merged and cut again get the
    /// same ids, and so the same slots.)
    #[inline(always)]
    pub(crate) fn keep_slot(&mut self, chunk: ChunkId, slot: FreeSlot) {
        if let Some(record) = self.block_record(chunk) {
            record.slot = Some(slot);
        }
    }

    /// Adds the block record of a chunk, for a block with this tag.
    pub(crate) fn add_block_record(&mut self, chunk: ChunkId, tag: AllocTag) {
        while self.block_records.len() <= chunk.get() as usize / RECORDS {
            let row = std::iter::repeat_with(BlockRecord::default).take(RECORDS);
            self.block_records.extend(row.collect::<Box<[_]>>().try_into().ok());
        }
        if let Some(record) = self.block_record(chunk) {
            record.tag = tag;
        }
    }

    /// Returns the tag of the chunk's last block.
    pub(crate) fn tag(&self, chunk: ChunkId) -> AllocTag {
        let (row, at) = block_record_index(chunk);
        self.block_records.get(row).map_or(AllocTag::UNTAGGED, |records| records[at].tag)
    }

    /// Removes all use slots.
    pub(crate) fn remove_slots(&mut self) -> impl Iterator<Item = FreeSlot> {
        let rows = std::mem::take(&mut self.block_records).into_iter();
        rows.flat_map(|records| *records).filter_map(|record| record.slot)
    }

    #[inline(always)]
    fn block_record(&mut self, chunk: ChunkId) -> Option<&mut BlockRecord> {
        let (row, at) = block_record_index(chunk);
        Some(&mut self.block_records.get_mut(row)?[at])
    }

    /// Acquires a free chunk.
    #[inline(always)]
    pub(crate) fn acquire(&mut self, request: Request) -> Option<AcquiredChunk> {
        self.heap.acquire(request.units)
    }

    /// Frees an acquired chunk.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: ChunkId, since: u64) {
        if !self.heap.shelve(id, since) {
            self.release_slowly(id, since);
        }
    }

    /// Frees an acquired chunk as [`release`](Self::release) does, and holds it ready for the next request
    /// of its size.
    #[inline(always)]
    pub(crate) fn release_for_reuse(&mut self, id: ChunkId, since: u64) {
        if !self.heap.shelve(id, since) {
            self.release_for_reuse_slowly(id, since);
        }
    }

    #[inline(never)]
    fn release_for_reuse_slowly(&mut self, id: ChunkId, since: u64) {
        self.heap.release_for_reuse(id, since);
    }

    #[inline(never)]
    fn release_slowly(&mut self, id: ChunkId, since: u64) {
        self.heap.merge(id, since);
    }

    /// Counts a step of the ladder that has found a chunk, which is in another arena if it is a loan.
    pub(crate) fn count_step(&mut self, step: LadderStep, is_loan: bool) {
        self.steps.count(step);
        self.loans += u32::from(is_loan);
    }

    /// Returns whether the arena's stream has borrowed so many chunks that a page of its own costs less,
    /// and restarts the count if it has.
    pub(crate) fn lives_on_loans(&mut self) -> bool {
        let is_dear = self.loans >= LOANS_OF_A_PAGE;
        if is_dear {
            self.loans = 0;
        }
        is_dear
    }

    /// Makes an acquired chunk pending until the arena's stream is ordered after all of `after`. Other
    /// streams may use it after that and after the work that had been submitted to the arena's stream up
    /// to `since`.
    #[inline]
    pub(crate) fn push(&mut self, chunk: ChunkId, after: Dependencies, since: u64) {
        if self.pending.is_empty() {
            self.heap.set_changed();
        }
        self.pending_units += u64::from(self.heap.range(chunk).1);
        let entry = self.pending.push(Pending { value: chunk, after });
        self.heap.set_pending(chunk, since, entry);
        self.unpolled += 1;
    }

    /// Frees the oldest pending chunks, up to a few, as long as `stream`, whose arena this is, is ordered
    /// after their dependencies.
    #[inline]
    pub(crate) fn settle_some(&mut self, stream: StreamId, uses: UseTable<'_>) {
        for _ in 0..AT_ONCE {
            let Some(oldest) = self.pending.oldest() else { return };
            if !self.settle(oldest, stream, uses) {
                return;
            }
        }
    }

    /// Returns the dependencies to poll, if a poll is due: those of the newest chunk that is not young,
    /// whose uses cover all earlier ones of their streams, and those of the oldest chunk.
    #[inline]
    pub(crate) fn due_for_poll(&mut self) -> Option<[Dependencies; 2]> {
        let is_little = self.pending_units <= LITTLE;
        let Pace { batch, young } = if is_little { PACE_OF_LITTLE } else { PACE };
        if self.unpolled < batch || self.pending.len() < batch + young {
            return None;
        }
        self.unpolled = 0;
        let due = self.pending.newest_first().nth(young)?;
        Some([due.after.clone(), self.pending.iter().next()?.after.clone()])
    }

    /// Looks at the next few hundred pending chunks, and frees those whose dependencies `stream`, whose
    /// arena this is, is ordered after; returns whether there were any. The next call continues behind them.
    pub(crate) fn settle_all(&mut self, stream: StreamId, uses: UseTable<'_>) -> bool {
        let before = self.pending.len();
        if before <= AT_A_TIME {
            self.pending.restart();
        }
        for _ in 0..before.min(AT_A_TIME) {
            let Some(next) = self.pending.advance() else { break };
            self.settle(next, stream, uses);
        }
        self.pending.len() < before
    }

    /// Returns the dependencies of the newest pending chunks, some hundreds of them.
    pub(crate) fn newest_uses(&self) -> Dependencies {
        let newest = self.pending.newest_first().take(AT_A_TIME);
        newest.map(|pending| &pending.after).collect()
    }

    /// Returns the dependencies of the oldest pending chunks, some hundreds of them.
    pub(crate) fn oldest_uses(&self) -> Dependencies {
        self.pending.iter().take(AT_A_TIME).map(|pending| &pending.after).collect()
    }

    /// Acquires a pending chunk that fits and whose dependencies and free number `predicate` accepts.
    /// Tries only some of those that fit.
    pub(crate) fn acquire_pending(
        &mut self,
        request: Request,
        predicate: impl Fn(&Dependencies, u64) -> bool,
    ) -> Option<Pending<ChunkId>> {
        let units = request.units;
        let (mut size, mut tries) = (units, 0);
        let most = units.saturating_add(units / 8);
        loop {
            let mut found = None;
            let mut larger = None;
            for (chunk, entry) in self.heap.pending_of(size) {
                #[cfg(test)]
                crate::work::look();
                let AcquiredChunk { units, since, .. } = self.heap.acquired(chunk);
                if units > most || tries == TRIES {
                    return None;
                }
                (tries, larger) = (tries + 1, Some(units + 1));
                let is_accepted = |pending: &Pending<ChunkId>| predicate(&pending.after, since);
                if self.pending.get(entry).is_some_and(is_accepted) {
                    found = Some(entry);
                    break;
                }
            }
            match found {
                Some(entry) => return self.remove_pending(entry),
                None => size = larger?,
            }
        }
    }

    /// Finds the oldest pending chunk of at least `units` of which `part` returns a part. Returns
    /// its index in the queue, and the part.
    pub(crate) fn find_pending<T>(
        &self,
        units: u32,
        part: impl Fn(ChunkId) -> Option<T>,
    ) -> Option<(u32, T)> {
        let mut oldest = None;
        self.heap.visit_pending(units, |chunk, entry| {
            let number = self.pending.number(entry);
            if oldest.as_ref().is_none_or(|&(_, least, _)| number < least)
                && let Some(part) = part(chunk)
            {
                oldest = Some((entry, number, part));
            }
        });
        oldest.map(|(entry, _, part)| (entry, part))
    }

    /// Acquires the pending chunk with this index in the queue.
    #[inline]
    pub(crate) fn remove_pending(&mut self, entry: u32) -> Option<Pending<ChunkId>> {
        let pending = self.pending.remove(entry)?;
        if self.pending.is_empty() {
            self.heap.set_changed();
        }
        self.heap.set_acquired(pending.value);
        self.pending_units -= u64::from(self.heap.range(pending.value).1);
        Some(pending)
    }

    /// Frees a pending chunk, if `stream` is ordered after its dependencies.
    #[inline]
    fn settle(&mut self, entry: u32, stream: StreamId, uses: UseTable<'_>) -> bool {
        #[cfg(test)]
        crate::work::look();
        let Some(pending) = self.pending.get(entry) else { return false };
        let order = uses.order_of(stream, &pending.after);
        if order == DependencyOrder::Unordered {
            return false;
        }
        let Some(Pending { value: chunk, .. }) = self.remove_pending(entry) else { return false };
        let since = match order {
            // No stream has to be ordered after work that is known to be done.
            DependencyOrder::Done => self.heap.acquired(chunk).since,
            _ => uses.submitted(stream),
        };
        self.release(chunk, since);
        true
    }
}
