//! Slots that no block is in: where they come from, and how blocks get into them and out of them.

use dmr_core::ledger::UseId;
use dmr_core::{BlockId, Generation, ResourceError, ResourceResult};

use super::{BATCH, Empty, FREE, MOST, Occupant, SlotState, Slots, UseSlot};
use crate::owner::OwnerNumber;
use crate::spinlock::SpinLockGuard;
use crate::sync::Ordering;

/// What [`Slots::release`] has done: see [`Released`](crate::uses::Released).
pub(crate) enum SlotRelease {
    Foreign,
    Stale,
    InUse { payload: u64 },
    Free { empty: Empty, payload: u64 },
}

impl Slots {
    /// Takes a slot out of those of the stream in `home`.
    #[inline]
    pub(crate) fn reserve(&self, home: usize, occupant: Occupant) -> ResourceResult<Empty> {
        let empty = self.take(home)?;
        if let Some(numbered) = self.numbered(empty.0) {
            // SAFETY: an `Empty` is made where the lock is left locked.
            let mut slot = unsafe { numbered.slot.resume() };
            (slot.home, slot.occupant) = (home as u32, occupant);
            numbered.set(FREE);
            slot.leave_locked();
        }
        Ok(empty)
    }

    /// Puts a block into the slot; `allocation` is its first use.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    #[inline(always)]
    pub(crate) unsafe fn occupy(
        &self,
        Empty(index): Empty,
        generation: Generation,
        allocation: UseId,
    ) -> u32 {
        if let Some(numbered) = self.numbered(index) {
            // SAFETY: an `Empty` is made where the lock is left locked, once, and used up here.
            let mut slot = unsafe { numbered.slot.resume() };
            (slot.retired, slot.used) = (false, false);
            slot.ledger.restart(allocation);
            numbered.set(generation.get());
        }
        index
    }

    /// Takes a live block of this owner from its holder, and out of its slot unless a window is open. Calls
    /// `need` with what a free would have to come after, which stays in the ledger.
    #[inline(always)]
    pub(crate) fn release(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        need: impl FnMut(UseId),
    ) -> SlotRelease {
        let Some(index) = block.slot().index() else { return SlotRelease::Foreign };
        let Some((numbered, mut slot)) = self.of_owner(block, owner) else {
            return SlotRelease::Foreign;
        };
        if slot.retired {
            return SlotRelease::Stale;
        }
        let payload = slot.occupant.payload;
        if !slot.windows.is_empty() {
            slot.retired = true;
            return SlotRelease::InUse { payload };
        }
        SlotRelease::Free { empty: Self::take_out(index, numbered, slot, need), payload }
    }

    /// Takes a retired block of this owner out of its slot; `None` while a window is open, unless all
    /// windows have `ended`.
    pub(crate) fn release_retired(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        ended: bool,
        need: impl FnMut(UseId),
    ) -> Option<Empty> {
        let index = block.slot().index()?;
        let (numbered, mut slot) = self.of_owner(block, owner)?;
        if ended {
            slot.windows.clear();
        }
        if !slot.retired || !slot.windows.is_empty() {
            return None;
        }
        Some(Self::take_out(index, numbered, slot, need))
    }

    #[inline(always)]
    fn take_out(
        index: u32,
        numbered: &UseSlot,
        slot: SpinLockGuard<'_, SlotState>,
        need: impl FnMut(UseId),
    ) -> Empty {
        numbered.set(numbered.get() | FREE);
        // Where nothing was used, the ledger has the allocation, which was at home.
        if slot.used {
            slot.ledger.visit_free_waits(need);
        }
        slot.leave_locked();
        Empty(index)
    }

    /// Puts the last block back that has left the slot, with its ledger as it was: live or retired.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    pub(crate) unsafe fn put_back(&self, Empty(index): Empty, retired: bool) {
        if let Some(numbered) = self.numbered(index) {
            // SAFETY: as in `occupy`.
            let mut slot = unsafe { numbered.slot.resume() };
            slot.retired = retired;
            numbered.set(numbered.get() & !FREE);
        }
    }

    /// Frees the slot for any block of the stream that it was reserved for.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    #[inline]
    pub(crate) unsafe fn vacate(&self, empty: Empty) {
        if let Some(numbered) = self.numbered(empty.0) {
            // SAFETY: as in `occupy`.
            let slot = unsafe { numbered.slot.resume() };
            let home = slot.home;
            slot.leave_locked();
            self.free[home as usize].lock().push(empty);
        }
    }

    /// Takes a slot that no block has, of those that the home stream was given.
    #[inline]
    fn take(&self, home: usize) -> ResourceResult<Empty> {
        let free = self.free[home].lock().pop();
        free.map_or_else(|| self.take_new(home), Ok)
    }

    /// Takes one of a batch that no stream had before.
    #[cold]
    fn take_new(&self, home: usize) -> ResourceResult<Empty> {
        let more = |given: usize| Some(given + BATCH).filter(|end| *end <= MOST);
        let first = self
            .given
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| ResourceError::capacity("slots of the use table", MOST))?;
        self.make_chunk(first);
        let first = first as u32;
        self.free[home].lock().extend((first + 1..first + BATCH as u32).rev().map(Empty));
        Ok(Empty(first))
    }
}
