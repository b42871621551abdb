//! The life of a use slot, as the calls of its owner: reserve, occupy, release, restore, defer, vacate.

use dmr_core::error::StreamProblem;
use dmr_core::{
    BlockId, BlockSlot, Generation, ResourceError, ResourceResult, StreamId, StreamPoolId,
};

use super::slots::{Empty, Occupant, SlotRelease};
use super::{Dependencies, UseTable};
use crate::{BlockOwner, StreamGuard};

/// A use slot without a block, for the next block of the owner that reserved it, on any stream. Occupying it
/// takes no lock.
///
/// Dropping it leaks the slot; [`UseTable::vacate`] returns it to the table.
#[derive(Debug)]
#[must_use = "dropping it leaks the slot"]
pub struct FreeSlot {
    empty: Empty,
    /// The stream pool of its use table.
    pool: StreamPoolId,
}

/// The result of [`UseTable::release`].
#[derive(Debug)]
pub enum Released {
    /// Nothing has changed: the block is of another owner, or of none.
    Foreign,
    /// Nothing has changed: the block was released before.
    Stale,
    /// A window is open, so the block is *retired*: its id is stale from now on. The thread that closes
    /// the last window puts it on the [closed queue](super::BlocksInUse) of its owner, and
    /// [`UseTable::release_retired`] returns the slot.
    InUse {
        /// The payload of the slot.
        payload: u64,
    },
    /// The block has left its slot, and its id is stale.
    Free {
        /// The slot. It remembers the block's uses until it is occupied again, for
        /// [`restore`](UseTable::restore).
        slot: FreeSlot,
        /// The payload of the slot.
        payload: u64,
    },
}

impl UseTable<'_> {
    /// Returns a use slot for blocks of `owner`, with a `payload` that [`release`](Self::release) returns.
    /// The slot lies near other slots of the stream `home`.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream or an owner of another pool;
    /// [`Capacity`](ResourceError::Capacity) once there are 2²⁶ slots.
    pub fn reserve(
        &self,
        owner: &BlockOwner,
        payload: u64,
        home: StreamId,
    ) -> ResourceResult<FreeSlot> {
        let home = self.of_this_pool(home)?;
        if owner.pool() != self.pool.id() {
            return Err(ResourceError::stream_misuse(home, StreamProblem::OtherPool));
        }
        let occupant = Occupant { owner: Some(owner.number()), payload };
        Ok(self.free_slot(self.slots().reserve(home.slot(), occupant)?))
    }

    /// Puts a block into a slot. Its allocation has just been submitted to `home`, and counts as a write:
    /// work on other streams waits for it. Makes no driver call.
    ///
    /// # Errors
    ///
    /// The slot, if it or the stream is of another pool.
    #[inline(always)]
    pub fn occupy(
        &self,
        slot: FreeSlot,
        generation: Generation,
        home: &StreamGuard<'_>,
    ) -> Result<BlockSlot, NotOccupied> {
        let home = home.id();
        if slot.pool != self.pool.id() || home.pool() != Some(slot.pool) {
            let error = ResourceError::stream_misuse(home, StreamProblem::OtherPool);
            return Err(NotOccupied { slot, error });
        }
        let allocation = self.pool.progress().submitted(home.slot());
        // SAFETY: the slot is of the table of this pool.
        Ok(BlockSlot::new(unsafe { self.slots().occupy(slot.empty, generation, allocation) }))
    }

    /// Reserves a slot and puts a block into it.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn insert(
        &self,
        owner: &BlockOwner,
        generation: Generation,
        home: &StreamGuard<'_>,
        payload: u64,
    ) -> ResourceResult<BlockSlot> {
        let slot = self.reserve(owner, payload, home.id())?;
        self.occupy(slot, generation, home).map_err(|NotOccupied { slot, error }| {
            self.vacate(slot);
            error
        })
    }

    /// Releases a block: from now on its id is stale, and preparing a use of it is
    /// [`UseAfterFree`](ResourceError::UseAfterFree). Adds the dependencies of its memory on its home stream
    /// to `after`; on any other stream, the memory must also come after the work submitted to the home
    /// stream by now. Makes no driver call.
    #[inline(always)]
    pub fn release(
        &self,
        owner: &BlockOwner,
        block: BlockId,
        after: &mut Dependencies,
    ) -> Released {
        let need = self.needs_at(block.alloc_stream(), after);
        match self.slots().release(block, owner.number(), need) {
            SlotRelease::Foreign => Released::Foreign,
            SlotRelease::Stale => Released::Stale,
            SlotRelease::InUse { payload } => Released::InUse { payload },
            SlotRelease::Free { empty, payload } => {
                Released::Free { slot: self.free_slot(empty), payload }
            }
        }
    }

    /// Removes a retired block from its slot: one that was released while it was
    /// [`InUse`](Released::InUse), or [deferred](Self::defer). Adds to `after` as
    /// [`release`](Self::release) does. Returns `None` while a window is open, except on a lost device, whose
    /// work has ended.
    #[must_use]
    pub fn release_retired(
        &self,
        owner: &BlockOwner,
        block: BlockId,
        after: &mut Dependencies,
    ) -> Option<FreeSlot> {
        if self.pool.device().is_forked() {
            return None;
        }
        let is_lost = self.pool.device().is_lost();
        let need = self.needs_at(block.alloc_stream(), after);
        let empty = self.slots().release_retired(block, owner.number(), is_lost, need)?;
        Some(self.free_slot(empty))
    }

    /// Restores the block that has left the slot, because its free has failed: it is live again, with all its
    /// uses.
    #[cold]
    pub fn restore(&self, slot: FreeSlot) {
        if slot.pool == self.pool.id() {
            // SAFETY: the slot is of the table of this pool.
            unsafe { self.slots().reinsert(slot.empty, false) };
        }
    }

    /// Retires the block that has left the slot, because its memory cannot be freed yet: its id is
    /// [retired](Self::is_retired) until [`release_retired`](Self::release_retired).
    pub fn defer(&self, slot: FreeSlot) {
        if slot.pool == self.pool.id() {
            // SAFETY: the slot is of the table of this pool.
            unsafe { self.slots().reinsert(slot.empty, true) };
        }
    }

    /// Returns a slot to the table, for any block of the stream that it was reserved for. A slot of another
    /// table is leaked there.
    #[inline]
    pub fn vacate(&self, slot: FreeSlot) {
        if slot.pool == self.pool.id() {
            // SAFETY: the slot is of the table of this pool.
            unsafe { self.slots().vacate(slot.empty) };
        }
    }

    /// Returns the payload of the slot of a live block of `owner`.
    #[must_use]
    pub fn payload(&self, owner: &BlockOwner, block: BlockId) -> Option<u64> {
        self.slots().payload(block, owner.number())
    }

    #[inline]
    fn free_slot(&self, empty: Empty) -> FreeSlot {
        FreeSlot { empty, pool: self.pool.id() }
    }

    /// Returns a visitor that adds to `after` the uses for which the stream `home` would have to wait.
    #[inline(always)]
    fn needs_at<'a>(
        &'a self,
        home: StreamId,
        after: &'a mut Dependencies,
    ) -> impl FnMut(dmr_core::ledger::UseId) + 'a {
        let (slot, pool) = (home.slot(), self.pool.id());
        move |used| {
            if self.holds_up(slot, used) {
                after.push(pool, used);
            }
        }
    }
}

/// The error of [`UseTable::occupy`].
#[derive(Debug)]
pub struct NotOccupied {
    /// The slot, unchanged.
    pub slot: FreeSlot,
    /// [`StreamMisuse`](ResourceError::StreamMisuse): it is of another pool.
    pub error: ResourceError,
}
