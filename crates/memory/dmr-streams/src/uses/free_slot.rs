//! The life of a use slot, as the calls of its owner: reserve, occupy, release, restore, defer,
//! vacate.
//!
//! The functions of `Slots` make no driver call, so that they can be model-checked.

use dmr_core::error::StreamProblem;
use dmr_core::ledger::UseId;
use dmr_core::{
    Access, BlockId, BlockSlot, DeviceBlock, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId,
};

use super::closed::OwnerNumber;
use super::slot_state::{Occupant, SlotState};
use super::slots::{BATCH, FREE, MOST, Slots, UseSlot};
use super::{Dependencies, UseTable};
use crate::sync::Ordering;
use crate::{BlockOwner, HomeStream, StreamGuard};
use dmr_core::SpinLockGuard;

/// A use slot without a block, for the next block of the owner that reserved it, on any stream.
/// Occupying it takes no lock: the slot's own is left locked, so that only the holder of this value
/// reaches it.
///
/// Dropping it leaks the slot; [`UseTable::vacate`] returns it to the table.
#[derive(Debug)]
#[must_use = "dropping it leaks the slot"]
pub struct FreeSlot {
    index: u32,
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
    /// A window is open, so the block is *retired*: its id is stale from now on. The thread that
    /// closes the last window puts it on the [closed queue](super::BlocksInUse) of its owner, and
    /// [`UseTable::release_retired`] returns the slot.
    InUse {
        /// The payload of the slot.
        payload: u64,
        /// The stream of the window that was opened first.
        holder: StreamId,
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
    /// Returns a use slot for blocks of `owner`, with a `payload` that [`release`](Self::release)
    /// returns. The slot lies near other slots of the stream `home`.
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
        self.slots().reserve(home.slot(), occupant)
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
        home.occupy(slot, generation).map_err(|_| self.pool.misuse(home.id()))
    }

    /// As [`insert`](Self::insert), for a block whose memory no device work uses: no stream waits
    /// for its allocation.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn insert_unused(
        &self,
        owner: &BlockOwner,
        generation: Generation,
        home: &StreamGuard<'_>,
        payload: u64,
    ) -> ResourceResult<BlockSlot> {
        let slot = self.reserve(owner, payload, home.id())?;
        let before_all_uses = UseId::new(home.slot(), 0);
        let occupied = self.slots().occupy(slot, generation, before_all_uses);
        occupied.map_err(|_| self.pool.misuse(home.id()))
    }

    /// Releases a block: from now on its id is stale, and preparing a use of it is
    /// [`UseAfterFree`](ResourceError::UseAfterFree). Adds the dependencies of its memory on its
    /// home stream to `after`; on any other stream, the memory must also come after the work
    /// submitted to the home stream by now. Makes no driver call.
    #[inline(always)]
    pub fn release(
        &self,
        owner: &BlockOwner,
        block: BlockId,
        after: &mut Dependencies,
    ) -> Released {
        let need = self.needs_at(block.alloc_stream(), after);
        self.slots().release(block, owner.number(), need)
    }

    /// Releases a block as [`release`](Self::release) does if no window is open. Otherwise nothing
    /// changes.
    #[must_use]
    pub fn release_closed(
        &self,
        owner: &BlockOwner,
        block: BlockId,
        after: &mut Dependencies,
    ) -> Released {
        let need = self.needs_at(block.alloc_stream(), after);
        self.slots().release_as(block, owner.number(), false, need)
    }

    /// Releases a block whose memory leaves its owner, and makes its home stream wait for all
    /// recorded uses. Returns its slot and the slot's payload.
    ///
    /// # Errors
    ///
    /// The block is as it was. [`ForeignBlock`](ResourceError::ForeignBlock) and
    /// [`UseAfterFree`](ResourceError::UseAfterFree);
    /// [`WindowConflict`](ResourceError::WindowConflict) while a window is open; as
    /// [`wait_for`](Self::wait_for).
    pub fn release_after_uses(
        &self,
        owner: &BlockOwner,
        block: &DeviceBlock,
    ) -> ResourceResult<(FreeSlot, u64)> {
        let id = block.id();
        let home = id.alloc_stream();
        // First: another thread may have held a lock when the process was forked.
        let HomeStream::Live(stream) = self.pool.enter_home(home)? else {
            return Err(self.pool.misuse(home));
        };
        stream.refuse_capture()?;
        let mut after = Dependencies::default();
        match self.release_closed(owner, id, &mut after) {
            Released::Foreign => {
                Err(ResourceError::foreign_block(block, self.pool.device().ordinal()))
            }
            Released::Stale => Err(ResourceError::use_after_free(id.generation())),
            Released::InUse { holder, .. } => {
                let access = Access::ReadWrite;
                Err(ResourceError::window_conflict(id.generation(), holder, home, access))
            }
            Released::Free { slot, payload } => match self.wait_on(&stream, &after) {
                Ok(()) => Ok((slot, payload)),
                Err(error) => {
                    self.restore(slot);
                    Err(error)
                }
            },
        }
    }

    /// Removes a retired block from its slot: one that was released while it was
    /// [`InUse`](Released::InUse), or [deferred](Self::defer). Adds to `after` as
    /// [`release`](Self::release) does. Returns `None` while a window is open, except on a lost
    /// device, whose work has ended.
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
        self.slots().release_retired(block, owner.number(), is_lost, need)
    }

    /// Restores the block that has left the slot, because its free has failed: it is live again,
    /// with all its uses.
    #[cold]
    pub fn restore(&self, slot: FreeSlot) {
        self.slots().reinsert(slot, false);
    }

    /// Retires the block that has left the slot, because its memory cannot be freed yet: its id is
    /// [retired](Self::is_retired) until [`release_retired`](Self::release_retired).
    pub fn defer(&self, slot: FreeSlot) {
        self.slots().reinsert(slot, true);
    }

    /// Returns a slot to the table, for any block of the stream that it was reserved for. A slot of
    /// another table is leaked there.
    #[inline]
    pub fn vacate(&self, slot: FreeSlot) {
        self.slots().vacate(slot);
    }

    /// Returns the payload of the slot of a live block of `owner`.
    #[must_use]
    pub fn payload(&self, owner: &BlockOwner, block: BlockId) -> Option<u64> {
        self.slots().payload(block, owner.number())
    }

    /// Returns a visitor that adds to `after` the uses for which the stream `home` would have to
    /// wait.
    #[inline(always)]
    fn needs_at<'a>(
        &'a self,
        home: StreamId,
        after: &'a mut Dependencies,
    ) -> impl FnMut(UseId) + 'a {
        let slot = home.slot();
        let pool = self.pool.id();
        move |used| {
            if self.holds_up(slot, used) {
                after.push(pool, used);
            }
        }
    }
}

impl StreamGuard<'_> {
    /// Puts a block into a slot. Its allocation has just been submitted to this stream, and counts
    /// as a write: work on other streams waits for it. Makes no driver call.
    ///
    /// # Errors
    ///
    /// The slot, unchanged, if it is of another pool.
    #[inline(always)]
    pub fn occupy(&self, slot: FreeSlot, generation: Generation) -> Result<BlockSlot, FreeSlot> {
        let allocation = self.pool().progress().submitted(self.slot());
        self.pool().slots().occupy(slot, generation, allocation)
    }
}

impl Slots {
    /// Reserves one of the free slots of the stream in `home`.
    #[inline]
    pub(super) fn reserve(&self, home: usize, occupant: Occupant) -> ResourceResult<FreeSlot> {
        let popped = self.free[home].lock().pop();
        let index = popped.map_or_else(|| self.give_batch(home), Ok)?;
        if let Ok((entry, mut state)) = self.resume(self.free_slot(index)) {
            state.home = home as u32;
            state.occupant = occupant;
            entry.set(FREE);
            state.leave_locked();
        }
        Ok(self.free_slot(index))
    }

    /// Puts a block into a slot; `allocation` is its first use. Returns a slot of another table
    /// unchanged.
    #[inline(always)]
    pub(super) fn occupy(
        &self,
        free: FreeSlot,
        generation: Generation,
        allocation: UseId,
    ) -> Result<BlockSlot, FreeSlot> {
        let index = free.index;
        let (entry, mut state) = self.resume(free)?;
        state.retired = false;
        state.used = false;
        state.restart(allocation);
        entry.set(generation.get());
        Ok(BlockSlot::new(index))
    }

    /// Releases a live block of this owner: retires it if a window is open, and removes it from its
    /// slot otherwise. Calls `need` with each use that its free must come after; these stay in the
    /// ledger.
    #[inline(always)]
    pub(super) fn release(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        need: impl FnMut(UseId),
    ) -> Released {
        self.release_as(block, owner, true, need)
    }

    /// Releases a live block of this owner, as [`release`](Self::release) does if no window is
    /// open. Otherwise the block is retired if `retires`, and stays live if not.
    #[inline(always)]
    fn release_as(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        retires: bool,
        need: impl FnMut(UseId),
    ) -> Released {
        let Some((entry, mut state)) = self.of_owner(block, owner) else {
            return Released::Foreign;
        };
        if state.retired {
            return Released::Stale;
        }
        let payload = state.occupant.payload;
        if let Some(first) = state.windows.first() {
            let holder = first.stream;
            state.retired = retires;
            return Released::InUse { payload, holder };
        }
        Released::Free { slot: self.remove_block(block.slot(), entry, state, need), payload }
    }

    /// Removes a retired block of this owner from its slot. Returns `None` while a window is open,
    /// unless all windows have `ended`.
    pub(super) fn release_retired(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        ended: bool,
        need: impl FnMut(UseId),
    ) -> Option<FreeSlot> {
        let (entry, mut state) = self.of_owner(block, owner)?;
        if !state.retired || !(ended || state.windows.is_empty()) {
            return None;
        }
        state.close_all();
        Some(self.remove_block(block.slot(), entry, state, need))
    }

    /// Removes the block from a slot. Calls `need` as [`release`](Self::release) does.
    #[inline(always)]
    fn remove_block(
        &self,
        of_block: BlockSlot,
        entry: &UseSlot,
        state: SpinLockGuard<'_, SlotState>,
        need: impl FnMut(UseId),
    ) -> FreeSlot {
        entry.set(entry.get() | FREE);
        // Without a use the ledger has only the allocation, which was on the home stream.
        if state.used {
            state.visit_free_waits(need);
        }
        state.leave_locked();
        self.free_slot(of_block.to_bits() % MOST as u32)
    }

    /// Restores the block that has left the slot, with its ledger as it was: live, or retired.
    pub(super) fn reinsert(&self, free: FreeSlot, retired: bool) {
        if let Ok((entry, mut state)) = self.resume(free) {
            state.retired = retired;
            entry.set(entry.get() & !FREE);
        }
    }

    /// Frees the slot for any block of the stream that it was reserved for.
    #[inline]
    fn vacate(&self, free: FreeSlot) {
        let index = free.index;
        if let Ok((_, state)) = self.resume(free) {
            let home = state.home;
            state.leave_locked();
            self.free[home as usize].lock().push(index);
        }
    }

    /// Returns the state of a free slot, whose lock was left locked. Returns a slot of another
    /// table unchanged.
    #[inline(always)]
    fn resume(&self, free: FreeSlot) -> Result<(&UseSlot, SpinLockGuard<'_, SlotState>), FreeSlot> {
        match self.entry(free.index) {
            Some(entry) if free.pool == self.pool => {
                // SAFETY: a `FreeSlot` of this table is made where the lock is left locked, once,
                // and consumed here.
                Ok((entry, unsafe { entry.state.resume() }))
            }
            _ => Err(free),
        }
    }

    #[inline]
    fn free_slot(&self, index: u32) -> FreeSlot {
        FreeSlot { index, pool: self.pool }
    }

    /// Gives the home stream a batch of new slots, and returns the index of the first.
    #[cold]
    fn give_batch(&self, home: usize) -> ResourceResult<u32> {
        let more = |given: usize| Some(given + BATCH).filter(|end| *end <= MOST);
        let first = self
            .given
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| ResourceError::capacity("slots of the use table", MOST))?;
        self.make_chunk(first);
        let first = first as u32;
        self.free[home].lock().extend((first + 1..first + BATCH as u32).rev());
        Ok(first)
    }
}
