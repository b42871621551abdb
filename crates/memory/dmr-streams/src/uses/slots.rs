//! The slots of the use table, found by index.
//!
//! A slot is locked by a spinlock, only while its block is in it: the lock of a free slot is left
//! locked, so a look-up with a stale id spins on nothing and finds that the generation has changed.
//! The holder of the free slot occupies it without an atomic exchange.
//!
//! Makes no driver call, so that it can be model-checked.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use dmr_core::ledger::UseId;
use dmr_core::{
    BlockId, BlockSlot, BlockUse, ByteRange, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId, UseToken, UseTokens,
};

use super::closed::OwnerNumber;
use super::slot_state::{OpenWindow, SlotState, WindowEnd};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use dmr_core::{SpinLock, SpinLockGuard};

/// The number of slots of a chunk. They are made at once, in some 30 microseconds, and live as long
/// as the table. (Models have few slots, because their threads have small stacks.)
const CHUNK: usize = if cfg!(loom) { BATCH } else { 256 };
/// The number of chunks of a row.
const ROW: usize = if cfg!(loom) { 2 } else { 512 };
/// The number of rows of the table: enough for [`MOST`] slots.
const ROWS: usize = MOST / (ROW * CHUNK);
/// The most slots.
pub(super) const MOST: usize = if cfg!(loom) { 1 << 10 } else { 1 << 26 };
/// The number of slots that a stream is given at once, so that slots of two streams are not
/// neighbours.
pub(super) const BATCH: usize = 64;

pub(crate) struct Slots {
    /// The stream pool of the table.
    pub(super) pool: StreamPoolId,
    rows: [OnceLock<Row>; ROWS],
    /// Slots below this number have been given to a stream.
    pub(super) given: AtomicUsize,
    /// By home stream: the indices of slots without a block. Their locks are left locked.
    pub(super) free: Box<[CachePadded<SpinLock<Vec<u32>>>]>,
}

type Row = Box<[OnceLock<Chunk>; ROW]>;
type Chunk = Box<[CachePadded<UseSlot>]>;

/// A use slot.
pub(super) struct UseSlot {
    /// The number of the block's generation; in a free slot, the number of the last block with the
    /// bit [`FREE`]. Changed under the lock, and also read without it: the lock of a free slot is
    /// left locked.
    generation: AtomicU64,
    pub(super) state: SpinLock<SlotState>,
}

/// No generation has a number with this bit: at one per nanosecond, that would be after 292 years.
pub(super) const FREE: u64 = 1 << 63;

// With its lock and generation it fills two cache lines.
const _: () = assert!(size_of::<CachePadded<UseSlot>>() <= 128 || cfg!(loom));

/// The result of closing the windows of tokens of one block.
pub(crate) struct Closed<'t> {
    /// The tokens behind those of the block.
    pub(crate) behind: &'t [UseToken],
    /// The number of windows that were closed.
    pub(crate) windows: usize,
    /// A token has no window.
    pub(crate) any_stale: bool,
    /// The owner of the block, if it is retired and its last window is closed now.
    pub(crate) retired: Option<OwnerNumber>,
}

impl Slots {
    /// Makes the table of a stream pool whose streams are in slots below `streams`.
    pub(crate) fn new(pool: StreamPoolId, streams: usize) -> Self {
        Self {
            pool,
            rows: [const { OnceLock::new() }; ROWS],
            given: AtomicUsize::new(0),
            free: (0..streams).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Returns the payload of a live block of this owner.
    pub(crate) fn payload(&self, block: BlockId, owner: OwnerNumber) -> Option<u64> {
        let (_, state) = self.of_owner(block, owner)?;
        (!state.retired).then_some(state.occupant.payload)
    }

    /// Opens the window of the first use, and of the uses behind it that are of the same block if
    /// parts of that are used. Adds the windows to `tokens`, and calls `need` with each use that
    /// the new ones must wait for. Returns the uses behind these. On an error, windows that were
    /// opened are in `tokens`.
    #[inline(always)]
    pub(crate) fn open<'u>(
        &self,
        uses: &'u [BlockUse],
        tokens: &mut UseTokens,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<&'u [BlockUse]> {
        let Some((used, behind)) = uses.split_first() else { return Ok(uses) };
        let stream = tokens.stream();
        let found = self.of_generation(used.block.slot(), used.block.generation());
        let Some(mut state) = found.map(|(_, state)| state).filter(|state| !state.retired) else {
            return Err(Self::no_window(used.block, stream));
        };
        if state.parts.is_some() || !used.bytes.is_whole() {
            let of_block = uses.iter().take_while(|it| it.block == used.block).count();
            let (of_block, behind) = uses.split_at(of_block);
            let waits = state.open_parts(of_block, tokens)?;
            drop(state);
            waits.as_slice().iter().copied().for_each(&mut need);
            return Ok(behind);
        }
        let ticket = match state.windows.is_empty() {
            true => 0,
            false => state.ticket_for_another(used, stream)?,
        };
        state.ledger.visit_waits(stream.slot(), used.access, need);
        state.windows.push(OpenWindow { stream, ticket, access: used.access });
        drop(state);
        // SAFETY: the window was opened just now, and this is its only token.
        unsafe { tokens.push(used.block, used.access, ticket) };
        Ok(behind)
    }

    /// Returns the error for a block that is not in its slot, or is retired.
    #[cold]
    fn no_window(block: BlockId, stream: StreamId) -> ResourceError {
        match block.slot().index() {
            None => ResourceError::not_tracked(stream),
            Some(_) => ResourceError::use_after_free(block.generation()),
        }
    }

    /// Closes the window of the first token, and of the tokens behind it that are of the same block
    /// if parts of that were used. A token without a window changes nothing. `is_done` returns
    /// whether a use is known to be done.
    #[inline(always)]
    pub(crate) fn close<'t>(
        &self,
        tokens: &'t [UseToken],
        end: WindowEnd,
        is_done: &dyn Fn(UseId) -> bool,
    ) -> Closed<'t> {
        let Some((token, behind)) = tokens.split_first() else {
            return Closed { behind: &[], windows: 0, any_stale: false, retired: None };
        };
        let of_token = self.of_generation(token.slot(), token.generation());
        let Some((_, mut state)) = of_token else {
            return Closed { behind, windows: 0, any_stale: true, retired: None };
        };
        let (behind, windows, any_stale) = match state.parts.is_some() {
            true => {
                let is_same = |it: &&UseToken| {
                    (it.slot(), it.generation()) == (token.slot(), token.generation())
                };
                let of_block = tokens.iter().take_while(is_same).count();
                let (of_block, behind) = tokens.split_at(of_block);
                let windows = state.close_parts(of_block, end, is_done);
                (behind, windows, windows < of_block.len())
            }
            false => {
                let is_closed = state.close_whole(token, end);
                (behind, usize::from(is_closed), !is_closed)
            }
        };
        let is_last = state.retired && state.windows.is_empty() && windows > 0;
        let retired = if is_last { state.occupant.owner } else { None };
        Closed { behind, windows, any_stale, retired }
    }

    /// Makes the allocation of a block as late as `home`, and removes the uses on its home stream.
    /// Returns `false` if the block is not in the table, or another stream has used it, or a window
    /// is open.
    pub(crate) fn restart(&self, block: BlockId, home: UseId) -> bool {
        let Some((_, mut state)) = self.of(block) else { return false };
        let is_fresh = state.windows.is_empty() && state.entries().all(|entry| home.covers(entry));
        if is_fresh {
            state.restart(home);
        }
        is_fresh
    }

    /// Calls `need` with each use of these bytes that must be done before the host writes them.
    /// Returns `false` if a window on one of them is open.
    pub(crate) fn visit_host_waits(
        &self,
        block: BlockId,
        bytes: ByteRange,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<bool> {
        self.with(block, |state| {
            state.visit_host_waits(bytes, &mut need);
            (0..state.windows.len()).all(|at| !state.bytes_of_window(at).overlaps(bytes))
        })
    }

    pub(crate) fn is_retired(&self, block: BlockId) -> bool {
        self.with(block, |state| state.retired).unwrap_or(false)
    }

    pub(crate) fn has_open_window(&self, block: BlockId) -> bool {
        self.with(block, |state| !state.windows.is_empty()).unwrap_or(false)
    }

    /// Returns whether a window of another stream on the block conflicts with this use.
    pub(crate) fn has_conflict(&self, used: &BlockUse, stream: StreamId) -> Option<bool> {
        self.with(used.block, |state| state.conflict(used, stream).is_some()).ok()
    }

    /// Returns the number of uses in all ledgers, without allocations. A use counts once for each
    /// range of bytes that a ledger has.
    pub(crate) fn count_uses(&self) -> usize {
        // An allocation has an odd number, or none.
        let is_use = |used: &UseId| used.seq() > 0 && used.seq().is_multiple_of(2);
        self.occupied().map(|(_, state)| state.entries().filter(is_use).count()).sum()
    }

    /// Returns the number of the generation of a block that has a window open on this stream.
    /// Looks at every slot.
    pub(crate) fn block_with_window_on(&self, stream: StreamId) -> Option<u64> {
        let is_on = |window: &OpenWindow| window.stream.slot() == stream.slot();
        let (generation, _) = self.occupied().find(|(_, state)| state.windows.iter().any(is_on))?;
        Some(generation)
    }

    /// Returns the slots that have a block, and the numbers of their generations.
    fn occupied(&self) -> impl Iterator<Item = (u64, SpinLockGuard<'_, SlotState>)> {
        self.chunks().flat_map(|chunk| chunk.iter()).filter_map(|entry| {
            // The lock of a free slot is left locked.
            let generation = entry.get();
            let state = if generation & FREE != 0 { None } else { entry.lock_of(generation) };
            Some((generation, state?))
        })
    }

    /// Returns the number of slots that streams were given, free ones and others.
    pub(crate) fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    /// Calls `look` on the block's slot, if that is still the block's.
    #[inline]
    fn with<T>(&self, block: BlockId, look: impl FnOnce(&mut SlotState) -> T) -> ResourceResult<T> {
        match self.of(block) {
            Some((_, mut state)) => Ok(look(&mut state)),
            None => Err(ResourceError::use_after_free(block.generation())),
        }
    }

    /// Returns the block's slot, if that is still the block's.
    #[inline(always)]
    fn of(&self, block: BlockId) -> Option<(&UseSlot, SpinLockGuard<'_, SlotState>)> {
        self.of_generation(block.slot(), block.generation())
    }

    /// Returns the slot with this index, if the block of this generation is in it.
    #[inline(always)]
    fn of_generation(
        &self,
        slot: BlockSlot,
        generation: Generation,
    ) -> Option<(&UseSlot, SpinLockGuard<'_, SlotState>)> {
        let entry = self.entry(slot.to_bits())?;
        Some((entry, entry.lock_of(generation.get())?))
    }

    /// Returns the slot of a block, if that is still the block's, and this owner's.
    #[inline(always)]
    pub(super) fn of_owner(
        &self,
        block: BlockId,
        owner: OwnerNumber,
    ) -> Option<(&UseSlot, SpinLockGuard<'_, SlotState>)> {
        self.of(block).filter(|(_, state)| state.occupant.owner == Some(owner))
    }

    /// Returns the slot with this index, of which the bits count that an index of the table has: a
    /// mark beside them changes nothing, and a block that is not in the table has another
    /// generation than the slot found.
    #[inline(always)]
    pub(super) fn entry(&self, index: u32) -> Option<&UseSlot> {
        let index = index as usize;
        let row = self.rows[index / CHUNK / ROW % ROWS].get()?;
        Some(row[index / CHUNK % ROW].get()?.get(index % CHUNK)?)
    }

    /// Returns the chunks that were made.
    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let rows = self.rows.iter().filter_map(OnceLock::get);
        rows.flat_map(|row| row.iter().filter_map(OnceLock::get))
    }

    /// Makes the chunk of a slot, unless it was made.
    pub(super) fn make_chunk(&self, index: usize) {
        let make_row = || Box::new([const { OnceLock::new() }; ROW]);
        let row = self.rows[index / CHUNK / ROW].get_or_init(make_row);
        let make_slots = || (0..CHUNK).map(|_| CachePadded::new(UseSlot::empty())).collect();
        row[index / CHUNK % ROW].get_or_init(make_slots);
    }
}

impl UseSlot {
    fn empty() -> Self {
        Self { generation: AtomicU64::new(FREE), state: SpinLock::new_locked(SlotState::empty()) }
    }

    /// Locks the slot, if the block of this generation is in it.
    #[inline(always)]
    fn lock_of(&self, generation: u64) -> Option<SpinLockGuard<'_, SlotState>> {
        let is_in = || self.generation.load(Ordering::Acquire) == generation;
        self.state.lock_while(is_in).filter(|_| is_in())
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Sets the generation, under the lock.
    #[inline]
    pub(super) fn set(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
    }
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("given", &self.given).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
#[path = "slots_loom.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "slots_tests.rs"]
mod tests;
