//! The slots of the use table: a block's windows and ledger, found by index.
//!
//! Makes no driver call, so that it can be model-checked.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use dmr_core::ledger::{Ledger, UseId};
use dmr_core::{
    Access, BlockId, BlockSlot, BlockUse, ByteRange, Generation, ResourceError, ResourceResult,
    StreamId, StreamPoolId, UseToken,
};
use smallvec::SmallVec;

use super::FreeSlot;
use super::parts::PartUses;
use crate::owner::OwnerNumber;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use dmr_core::{SpinLock, SpinLockGuard};

/// The number of slots of a chunk. They are made at once, in some 30 microseconds, and live as long as the
/// table. (Models have few slots, because their threads have small stacks.)
const CHUNK: usize = if cfg!(loom) { BATCH } else { 256 };
/// The number of chunks of a row.
const ROW: usize = if cfg!(loom) { 2 } else { 512 };
/// The number of rows of the table: enough for [`MOST`] slots.
const ROWS: usize = MOST / (ROW * CHUNK);
/// The most slots.
pub(super) const MOST: usize = if cfg!(loom) { 1 << 10 } else { 1 << 26 };
/// The number of slots that a stream is given at once, so that slots of two streams are not neighbours.
pub(super) const BATCH: usize = 64;

pub(crate) struct Slots {
    /// The stream pool of the table.
    pub(super) pool: StreamPoolId,
    rows: [OnceLock<Row>; ROWS],
    /// Slots below this number have been given to a stream.
    pub(super) given: AtomicUsize,
    /// By home stream: slots without a block.
    pub(super) free: Box<[CachePadded<SpinLock<Vec<FreeSlot>>>]>,
}

type Row = Box<[OnceLock<Chunk>; ROW]>;
type Chunk = Box<[CachePadded<UseSlot>]>;

/// A use slot.
pub(super) struct UseSlot {
    /// The number of the block's generation; in a free slot, the number of the last block with the bit
    /// [`FREE`]. Changed under the lock, and also read without it: the lock of a free slot is left locked.
    generation: AtomicU64,
    pub(super) slot: SpinLock<SlotState>,
}

/// No generation has a number with this bit: at one per nanosecond, that would be after 292 years.
pub(super) const FREE: u64 = 1 << 63;

pub(super) struct SlotState {
    /// The stream slot whose list of free use slots it returns to.
    pub(super) home: u32,
    pub(super) occupant: Occupant,
    /// The block was released and has not left the slot.
    pub(super) retired: bool,
    /// A use beside the allocation has been in the ledger.
    pub(super) used: bool,
    /// The uses of all bytes, unless `parts` has uses.
    pub(super) ledger: Ledger,
    pub(super) windows: SmallVec<[OpenWindow; 2]>,
    /// The uses and windows by the bytes that they use, once a part of a block of the slot was used.
    pub(super) parts: Option<Box<PartUses>>,
}

// With its lock and generation it fills two cache lines.
const _: () = assert!(size_of::<CachePadded<UseSlot>>() <= 128 || cfg!(loom));

/// The owner of the blocks in a slot, and its payload.
#[derive(Clone, Copy)]
pub(crate) struct Occupant {
    pub(crate) owner: Option<OwnerNumber>,
    pub(crate) payload: u64,
}

impl Occupant {
    /// The occupant of a slot that was never reserved.
    pub(crate) const NONE: Self = Self { owner: None, payload: 0 };
}

pub(super) struct OpenWindow {
    pub(super) stream: StreamId,
    /// Unique among the windows that are open on the slot.
    pub(super) ticket: u32,
    pub(super) access: Access,
}

/// The end of a use whose window closes.
#[derive(Clone, Copy)]
pub(crate) enum WindowEnd {
    /// Its work was never submitted.
    Unused,
    /// Its work was submitted.
    Used(UseId),
    /// Its work, and all work submitted to its stream up to this use, is done.
    Done(UseId),
}

/// The result of closing a window.
pub(crate) enum Closed {
    /// Nothing has changed: there is no such window.
    Stale,
    /// The window is closed.
    Window,
    /// The window is closed, and was the last one of a retired block of this owner.
    LastOfRetired(OwnerNumber),
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
        let (_, slot) = self.of_owner(block, owner)?;
        (!slot.retired).then_some(slot.occupant.payload)
    }

    /// Opens a window and returns its ticket; calls `need` with each use that the new one must wait for.
    #[inline(always)]
    pub(crate) fn open(
        &self,
        used: &BlockUse,
        stream: StreamId,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<u32> {
        let slot = self.of_generation(used.block.slot(), used.block.generation());
        let Some(mut slot) = slot.map(|(_, slot)| slot).filter(|slot| !slot.retired) else {
            return Err(Self::no_window(used.block, stream));
        };
        if slot.parts.is_some() || !used.bytes.is_whole() {
            let (ticket, waits) = slot.open_part(used, stream)?;
            waits.into_iter().for_each(&mut need);
            return Ok(ticket);
        }
        let ticket = match slot.windows.is_empty() {
            true => 0,
            false => slot.ticket_for_another(used, stream)?,
        };
        slot.ledger.visit_waits(stream.slot(), used.access, need);
        slot.windows.push(OpenWindow { stream, ticket, access: used.access });
        Ok(ticket)
    }

    /// Returns the error for a block that is not in its slot, or is retired.
    #[cold]
    fn no_window(block: BlockId, stream: StreamId) -> ResourceError {
        match block.slot().index() {
            None => ResourceError::not_tracked(stream),
            Some(_) => ResourceError::use_after_free(block.generation()),
        }
    }

    /// Closes a window. A token without a window changes nothing. `is_done` returns whether a use is known to be
    /// done.
    #[inline(always)]
    pub(crate) fn close(
        &self,
        token: &UseToken,
        closing: WindowEnd,
        is_done: &dyn Fn(UseId) -> bool,
    ) -> Closed {
        let of_token = self.of_generation(token.slot(), token.generation());
        let Some((_, mut slot)) = of_token else { return Closed::Stale };
        let is_closed = match slot.parts.is_some() {
            true => slot.close_part(token, closing, is_done),
            false => slot.close_whole(token, closing),
        };
        if !is_closed {
            return Closed::Stale;
        }
        match slot.occupant.owner {
            Some(owner) if slot.retired && slot.windows.is_empty() => Closed::LastOfRetired(owner),
            _ => Closed::Window,
        }
    }

    /// Makes the allocation of a block as late as `home`, and removes the uses on its home stream. Returns
    /// `false` if the block is not in the table, or another stream has used it, or a window is open.
    pub(crate) fn restart(&self, block: BlockId, home: UseId) -> bool {
        let Some((_, mut slot)) = self.of(block) else { return false };
        let is_fresh = slot.windows.is_empty() && slot.entries().all(|entry| home.covers(entry));
        if is_fresh {
            slot.restart(home);
        }
        is_fresh
    }

    /// Calls `need` with each use of these bytes that must be done before the host writes them. Returns `false` if a
    /// window on one of them is open.
    pub(crate) fn visit_host_waits(
        &self,
        block: BlockId,
        bytes: ByteRange,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<bool> {
        self.with(block, |slot| {
            slot.visit_host_waits(bytes, &mut need);
            (0..slot.windows.len()).all(|at| !slot.bytes_of_window(at).overlaps(bytes))
        })
    }

    pub(crate) fn is_retired(&self, block: BlockId) -> bool {
        self.with(block, |slot| slot.retired).unwrap_or(false)
    }

    pub(crate) fn has_open_window(&self, block: BlockId) -> bool {
        self.with(block, |slot| !slot.windows.is_empty()).unwrap_or(false)
    }

    /// Returns the number of uses in all ledgers, without allocations. A use counts once for each range of
    /// bytes that a ledger has.
    pub(crate) fn count_uses(&self) -> usize {
        // An allocation has an odd number, or none.
        let is_use = |used: &UseId| used.seq() > 0 && used.seq().is_multiple_of(2);
        self.occupied().map(|(_, slot)| slot.entries().filter(is_use).count()).sum()
    }

    /// Returns the number of the generation of a block that has a window open on this stream.
    /// Looks at every slot.
    pub(crate) fn block_with_window_on(&self, stream: StreamId) -> Option<u64> {
        let is_on = |window: &OpenWindow| window.stream.slot() == stream.slot();
        let (generation, _) = self.occupied().find(|(_, slot)| slot.windows.iter().any(is_on))?;
        Some(generation)
    }

    /// Returns the slots that have a block, and the numbers of their generations.
    fn occupied(&self) -> impl Iterator<Item = (u64, SpinLockGuard<'_, SlotState>)> {
        self.chunks().flat_map(|chunk| chunk.iter()).filter_map(|numbered| {
            // The lock of a free slot is left locked.
            let generation = numbered.get();
            let slot = if generation & FREE != 0 { None } else { numbered.lock_of(generation) };
            Some((generation, slot?))
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
            Some((_, mut slot)) => Ok(look(&mut slot)),
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
        let numbered = self.numbered(slot.to_bits())?;
        Some((numbered, numbered.lock_of(generation.get())?))
    }

    /// Returns the slot of a block, if that is still the block's, and this owner's.
    #[inline(always)]
    pub(super) fn of_owner(
        &self,
        block: BlockId,
        owner: OwnerNumber,
    ) -> Option<(&UseSlot, SpinLockGuard<'_, SlotState>)> {
        self.of(block).filter(|(_, slot)| slot.occupant.owner == Some(owner))
    }

    /// Returns the slot with this index, of which the bits count that an index of the table has: a mark beside them
    /// changes nothing, and a block that is not in the table has another generation than the slot found.
    #[inline(always)]
    pub(super) fn numbered(&self, index: u32) -> Option<&UseSlot> {
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
        Self { generation: AtomicU64::new(FREE), slot: SpinLock::new_locked(SlotState::empty()) }
    }

    /// Locks the slot, if the block of this generation is in it.
    #[inline(always)]
    fn lock_of(&self, generation: u64) -> Option<SpinLockGuard<'_, SlotState>> {
        let is_in = || self.generation.load(Ordering::Acquire) == generation;
        self.slot.lock_while(is_in).filter(|_| is_in())
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

impl SlotState {
    fn empty() -> Self {
        Self {
            home: 0,
            occupant: Occupant::NONE,
            retired: false,
            used: false,
            ledger: Ledger::new(),
            windows: SmallVec::new(),
            parts: None,
        }
    }

    /// Makes `allocation` the only use in the ledger.
    #[inline(always)]
    pub(super) fn restart(&mut self, allocation: UseId) {
        self.ledger.restart(allocation);
        if let Some(parts) = &mut self.parts {
            parts.ledger.forget();
        }
    }

    /// Calls `need` with each use that the free of the block must come after.
    #[inline(always)]
    pub(super) fn visit_free_waits(&self, mut need: impl FnMut(UseId)) {
        if let Some(parts) = &self.parts {
            parts.ledger.visit_free_waits(&mut need);
        }
        self.ledger.visit_free_waits(need);
    }

    /// Returns the uses in the ledger.
    fn entries(&self) -> impl Iterator<Item = UseId> {
        let of_parts = self.parts.iter().flat_map(|parts| parts.ledger.entries());
        self.ledger.entries().chain(of_parts)
    }

    /// Returns the ticket for another window beside those that are open.
    ///
    /// # Errors
    ///
    /// [`WindowConflict`](ResourceError::WindowConflict); [`Capacity`](ResourceError::Capacity) if there
    /// are no more tickets.
    #[inline(never)]
    pub(super) fn ticket_for_another(
        &self,
        used: &BlockUse,
        stream: StreamId,
    ) -> ResourceResult<u32> {
        let BlockUse { block, access, bytes } = *used;
        let conflicts = |(at, window): &(usize, &OpenWindow)| {
            window.stream.slot() != stream.slot()
                && window.access.conflicts_with(access)
                && self.bytes_of_window(*at).overlaps(bytes)
        };
        let mut windows = self.windows.iter().enumerate();
        if let Some((_, &OpenWindow { stream: holder, .. })) = windows.find(conflicts) {
            let generation = block.generation();
            return Err(ResourceError::window_conflict(generation, holder, stream, access));
        }
        // One look at each window: many may be open on the parts of a block, and the slot is locked meanwhile.
        let next = self.windows.iter().fold(0, |next, window| next.max(window.ticket + 1));
        if next <= UseToken::MAX_TICKET { Ok(next) } else { self.lowest_free_ticket() }
    }

    /// Returns the lowest number that no open window has as its ticket.
    #[cold]
    fn lowest_free_ticket(&self) -> ResourceResult<u32> {
        let is_free = |ticket: &u32| self.windows.iter().all(|window| window.ticket != *ticket);
        (0..=UseToken::MAX_TICKET).find(is_free).ok_or_else(|| {
            ResourceError::capacity("windows on the block", UseToken::MAX_TICKET as usize)
        })
    }

    /// Closes a window of a block of which no part was used. Returns `false` if there is no such window.
    #[inline(always)]
    fn close_whole(&mut self, token: &UseToken, end: WindowEnd) -> bool {
        match self.windows.as_slice() {
            [only] if only.ticket == token.ticket() => drop(self.windows.pop()),
            [] | [_] => return false,
            _ => match self.position_of(token.ticket()) {
                Some(at) => drop(self.windows.swap_remove(at)),
                None => return false,
            },
        }
        self.end_whole(token.access(), end);
        true
    }

    /// Changes the ledger of all bytes at the end of a use.
    #[inline(always)]
    pub(super) fn end_whole(&mut self, access: Access, end: WindowEnd) {
        match end {
            WindowEnd::Unused => {}
            WindowEnd::Used(used) => {
                self.used = true;
                self.ledger.commit(access, used);
            }
            WindowEnd::Done(done) => self.forget_done(access, done),
        }
    }

    /// Returns the index of the window with this ticket.
    #[inline(never)]
    pub(super) fn position_of(&self, ticket: u32) -> Option<usize> {
        self.windows.iter().position(|window| window.ticket == ticket)
    }

    /// Removes a use that is done from the ledger, and all earlier uses of its stream. If it is a write,
    /// removes all uses of other streams.
    #[cold]
    fn forget_done(&mut self, access: Access, done: UseId) {
        // Another thread may have finished a later use of the stream by now. Apart from that, a write came
        // after all uses.
        self.ledger.retain(|entry| {
            if entry.slot() == done.slot() { !done.covers(entry) } else { !access.writes() }
        });
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
