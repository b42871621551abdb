//! Free slots: reserving, occupying, releasing and vacating them.

use dmr_core::ledger::UseId;
use dmr_core::{BlockId, Generation, ResourceError, ResourceResult};

use super::{BATCH, Empty, FREE, MOST, Occupant, SlotState, Slots, UseSlot};
use crate::owner::OwnerNumber;
use crate::spinlock::SpinLockGuard;
use crate::sync::Ordering;

/// The result of [`Slots::release`], as [`Released`](crate::uses::Released).
pub(crate) enum SlotRelease {
    Foreign,
    Stale,
    InUse { payload: u64 },
    Free { empty: Empty, payload: u64 },
}

impl Slots {
    /// Reserves one of the free slots of the stream in `home`.
    #[inline]
    pub(crate) fn reserve(&self, home: usize, occupant: Occupant) -> ResourceResult<Empty> {
        let empty = self.pop_free(home)?;
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
            // SAFETY: an `Empty` is made where the lock is left locked, once, and consumed here.
            let mut slot = unsafe { numbered.slot.resume() };
            (slot.retired, slot.used) = (false, false);
            slot.ledger.restart(allocation);
            numbered.set(generation.get());
        }
        index
    }

    /// Releases a live block of this owner: retires it if a window is open, and removes it from its slot
    /// otherwise. Calls `need` with each use that its free must come after; these stay in the ledger.
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
        SlotRelease::Free { empty: Self::remove_block(index, numbered, slot, need), payload }
    }

    /// Removes a retired block of this owner from its slot. Returns `None` while a window is open, unless
    /// all windows have `ended`.
    pub(crate) fn release_retired(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        ended: bool,
        need: impl FnMut(UseId),
    ) -> Option<Empty> {
        let index = block.slot().index()?;
        let (numbered, mut slot) = self.of_owner(block, owner)?;
        if !slot.retired || !(ended || slot.windows.is_empty()) {
            return None;
        }
        slot.windows.clear();
        Some(Self::remove_block(index, numbered, slot, need))
    }

    /// Removes the block from a slot. Calls `need` as [`release`](Self::release) does.
    #[inline(always)]
    fn remove_block(
        index: u32,
        numbered: &UseSlot,
        slot: SpinLockGuard<'_, SlotState>,
        need: impl FnMut(UseId),
    ) -> Empty {
        numbered.set(numbered.get() | FREE);
        // Without a use the ledger has only the allocation, which was on the home stream.
        if slot.used {
            slot.ledger.visit_free_waits(need);
        }
        slot.leave_locked();
        Empty(index)
    }

    /// Restores the block that has left the slot, with its ledger as it was: live, or retired.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    pub(crate) unsafe fn reinsert(&self, Empty(index): Empty, retired: bool) {
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

    /// Removes a slot from the free slots of the home stream.
    #[inline]
    fn pop_free(&self, home: usize) -> ResourceResult<Empty> {
        let free = self.free[home].lock().pop();
        free.map_or_else(|| self.give_batch(home), Ok)
    }

    /// Gives the home stream a batch of new slots, and returns the first.
    #[cold]
    fn give_batch(&self, home: usize) -> ResourceResult<Empty> {
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
