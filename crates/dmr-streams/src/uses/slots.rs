//! The slots of the use table: a block's windows and ledger, found by index.
//!
//! Makes no driver call, so that it can be model-checked.

mod empty;

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use dmr_core::ledger::{Ledger, UseId};
use dmr_core::{Access, BlockId, Generation, ResourceError, ResourceResult, StreamId, UseToken};
use smallvec::SmallVec;

use super::dependencies::LastUse;
use crate::latch::{Latch, Latched};
use crate::owner::OwnerNumber;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Slots of a chunk, which are made at once, in some 30 microseconds, and never given back before the
/// table is. (Models have few slots, because their threads have small stacks.)
const CHUNK: usize = if cfg!(loom) { BATCH } else { 256 };
/// Chunks of a row.
const ROW: usize = if cfg!(loom) { 2 } else { 512 };
/// Rows of the table: enough for [`MOST`] slots.
const ROWS: usize = MOST / (ROW * CHUNK);
/// The most slots.
const MOST: usize = if cfg!(loom) { 1 << 10 } else { 1 << 26 };
/// How many slots a stream takes at once: so streams' slots lie apart.
const BATCH: usize = 64;

pub(crate) struct Slots {
    rows: [OnceLock<Row>; ROWS],
    /// Slots below this number have been given to a stream.
    given: AtomicUsize,
    /// By home stream: slots that no block has.
    free: Box<[CachePadded<Latch<Vec<Empty>>>]>,
}

type Row = Box<[OnceLock<Chunk>; ROW]>;
type Chunk = Box<[CachePadded<Numbered>]>;

/// A slot, and whose it is.
struct Numbered {
    /// The number of a generation, or [`NOBODYS`]. Changed by who has the latch; read without it,
    /// too: the latch of an empty slot is left taken.
    whose: AtomicU64,
    slot: Latch<Slot>,
}

/// No generation has this number.
const NOBODYS: u64 = 0;

struct Slot {
    /// The stream out of whose free slots it was taken, to go back there.
    home: u32,
    tenancy: Tenancy,
    retired: bool,
    /// Something beside the allocation has been in the ledger.
    used: bool,
    ledger: Ledger,
    windows: SmallVec<[Window; 2]>,
    last_ticket: u64,
}

/// Whose the block in a slot is, and what its owner keeps there.
#[derive(Clone, Copy)]
pub(crate) struct Tenancy {
    pub(crate) owner: Option<OwnerNumber>,
    pub(crate) payload: u64,
}

impl Tenancy {
    /// That of a slot that was never reserved.
    pub(crate) const NONE: Self = Self { owner: None, payload: 0 };
}

/// What has become of a block that its owner gives back.
pub(crate) enum Left {
    /// It is not this owner's.
    Foreign,
    /// It was given back before.
    Before,
    /// It is retired: a window is open, or a use is not ordered before a free at home, or the home
    /// is not alive.
    Retired { payload: u64, in_use: bool, last: Option<LastUse> },
    /// The slot is empty, and not free for another block before it is given up. If it was `used`,
    /// the ledger is as it was.
    Gone { payload: u64, empty: Empty, used: bool },
}

/// What has become of a block whose memory its owner uses again.
pub(crate) enum Yielded {
    /// It is not this owner's.
    Foreign,
    /// It was given back before.
    Before,
    /// A window is open: it is retired.
    InUse(u64),
    /// It has left, and the slot is its owner's.
    Gone { payload: u64, empty: Empty },
}

/// An empty slot, for whoever has this: its latch is left taken, so nobody else comes to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Empty(u32);

struct Window {
    ticket: u64,
    stream: StreamId,
    access: Access,
}

/// What has become of a use whose window closes.
#[derive(Clone, Copy)]
pub(crate) enum Closing {
    /// Its work was never submitted.
    Unused,
    /// Its work was submitted.
    Used(UseId),
    /// Its work, and all that was submitted to its stream up to this use, is done.
    Done(UseId),
}

impl Slots {
    /// For blocks whose home streams are in slots below `streams`.
    pub(crate) fn new(streams: usize) -> Self {
        Self {
            rows: [const { OnceLock::new() }; ROWS],
            given: AtomicUsize::new(0),
            free: (0..streams).map(|_| CachePadded::default()).collect(),
        }
    }

    /// A slot for a new block; `home` stands for its allocation.
    #[inline]
    pub(crate) fn insert(
        &self,
        generation: Generation,
        home: UseId,
        tenancy: Tenancy,
    ) -> ResourceResult<u32> {
        let empty = self.reserve(home.slot(), tenancy)?;
        // SAFETY: the slot is of this table.
        Ok(unsafe { self.fill(empty, generation, home) })
    }

    /// Takes a block back: out of its slot if no window is open and all uses in its ledger are
    /// `ordered` before a free on its home stream, and else as retired. Where the home is not
    /// `alive`, nothing can be freed there.
    #[inline]
    pub(crate) fn give_back(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        alive: bool,
        mut ordered: impl FnMut(UseId) -> bool,
    ) -> Left {
        let Some(index) = block.slot().index() else { return Left::Foreign };
        let Some((numbered, mut slot)) = self.of(block) else { return Left::Foreign };
        let Tenancy { owner: whose, payload } = slot.tenancy;
        if whose != Some(owner) {
            return Left::Foreign;
        }
        if slot.retired {
            return Left::Before;
        }
        let (in_use, mut last) = (!slot.windows.is_empty(), None);
        // Where nothing was used, the ledger has the allocation, which was at home.
        if slot.used && !in_use {
            for used in slot.ledger.free_waits().filter(|used| !ordered(*used)) {
                last = Some(LastUse::and_another(last, used));
            }
        }
        if alive && !in_use && last.is_none() {
            numbered.set(NOBODYS);
            let used = slot.used;
            slot.leave_taken();
            return Left::Gone { payload, empty: Empty(index), used };
        }
        slot.retired = true;
        Left::Retired { payload, in_use, last }
    }

    /// Takes a block back whose memory its owner uses again: out of its slot, which stays the
    /// owner's, unless a window is open. Calls `keep` with what a free would have to wait for.
    #[inline(always)]
    pub(crate) fn surrender(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        keep: impl FnMut(UseId),
    ) -> Yielded {
        let Some(index) = block.slot().index() else { return Yielded::Foreign };
        let Some((numbered, mut slot)) = self.of(block) else { return Yielded::Foreign };
        let Tenancy { owner: whose, payload } = slot.tenancy;
        if whose != Some(owner) {
            return Yielded::Foreign;
        }
        if slot.retired {
            return Yielded::Before;
        }
        if !slot.windows.is_empty() {
            slot.retired = true;
            return Yielded::InUse(payload);
        }
        numbered.set(NOBODYS);
        if slot.used {
            slot.take_waits(keep);
        }
        slot.leave_taken();
        Yielded::Gone { payload, empty: Empty(index) }
    }

    /// The same for a retired block; `None` while a window is open.
    pub(crate) fn surrender_retired(&self, block: BlockId, owner: OwnerNumber) -> Option<Empty> {
        let index = block.slot().index()?;
        let (numbered, slot) = self.of_owner(block, owner)?;
        if !slot.retired || !slot.windows.is_empty() {
            return None;
        }
        numbered.set(NOBODYS);
        slot.leave_taken();
        Some(Empty(index))
    }

    /// Returns the payload of a live block of this owner.
    pub(crate) fn payload(&self, block: BlockId, owner: OwnerNumber) -> Option<u64> {
        let (_, slot) = self.of(block)?;
        (slot.tenancy.owner == Some(owner) && !slot.retired).then_some(slot.tenancy.payload)
    }

    /// Opens a window and answers its ticket; `need` is told what the use must wait for.
    #[inline]
    pub(crate) fn open(
        &self,
        block: BlockId,
        stream: StreamId,
        access: Access,
        need: impl FnMut(UseId),
    ) -> ResourceResult<u64> {
        let slot = self.of(block).map(|(_, slot)| slot);
        let Some(mut slot) = slot.filter(|slot| !slot.retired) else {
            return Err(Self::no_window(block, stream));
        };
        let conflict = |window: &&Window| {
            window.stream.slot() != stream.slot() && window.access.conflicts_with(access)
        };
        if let Some(&Window { stream: holder, .. }) = slot.windows.iter().find(conflict) {
            let generation = block.generation();
            return Err(ResourceError::window_conflict(generation, holder, stream, access));
        }
        slot.ledger.visit_waits(stream.slot(), access, need);
        slot.last_ticket += 1;
        let ticket = slot.last_ticket;
        slot.windows.push(Window { ticket, stream, access });
        Ok(ticket)
    }

    /// Why a block that is not in its slot, or is retired, cannot be used.
    #[cold]
    fn no_window(block: BlockId, stream: StreamId) -> ResourceError {
        match block.slot().index() {
            None => ResourceError::not_tracked(stream),
            Some(_) => ResourceError::use_after_free(block.generation()),
        }
    }

    /// Closes a window. A token that has no window any more changes nothing, and returns `false`.
    #[inline(always)]
    pub(crate) fn close(&self, token: &UseToken, closing: Closing) -> bool {
        let Some((_, mut slot)) = self.of(token.block()) else { return false };
        if !slot.remove_window(token.ticket()) {
            return false;
        }
        match closing {
            Closing::Unused => {}
            Closing::Used(used) => {
                slot.used = true;
                slot.ledger.commit(token.access(), used);
            }
            Closing::Done(done) => slot.forget_done(token.access(), done),
        }
        true
    }

    /// Makes the allocation of a block as late as `home`, and removes the uses on its home stream. Returns
    /// `false` if the block is not in the table, or another stream has used it, or a window is open.
    pub(crate) fn restart(&self, block: BlockId, home: UseId) -> bool {
        let Some((_, mut slot)) = self.of(block) else { return false };
        let is_fresh =
            slot.windows.is_empty() && slot.ledger.entries().all(|entry| home.covers(entry));
        if is_fresh {
            slot.ledger.restart(home);
        }
        is_fresh
    }

    /// Retires a block of this owner.
    pub(crate) fn retire(&self, block: BlockId, owner: OwnerNumber) -> ResourceResult<()> {
        match self.of_owner(block, owner) {
            Some((_, mut slot)) if !slot.retired => slot.retired = true,
            _ => return Err(ResourceError::use_after_free(block.generation())),
        }
        Ok(())
    }

    /// Ends the retirement of a block of this owner.
    pub(crate) fn unretire(&self, block: BlockId, owner: OwnerNumber) {
        if let Some((_, mut slot)) = self.of_owner(block, owner) {
            slot.retired = false;
        }
    }

    /// Tells `need` what the block's free must wait for; answers `false` if a window is open.
    pub(crate) fn free_waits(
        &self,
        block: BlockId,
        mut need: impl FnMut(UseId),
    ) -> ResourceResult<bool> {
        self.with(block, |slot| {
            if !slot.windows.is_empty() {
                return false;
            }
            slot.ledger.free_waits().for_each(&mut need);
            true
        })
    }

    /// Takes a block of this owner out of its slot, which is free for another.
    pub(crate) fn remove(&self, block: BlockId, owner: OwnerNumber) {
        let Some(index) = block.slot().index() else { return };
        let Some((numbered, mut slot)) = self.of_owner(block, owner) else { return };
        numbered.set(NOBODYS);
        slot.windows.clear();
        slot.ledger.forget();
        let home = slot.home;
        slot.leave_taken();
        self.free[home as usize].lock().push(Empty(index));
    }

    pub(crate) fn is_retired(&self, block: BlockId) -> bool {
        self.with(block, |slot| slot.retired).unwrap_or(false)
    }

    pub(crate) fn has_open_window(&self, block: BlockId) -> bool {
        self.with(block, |slot| !slot.windows.is_empty()).unwrap_or(false)
    }

    /// How many uses all ledgers remember, without allocations.
    pub(crate) fn count_uses(&self) -> usize {
        // An allocation has an odd number.
        let is_use = |used: &UseId| used.seq().is_multiple_of(2);
        self.taken().map(|(_, slot)| slot.ledger.entries().filter(is_use).count()).sum()
    }

    /// Finds a block that has a window open on this stream, and returns the number of its generation.
    /// Looks at every slot.
    pub(crate) fn block_with_window_on(&self, stream: StreamId) -> Option<u64> {
        let is_on = |window: &Window| window.stream.slot() == stream.slot();
        let (whose, _) = self.taken().find(|(_, slot)| slot.windows.iter().any(is_on))?;
        Some(whose)
    }

    /// The slots that have a block, and the numbers of their generations.
    fn taken(&self) -> impl Iterator<Item = (u64, Latched<'_, Slot>)> {
        self.chunks().flat_map(|chunk| chunk.iter()).filter_map(|numbered| {
            // What is nobody's may be left latched.
            let whose = numbered.whose.load(Ordering::Relaxed);
            let slot = if whose == NOBODYS { None } else { numbered.lock_of(whose) };
            Some((whose, slot?))
        })
    }

    /// Slots that have been given to a stream, empty ones and others.
    pub(crate) fn given(&self) -> usize {
        self.given.load(Ordering::Relaxed)
    }

    /// Calls `look` on the block's slot, if that is still the block's.
    #[inline]
    fn with<T>(&self, block: BlockId, look: impl FnOnce(&mut Slot) -> T) -> ResourceResult<T> {
        match self.of(block) {
            Some((_, mut slot)) => Ok(look(&mut slot)),
            None => Err(ResourceError::use_after_free(block.generation())),
        }
    }

    /// The block's slot, if that is still the block's.
    #[inline(always)]
    fn of(&self, block: BlockId) -> Option<(&Numbered, Latched<'_, Slot>)> {
        let numbered = self.numbered(block.slot().index()?)?;
        Some((numbered, numbered.lock_of(block.generation().get())?))
    }

    /// The slot of a block, if that is still the block's, and this owner's.
    #[inline(always)]
    fn of_owner(
        &self,
        block: BlockId,
        owner: OwnerNumber,
    ) -> Option<(&Numbered, Latched<'_, Slot>)> {
        self.of(block).filter(|(_, slot)| slot.tenancy.owner == Some(owner))
    }

    #[inline(always)]
    fn numbered(&self, index: u32) -> Option<&Numbered> {
        let index = index as usize;
        let row = self.rows.get(index / CHUNK / ROW)?.get()?;
        Some(row[index / CHUNK % ROW].get()?.get(index % CHUNK)?)
    }

    /// Returns the chunks that were made.
    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let rows = self.rows.iter().filter_map(OnceLock::get);
        rows.flat_map(|row| row.iter().filter_map(OnceLock::get))
    }

    /// Makes the chunk of a slot, unless it was made.
    fn make_chunk(&self, index: usize) {
        let make_row = || Box::new([const { OnceLock::new() }; ROW]);
        let row = self.rows[index / CHUNK / ROW].get_or_init(make_row);
        let make_slots = || (0..CHUNK).map(|_| CachePadded::new(Numbered::empty())).collect();
        row[index / CHUNK % ROW].get_or_init(make_slots);
    }
}

impl Numbered {
    fn empty() -> Self {
        Self { whose: AtomicU64::new(NOBODYS), slot: Latch::taken(Slot::empty()) }
    }

    /// The slot, as long as it is this one's.
    #[inline(always)]
    fn lock_of(&self, whose: u64) -> Option<Latched<'_, Slot>> {
        let is_its = || self.whose.load(Ordering::Acquire) == whose;
        self.slot.lock_while(is_its).filter(|_| is_its())
    }

    /// Says whose the slot is; by who has the latch.
    #[inline]
    fn set(&self, whose: u64) {
        self.whose.store(whose, Ordering::Release);
    }
}

impl Slot {
    fn empty() -> Self {
        let (ledger, windows) = (Ledger::new(), SmallVec::new());
        Self {
            home: 0,
            tenancy: Tenancy::NONE,
            retired: false,
            used: false,
            ledger,
            windows,
            last_ticket: 0,
        }
    }

    /// Removes the window with this ticket; returns `false` if there is none.
    #[inline]
    fn remove_window(&mut self, ticket: u64) -> bool {
        match self.windows.as_slice() {
            [only] if only.ticket == ticket => self.windows.pop().is_some(),
            [] | [_] => false,
            _ => self.remove_one_of_several(ticket),
        }
    }

    #[inline(never)]
    fn remove_one_of_several(&mut self, ticket: u64) -> bool {
        let found = self.windows.iter().position(|window| window.ticket == ticket);
        found.map(|at| self.windows.swap_remove(at)).is_some()
    }

    /// A use is done, and with it all that was submitted to its stream before.
    #[cold]
    fn forget_done(&mut self, access: Access, done: UseId) {
        // Another thread may have finished a later use of the stream by now. Except for that, a
        // write came after everything.
        self.ledger.retain(|entry| {
            if entry.slot() == done.slot() { !done.covers(entry) } else { !access.writes() }
        });
    }
}

impl Slot {
    /// Another block is in it; `home` stands for its allocation.
    #[inline]
    fn begin(&mut self, home: UseId) {
        (self.retired, self.used) = (false, false);
        self.ledger.restart(home);
    }

    /// Tells `keep` what a free would have to wait for, which is not in the ledger any more.
    #[inline]
    fn take_waits(&mut self, keep: impl FnMut(UseId)) {
        // Where nothing was used, the ledger has the allocation, which was at home.
        if self.used {
            self.ledger.visit_free_waits(keep);
            self.ledger.forget();
        }
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
