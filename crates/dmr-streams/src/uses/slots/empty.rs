//! Slots that no block is in: where they come from, and what their keepers do with them.

use dmr_core::ledger::UseId;
use dmr_core::{BlockId, Generation, ResourceError, ResourceResult};

use super::{BATCH, Empty, MOST, Slots, Tenancy};
use crate::sync::Ordering;

impl Slots {
    /// A slot for all blocks of one owner that come from one place, one after the other: out of
    /// those of the stream in `home`.
    #[inline]
    pub(crate) fn reserve(&self, home: usize, tenancy: Tenancy) -> ResourceResult<Empty> {
        let empty = self.take(home)?;
        if let Some(numbered) = self.numbered(empty.0) {
            // SAFETY: an `Empty` is made where the latch is left taken.
            let mut slot = unsafe { numbered.slot.resume() };
            (slot.home, slot.tenancy) = (home as u32, tenancy);
            slot.leave_taken();
        }
        Ok(empty)
    }

    /// The owner's next block is in the slot; `home` stands for its allocation.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    #[inline(always)]
    pub(crate) unsafe fn fill(
        &self,
        Empty(index): Empty,
        generation: Generation,
        home: UseId,
    ) -> u32 {
        if let Some(numbered) = self.numbered(index) {
            // SAFETY: an `Empty` is made where the latch is left taken, once, and used up here.
            let mut slot = unsafe { numbered.slot.resume() };
            slot.begin(home);
            numbered.set(generation.get());
        }
        index
    }

    /// The slot is free for any block of the stream that it was reserved for.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    #[inline]
    pub(crate) unsafe fn give_up(&self, empty: Empty) {
        if let Some(numbered) = self.numbered(empty.0) {
            // SAFETY: as in `fill`.
            let slot = unsafe { numbered.slot.resume() };
            let home = slot.home;
            slot.leave_taken();
            self.free[home as usize].lock().push(empty);
        }
    }

    /// Forgets what has become of the last block.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    pub(crate) unsafe fn forget(&self, empty: &mut Empty) {
        if let Some(numbered) = self.numbered(empty.0) {
            // SAFETY: as in `take_waits`.
            let mut slot = unsafe { numbered.slot.resume() };
            slot.ledger.forget();
            slot.leave_taken();
        }
    }

    /// Tells `keep` what a free of the slot's last block would have to wait for. It is not in the
    /// slot any more then.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    pub(crate) unsafe fn take_waits(&self, empty: &mut Empty, keep: impl FnMut(UseId)) {
        if let Some(numbered) = self.numbered(empty.0) {
            // SAFETY: an `Empty` is made where the latch is left taken, and stays borrowed while it
            // is not.
            let mut slot = unsafe { numbered.slot.resume() };
            slot.take_waits(keep);
            slot.leave_taken();
        }
    }

    /// The block that has left its slot is there again, as it was.
    ///
    /// # Safety
    ///
    /// The slot is of this table.
    pub(crate) unsafe fn restore(&self, Empty(index): Empty, block: BlockId) {
        if let Some(numbered) = self.numbered(index) {
            // SAFETY: as in `fill`.
            let _slot = unsafe { numbered.slot.resume() };
            numbered.set(block.generation().get());
        }
    }

    /// A slot that no block has, of those that the home stream was given.
    #[inline]
    fn take(&self, home: usize) -> ResourceResult<Empty> {
        let free = self.free[home].lock().pop();
        free.map_or_else(|| self.take_new(home), Ok)
    }

    /// One of a batch that no stream had before.
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
