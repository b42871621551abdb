//! The pinned memory of a stream pool: its blocks, from the allocation until their uses are done.
//!
//! A block leaves the use table when it is deallocated, and waits in a queue of its home stream
//! until an event behind its last use is done. A poll queries the oldest of a queue: what is behind
//! them is of the same stream, and mostly done later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::sync::lock;
use dmr_core::{
    AllocTag, BlockId, BlockParts, BlockState, DeviceBlock, Generation, MemoryObserver,
    ResourceError, ResourceResult, StreamId, Usage,
};
use dmr_streams::uses::{
    BlocksInUse, Dependencies, FreeSlot, Patience, Pending, PendingQueue, Released,
};
use dmr_streams::{Attachment, BlockOwner, Device, PinnedKind, StreamPool};
use smallvec::SmallVec;

use crate::bins::round_up;
use crate::heap::Heap;

/// The number of blocks that a poll finds in use before it gives up, for each home stream.
const MISSES: usize = 8;

/// The pinned memory of a stream pool: one for each, which lives as long as the stream pool.
#[derive(Clone, Copy, Debug)]
pub struct PinnedPool<'p> {
    pub(crate) streams: &'p StreamPool,
}

/// The part of the pinned memory that its stream pool owns: all of its state.
pub(crate) struct Pool {
    owner: BlockOwner,
    /// Never locked across a driver call.
    state: Mutex<State>,
    /// Blocks that were deallocated with an open window.
    in_use: BlocksInUse<RetiredBlock>,
    /// The observer of the simulated driver, looked up with the first segment.
    pub(crate) observer: OnceLock<Option<Arc<dyn MemoryObserver>>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) kinds: [OfKind; PinnedKind::ALL.len()],
    /// Blocks that were deallocated and that the device may still use, by the slot of their home
    /// stream.
    pub(crate) pending: BTreeMap<usize, PendingQueue<RetiredBlock>>,
}

/// The segments of one kind, and their accounting.
#[derive(Default)]
pub(crate) struct OfKind {
    pub(crate) heap: Heap,
    usage: Usage,
}

/// A block that was deallocated and is not free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetiredBlock {
    pub(crate) id: BlockId,
    bytes: u64,
    pub(crate) chunk: ChunkOfKind,
}

/// The payload of a block's slot in the use table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChunkOfKind {
    pub(crate) kind: PinnedKind,
    pub(crate) id: u32,
}

/// The bytes that a reap has freed, by kind.
pub(crate) type FreedBytes = [u64; PinnedKind::ALL.len()];

impl ChunkOfKind {
    fn to_payload(self) -> u64 {
        (self.kind as u64) << u32::BITS | u64::from(self.id)
    }

    fn from_payload(payload: u64) -> Self {
        let kind = PinnedKind::ALL[(payload >> u32::BITS) as usize % PinnedKind::ALL.len()];
        Self { kind, id: payload as u32 }
    }
}

impl Attachment for Pool {
    fn attach(streams: &StreamPool) -> Self {
        let owner = streams.register();
        Self {
            in_use: BlocksInUse::new(&owner),
            owner,
            state: Mutex::default(),
            observer: OnceLock::new(),
        }
    }

    fn end(&self, streams: &StreamPool) {
        PinnedPool::of(streams).end();
    }
}

impl Pool {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn observer(&self) -> Option<&dyn MemoryObserver> {
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

impl<'p> PinnedPool<'p> {
    /// Returns the pinned memory of these streams.
    #[must_use]
    pub fn of(streams: &'p StreamPool) -> Self {
        Self { streams }
    }

    /// Frees the pinned memory that was dropped and whose uses are done, so that it can be
    /// allocated again; returns its bytes. Polls the uses and does not wait for them.
    ///
    /// Memory counts as done when an event is done that was recorded behind its last use, and
    /// behind what had been submitted to its home stream when it was dropped. If there is none yet,
    /// a poll records one, and a later poll finds it done. On a lost device, all of it counts as
    /// freed.
    ///
    /// # Errors
    ///
    /// The first error; [`StreamCapturing`](ResourceError::StreamCapturing) for memory whose home
    /// stream captures a graph. What could not be freed is still retired: call again.
    pub fn try_reap(&self) -> ResourceResult<u64> {
        self.poll().map(|freed| freed.iter().sum())
    }

    /// Waits for the pinned memory that was dropped, unless a launch that uses it is prepared and
    /// not finished, and frees it; returns its bytes.
    ///
    /// # Errors
    ///
    /// As [`try_reap`](Self::try_reap).
    pub fn reap_pending(&self) -> ResourceResult<u64> {
        self.wait().map(|freed| freed.iter().sum())
    }

    /// Returns pinned memory that serves no block to the driver while more than `keep_bytes` bytes
    /// of a kind are reserved, in whole segments; returns the bytes. First frees what is done, as
    /// [`try_reap`](Self::try_reap) does. The driver's call, `cuMemFreeHost`, may wait for other
    /// work of the device.
    ///
    /// # Errors
    ///
    /// The first error. All other memory was returned all the same.
    pub fn trim_to(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let mut trimmed = 0;
        let mut outcome = self.poll().map(drop);
        for kind in PinnedKind::ALL {
            match self.trim_kind(kind, keep_bytes) {
                Ok(bytes) => trimmed += bytes,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| trimmed)
    }

    /// Returns the accounting; zeros in a forked child.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for usage in PinnedKind::ALL.map(|kind| self.usage_of(kind)) {
            sum.live += usage.live;
            sum.retired += usage.retired;
            sum.reserved += usage.reserved;
            sum.total_allocated += usage.total_allocated;
            sum.total_freed += usage.total_freed;
        }
        sum
    }

    /// Returns what the stream pool owns. In a forked child, call it for the first time after a
    /// check for that: it takes a lock.
    pub(crate) fn pool(&self) -> &'p Pool {
        self.streams.attachment()
    }

    pub(crate) fn device(&self) -> &'p Device {
        self.streams.device()
    }

    /// Allocates a block of pinned memory, in the use table without uses. Its content is
    /// unspecified; every byte has been written.
    pub(crate) fn allocate(
        &self,
        kind: PinnedKind,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // First: another thread may have held a lock when the process was forked.
        let home = self.streams.enter(stream)?;
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        let units = round_up(bytes).ok_or_else(|| ResourceError::size_overflow(bytes))?;
        home.refuse_capture()?;
        let chunk = self.allocate_chunk(kind, units);
        let chunk = chunk.inspect_err(|error| home.record_refusal(bytes, tag, error))?;
        let generation = Generation::next();
        let pool = self.pool();
        let payload = ChunkOfKind { kind, id: chunk.id }.to_payload();
        let inserted =
            self.streams.uses().insert_unused(&self.pool().owner, generation, &home, payload);
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
    pub(crate) fn deallocate(&self, block: &DeviceBlock) -> ResourceResult<BlockState> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        block.require_part_depth(0)?;
        let id = block.id();
        let bytes = block.bytes() as u64;
        let pool = self.pool();
        let retired = |payload| {
            let block = RetiredBlock { id, bytes, chunk: ChunkOfKind::from_payload(payload) };
            pool.state().count_retired(block);
            block
        };
        let mut after = Dependencies::default();
        match self.streams.uses().release(&self.pool().owner, id, &mut after) {
            Released::Foreign => Err(ResourceError::foreign_block(block, self.device().ordinal())),
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::Free { slot, payload } => {
                Ok(self.free_or_pend(retired(payload), slot, &after))
            }
            Released::InUse { payload, .. } => {
                pool.in_use.insert(id, retired(payload));
                self.free_closed(Patience::Poll);
                Ok(BlockState::Retired)
            }
        }
    }

    /// Frees the blocks whose uses are done. Returns the bytes.
    ///
    /// # Errors
    ///
    /// The first error; the other blocks were freed all the same.
    pub(crate) fn poll(&self) -> ResourceResult<FreedBytes> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        if self.device().is_lost() {
            return Ok(self.abandon_retired());
        }
        self.free_closed(Patience::Poll);
        let mut freed = FreedBytes::default();
        let mut outcome = Ok(());
        let homes: SmallVec<[usize; 16]> = self.pool().state().pending.keys().copied().collect();
        for home in homes {
            outcome = outcome.and(self.poll_home(home, &mut freed));
        }
        match outcome {
            // The query may have found the device lost.
            Err(_) if self.device().is_lost() => {
                let abandoned = self.abandon_retired();
                Ok(std::array::from_fn(|kind| freed[kind] + abandoned[kind]))
            }
            outcome => outcome.map(|()| freed),
        }
    }

    /// Frees the blocks of a home stream whose uses are done.
    fn poll_home(&self, home: usize, freed: &mut FreedBytes) -> ResourceResult<()> {
        let pool = self.pool();
        let uses = self.streams.uses();
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
        let pool = self.pool();
        let uses = self.streams.uses();
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
    /// As [`poll`](Self::poll).
    pub(crate) fn wait(&self) -> ResourceResult<FreedBytes> {
        self.device().refuse_fork()?;
        if self.device().is_lost() {
            return Ok(self.abandon_retired());
        }
        self.free_closed(Patience::Wait);
        let after: Dependencies = {
            let state = self.pool().state();
            state.pending.values().flat_map(PendingQueue::iter).map(|it| &it.after).collect()
        };
        let waited = self.streams.uses().synchronize(&after);
        let polled = self.poll();
        if self.device().is_lost() { polled } else { waited.and(polled) }
    }

    /// Returns the accounting of a kind; zeros in a forked child.
    pub(crate) fn usage_of(&self, kind: PinnedKind) -> Usage {
        if self.device().is_forked() {
            return Usage::default();
        }
        let mut state = self.pool().state();
        let OfKind { heap, usage } = state.of(kind);
        usage.reserved = heap.reserved();
        *usage
    }

    /// Makes the blocks pending whose last window has closed, or frees them.
    fn free_closed(&self, patience: Patience) {
        self.pool().in_use.drain_closed(patience, |block| {
            let mut after = Dependencies::default();
            let slot =
                self.streams.uses().release_retired(&self.pool().owner, block.id, &mut after);
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
        let uses = self.streams.uses();
        // First: if no event was recorded on the home stream since, then the first poll records
        // one.
        let mut after = Dependencies::on(home, uses.submitted(home));
        after.add_all(others);
        if uses.is_known_done(&after) {
            uses.vacate(slot);
            self.pool().free(&mut self.pool().state(), block);
            return BlockState::Freed;
        }
        uses.defer(slot);
        let mut state = self.pool().state();
        let queue = state.pending.entry(home.slot()).or_default();
        queue.push(Pending { value: block, after });
        BlockState::Retired
    }

    /// Removes a retired block from the use table.
    fn vacate_retired(&self, block: RetiredBlock) {
        let uses = self.streams.uses();
        let mut done = Dependencies::default();
        if let Some(slot) = uses.release_retired(&self.pool().owner, block.id, &mut done) {
            uses.vacate(slot);
        }
    }

    /// Counts all retired blocks as freed, because the device is lost. Their memory is not
    /// allocated again.
    #[cold]
    fn abandon_retired(&self) -> FreedBytes {
        let pool = self.pool();
        let mut freed = FreedBytes::default();
        let mut abandon = |state: &mut State, block: RetiredBlock| {
            self.vacate_retired(block);
            state.count_freed(block);
            freed[block.chunk.kind as usize] += block.bytes;
        };
        pool.in_use.drain_all(|block| abandon(&mut pool.state(), block));
        let mut state = pool.state();
        for queue in std::mem::take(&mut state.pending).values_mut() {
            while let Some(pending) = queue.pop() {
                abandon(&mut state, pending.value);
            }
        }
        freed
    }
}

impl State {
    pub(crate) fn of(&mut self, kind: PinnedKind) -> &mut OfKind {
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
