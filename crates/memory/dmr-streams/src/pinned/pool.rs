//! The pool of pinned memory of a stream pool: its blocks, from the allocation until their uses are
//! done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::sync::lock;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockState, DeviceBlock, Generation, MemoryObserver,
    ResourceError, ResourceResult, StreamId, Usage,
};
use smallvec::SmallVec;

use super::PinnedKind;
use super::heap::{Heap, round_up};
use crate::uses::{BlocksInUse, Dependencies, FreeSlot, Patience, Pending, PendingQueue, Released};
use crate::{BlockOwner, StreamPool};

/// The number of blocks that a poll finds in use before it gives up, for each home stream.
const MISSES: usize = 8;

/// The pinned memory of a stream pool.
pub(crate) struct PinnedPool {
    /// Never locked across a driver call.
    state: Mutex<State>,
    /// Blocks that were deallocated with an open window.
    in_use: BlocksInUse<RetiredBlock>,
    /// The observer of the simulated driver, looked up with the first segment.
    pub(super) observer: OnceLock<Option<Arc<dyn MemoryObserver>>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) kinds: [OfKind; PinnedKind::ALL.len()],
    /// Blocks that were deallocated and that the device may still use, by the slot of their home
    /// stream.
    pub(super) pending: BTreeMap<usize, PendingQueue<RetiredBlock>>,
}

/// The segments of one kind, and their accounting.
#[derive(Default)]
pub(super) struct OfKind {
    pub(super) heap: Heap,
    usage: Usage,
}

/// A block that was deallocated and is not free.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetiredBlock {
    pub(super) id: BlockId,
    bytes: u64,
    pub(super) chunk: ChunkOfKind,
}

/// The payload of a block's slot in the use table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ChunkOfKind {
    pub(super) kind: PinnedKind,
    pub(super) id: u32,
}

/// The bytes that a reap has freed, by kind.
pub(super) type FreedBytes = [u64; PinnedKind::ALL.len()];

impl ChunkOfKind {
    fn to_payload(self) -> u64 {
        (self.kind as u64) << u32::BITS | u64::from(self.id)
    }

    fn from_payload(payload: u64) -> Self {
        let kind = PinnedKind::ALL[(payload >> u32::BITS) as usize % PinnedKind::ALL.len()];
        Self { kind, id: payload as u32 }
    }
}

impl PinnedPool {
    pub(crate) fn new(owner: &BlockOwner) -> Self {
        Self { state: Mutex::default(), in_use: BlocksInUse::new(owner), observer: OnceLock::new() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn observer(&self) -> Option<&dyn MemoryObserver> {
        self.observer.get()?.as_deref()
    }

    /// Frees the memory of a block that has left the use table, and whose uses are done.
    fn free(&self, state: &mut State, block: RetiredBlock) {
        if let Some(observer) = self.observer() {
            observer.region_freed(block.id.ptr(), block.id.generation());
        }
        state.count_freed(block);
        state.of(block.chunk.kind).heap.free(block.chunk.id);
    }
}

impl StreamPool {
    /// Allocates a block of pinned memory, in the use table without uses. Its content is
    /// unspecified; every byte has been written.
    pub(super) fn allocate_pinned_block(
        &self,
        kind: PinnedKind,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // First: another thread may have held a lock when the process was forked.
        let home = self.enter(stream)?;
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        let units = round_up(bytes).ok_or_else(|| ResourceError::size_overflow(bytes))?;
        home.refuse_capture()?;
        let chunk = self.allocate_chunk(kind, units)?;
        let generation = Generation::next();
        let pool = self.pinned();
        let payload = ChunkOfKind { kind, id: chunk.id }.to_payload();
        let inserted = self.uses().insert_unused(self.pinned_owner(), generation, &home, payload);
        let slot = inserted.inspect_err(|_| pool.state().of(kind).heap.free(chunk.id))?;
        pool.state().count_allocated(kind, bytes as u64);
        if let Some(observer) = pool.observer() {
            observer.region_allocated(chunk.address, bytes, tag, generation);
        }
        // SAFETY: the chunk is inside of a segment that the driver has allocated, aligned to 256
        // bytes, and of no other block; the device accesses it at the same address. It is freed
        // only when this block was deallocated and the use table has no use of it. The generation
        // is new.
        Ok(unsafe {
            DeviceBlock::from_parts(BlockParts {
                ptr: chunk.address,
                bytes,
                reserved_bytes: chunk.bytes,
                alignment: BLOCK_ALIGNMENT,
                device_ordinal: self.device().ordinal(),
                alloc_stream: home.id(),
                tag,
                generation,
                slot: slot.of_host_memory(),
                state: BlockState::Live,
                part_depth: 0,
            })
        })
    }

    /// Releases a block of this pool; frees it if its uses, and the work submitted to its home
    /// stream, are known to be done. Makes no driver call. On an error nothing has changed.
    pub(super) fn deallocate_pinned_block(
        &self,
        block: &DeviceBlock,
    ) -> ResourceResult<BlockState> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        let id = block.id();
        let bytes = block.bytes() as u64;
        let pool = self.pinned();
        let retired = |payload| {
            let block = RetiredBlock { id, bytes, chunk: ChunkOfKind::from_payload(payload) };
            pool.state().count_retired(block);
            block
        };
        let mut after = Dependencies::default();
        match self.uses().release(self.pinned_owner(), id, &mut after) {
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device().ordinal())),
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::Free { slot, payload } => {
                Ok(self.free_or_pend(retired(payload), slot, &after))
            }
            Released::InUse { payload, .. } => {
                pool.in_use.insert(id, retired(payload));
                self.settle_pinned(Patience::Poll);
                Ok(BlockState::Retired)
            }
        }
    }

    /// Frees the blocks whose uses are done. Returns the bytes.
    ///
    /// # Errors
    ///
    /// The first error; the other blocks were freed all the same.
    pub(super) fn poll_pinned(&self) -> ResourceResult<FreedBytes> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        if self.device().is_lost() {
            return Ok(self.forget_retired());
        }
        self.settle_pinned(Patience::Poll);
        let mut freed = FreedBytes::default();
        let mut outcome = Ok(());
        let homes: SmallVec<[usize; 16]> = self.pinned().state().pending.keys().copied().collect();
        for home in homes {
            outcome = outcome.and(self.poll_home(home, &mut freed));
        }
        match outcome {
            // The query may have found the device lost.
            Err(_) if self.device().is_lost() => {
                let forgotten = self.forget_retired();
                Ok(std::array::from_fn(|kind| freed[kind] + forgotten[kind]))
            }
            outcome => outcome.map(|()| freed),
        }
    }

    /// Frees the blocks of a home stream whose uses are done.
    fn poll_home(&self, home: usize, freed: &mut FreedBytes) -> ResourceResult<()> {
        let pool = self.pinned();
        let uses = self.uses();
        loop {
            let mut oldest: SmallVec<[Dependencies; MISSES]> = SmallVec::new();
            if let Some(queue) = pool.state().pending.get(&home) {
                oldest.extend(queue.iter().take(MISSES).map(|pending| pending.after.clone()));
            }
            let mut outcome = Ok(());
            for after in &oldest {
                outcome = outcome.and(uses.poll(after).map(drop));
            }
            let bytes = self.free_done(home);
            for (freed, bytes) in freed.iter_mut().zip(bytes) {
                *freed += bytes;
            }
            // Another thread may have freed those that were polled.
            if outcome.is_err() || bytes == FreedBytes::default() {
                return outcome;
            }
        }
    }

    /// Frees the blocks of a home stream whose uses are known to be done, up to those behind a few
    /// that are not.
    fn free_done(&self, home: usize) -> FreedBytes {
        let pool = self.pinned();
        let uses = self.uses();
        let mut freed = FreedBytes::default();
        let mut state = pool.state();
        let Some(queue) = state.pending.get_mut(&home) else { return freed };
        let mut done: SmallVec<[RetiredBlock; 16]> = SmallVec::new();
        let mut missed = 0;
        queue.restart();
        for _ in 0..queue.len() {
            let Some(entry) = queue.advance() else { break };
            if queue.get(entry).is_some_and(|pending| uses.is_known_done(&pending.after)) {
                done.extend(queue.remove(entry).map(|pending| pending.value));
            } else {
                missed += 1;
            }
            if missed == MISSES {
                break;
            }
        }
        for block in done {
            self.vacate_retired(block);
            pool.free(&mut state, block);
            freed[block.chunk.kind as usize] += block.bytes;
        }
        freed
    }

    /// Waits for the uses of all retired blocks whose windows are closed, and frees them. Returns
    /// the bytes.
    ///
    /// # Errors
    ///
    /// As [`poll_pinned`](Self::poll_pinned).
    pub(super) fn wait_for_pinned(&self) -> ResourceResult<FreedBytes> {
        self.device().refuse_fork()?;
        if self.device().is_lost() {
            return Ok(self.forget_retired());
        }
        self.settle_pinned(Patience::Wait);
        let after: Dependencies = {
            let state = self.pinned().state();
            state.pending.values().flat_map(PendingQueue::iter).map(|it| &it.after).collect()
        };
        let waited = self.uses().synchronize(&after);
        let polled = self.poll_pinned();
        if self.device().is_lost() { polled } else { waited.and(polled) }
    }

    /// Returns the accounting of a kind; zeros in a forked child.
    pub(super) fn pinned_usage_of(&self, kind: PinnedKind) -> Usage {
        if self.device().is_forked() {
            return Usage::default();
        }
        let mut state = self.pinned().state();
        let OfKind { heap, usage } = state.of(kind);
        usage.reserved = heap.reserved();
        *usage
    }

    /// Makes the blocks pending whose last window has closed, or frees them.
    fn settle_pinned(&self, patience: Patience) {
        self.pinned().in_use.settle(patience, |block| {
            let mut after = Dependencies::default();
            let slot = self.uses().release_retired(self.pinned_owner(), block.id, &mut after);
            if let Some(slot) = slot {
                self.free_or_pend(block, slot, &after);
            }
        });
    }

    /// Frees a block that has left its slot, or makes it pending. `others` has its dependencies on
    /// other streams than its home stream.
    fn free_or_pend(
        &self,
        block: RetiredBlock,
        slot: FreeSlot,
        others: &Dependencies,
    ) -> BlockState {
        let home = block.id.alloc_stream();
        let uses = self.uses();
        // First: if no event was recorded on the home stream since, then the first poll records
        // one.
        let mut after = Dependencies::on(home, uses.submitted(home));
        after.add_all(others);
        if uses.is_known_done(&after) {
            uses.vacate(slot);
            self.pinned().free(&mut self.pinned().state(), block);
            return BlockState::Freed;
        }
        uses.defer(slot);
        let mut state = self.pinned().state();
        let queue = state.pending.entry(home.slot()).or_default();
        queue.push(Pending { value: block, after });
        BlockState::Retired
    }

    /// Removes a retired block from the use table.
    fn vacate_retired(&self, block: RetiredBlock) {
        let uses = self.uses();
        let mut done = Dependencies::default();
        if let Some(slot) = uses.release_retired(self.pinned_owner(), block.id, &mut done) {
            uses.vacate(slot);
        }
    }

    /// Counts all retired blocks as freed, because the device is lost. Their memory is not
    /// allocated again.
    #[cold]
    fn forget_retired(&self) -> FreedBytes {
        let pool = self.pinned();
        let mut freed = FreedBytes::default();
        let mut forget = |state: &mut State, block: RetiredBlock| {
            self.vacate_retired(block);
            state.count_freed(block);
            freed[block.chunk.kind as usize] += block.bytes;
        };
        pool.in_use.settle_all(|block| forget(&mut pool.state(), block));
        let mut state = pool.state();
        for queue in std::mem::take(&mut state.pending).values_mut() {
            while let Some(pending) = queue.pop() {
                forget(&mut state, pending.value);
            }
        }
        freed
    }
}

impl State {
    pub(super) fn of(&mut self, kind: PinnedKind) -> &mut OfKind {
        &mut self.kinds[kind as usize]
    }

    fn count_allocated(&mut self, kind: PinnedKind, bytes: u64) {
        let usage = &mut self.of(kind).usage;
        usage.live += bytes;
        usage.total_allocated += bytes;
    }

    fn count_retired(&mut self, block: RetiredBlock) {
        let usage = &mut self.of(block.chunk.kind).usage;
        usage.live -= block.bytes;
        usage.retired += block.bytes;
    }

    fn count_freed(&mut self, block: RetiredBlock) {
        let usage = &mut self.of(block.chunk.kind).usage;
        usage.retired -= block.bytes;
        usage.total_freed += block.bytes;
    }
}
