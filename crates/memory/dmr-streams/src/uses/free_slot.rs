//! The life of a use slot, as the calls of its owner: reserve, occupy, release, restore, defer,
//! vacate.
//!
//! The functions of `Slots` make no driver call, so that they can be model-checked.

use std::ptr::NonNull;

use dmr_core::error::StreamProblem;
use dmr_core::ledger::UseId;
use dmr_core::{
    Access, BlockId, BlockSlot, DeviceBlock, Generation, ResourceError, ResourceResult, StreamId,
    StreamPoolId,
};

use super::closed::OwnerNumber;
use super::slot_state::{AWAITED, Launches, Occupant, USES};
use super::slots::{BATCH, MOST, Slots};
use super::use_slot::{LockedSlot, UseSlot};
use super::{Dependencies, UseTable};
use crate::progress::Progress;
use crate::sync::Ordering;
use crate::{BlockOwner, EnteredStream, HomeStream, StreamGuard};

/// A use slot without a block, for the next block of the owner that reserved it, on any stream.
/// Occupying it takes no lock: only the holder of this value reaches a slot without a block.
///
/// Dropping it leaks the slot; [`UseTable::vacate`] returns it to the table.
#[derive(Debug)]
#[must_use = "dropping it leaks the slot"]
pub struct FreeSlot {
    /// Lives as long as its use table.
    slot: NonNull<UseSlot>,
    /// The stream pool of its use table.
    pool: StreamPoolId,
}

// SAFETY: the only way to the slot's state, for whichever thread has it.
unsafe impl Send for FreeSlot {}
// SAFETY: a shared reference gives no access.
unsafe impl Sync for FreeSlot {}

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

/// A live block that this thread has locked: from [`UseTable::try_lock`]. Dropping it unlocks the
/// block. Do nothing else meanwhile: other threads spin.
pub struct LockedBlock<'p> {
    slot: LockedSlot<'p>,
    pool: StreamPoolId,
    launches: &'p Progress,
}

/// A block that has left its slot: the result of [`LockedBlock::release`].
#[derive(Debug)]
pub struct ReleasedBlock {
    /// The slot.
    pub slot: FreeSlot,
    /// The payload of the slot.
    pub payload: u64,
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
        self.slots().release(block, owner.number(), self.launches(), need)
    }

    /// Locks a live block of `owner`, to release it on the regular path. Returns `None` if it is
    /// not there, and if another thread has locked it.
    #[must_use]
    #[inline(always)]
    pub fn try_lock(&self, owner: &BlockOwner, block: BlockId) -> Option<LockedBlock<'_>> {
        let slot = self.slots().try_lock(block, owner.number())?;
        Some(LockedBlock { slot, pool: self.pool.id(), launches: self.launches() })
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
        self.slots().release_as(block, owner.number(), false, self.launches(), need)
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
        self.slots().release_retired(block, owner.number(), is_lost, self.launches(), need)
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
                after.add_use(pool, used);
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
        let mut free = popped.map_or_else(|| self.give_batch(home), Ok)?;
        let mut slot = self.resume(&mut free);
        slot.home = home as u32;
        slot.occupant = occupant;
        slot.forget_block();
        drop(slot);
        Ok(free)
    }

    /// Puts a block into a slot; `allocation` is its first use. Returns a slot of another table
    /// unchanged.
    #[inline(always)]
    pub(crate) fn occupy(
        &self,
        mut free: FreeSlot,
        generation: Generation,
        allocation: UseId,
    ) -> Result<BlockSlot, FreeSlot> {
        if free.pool != self.pool {
            return Err(free);
        }
        let mut slot = self.resume(&mut free);
        slot.restart(allocation);
        slot.set_block(generation.get());
        Ok(BlockSlot::new(slot.index()))
    }

    /// Locks the slot of a live block of this owner, unless another thread has locked it.
    #[inline(always)]
    pub(super) fn try_lock(&self, block: BlockId, owner: OwnerNumber) -> Option<LockedSlot<'_>> {
        let slot = self.entry(block.slot().to_bits())?;
        let slot = slot.try_lock_live(block.generation().get())?;
        if slot.occupant.owner == Some(owner) { Some(slot) } else { None }
    }

    /// Releases a live block of this owner: retires it if a window is open, and removes it from its
    /// slot otherwise. Calls `need` with each use that its free must come after; these stay in the
    /// ledger.
    pub(super) fn release(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        launches: &impl Launches,
        need: impl FnMut(UseId),
    ) -> Released {
        self.release_as(block, owner, true, launches, need)
    }

    /// Releases a live block of this owner, as [`release`](Self::release) does if no window is
    /// open. Otherwise the block is retired if `retires`, and stays live if not.
    fn release_as(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        retires: bool,
        launches: &impl Launches,
        need: impl FnMut(UseId),
    ) -> Released {
        let Some(mut slot) = self.of_owner(block, owner) else { return Released::Foreign };
        if slot.is_retired() {
            return Released::Stale;
        }
        if retires {
            slot.watch(launches);
        }
        slot.settle(launches);
        let payload = slot.occupant.payload;
        if let Some(first) = slot.windows.first() {
            let holder = first.stream;
            if retires {
                slot.retire();
                slot.marks |= AWAITED;
            }
            return Released::InUse { payload, holder };
        }
        Released::Free { slot: self.remove_block(slot, need), payload }
    }

    /// Removes a retired block of this owner from its slot. Returns `None` while a window is open,
    /// unless all windows have `ended`.
    pub(super) fn release_retired(
        &self,
        block: BlockId,
        owner: OwnerNumber,
        ended: bool,
        launches: &impl Launches,
        need: impl FnMut(UseId),
    ) -> Option<FreeSlot> {
        let mut slot = self.of_owner(block, owner)?;
        slot.settle(launches);
        if !slot.is_retired() || !(ended || slot.windows.is_empty()) {
            return None;
        }
        slot.close_all();
        Some(self.remove_block(slot, need))
    }

    /// Removes the block from a slot. Calls `need` as [`release`](Self::release) does.
    fn remove_block(&self, mut slot: LockedSlot<'_>, need: impl FnMut(UseId)) -> FreeSlot {
        slot.set_free();
        // Without a use the ledger has only the allocation, which was on the home stream.
        if slot.marks & USES != 0 {
            slot.visit_free_waits(need);
        }
        FreeSlot { slot: slot.slot(), pool: self.pool }
    }

    /// Restores the block that has left the slot, with its ledger as it was: live, or retired.
    pub(super) fn reinsert(&self, mut free: FreeSlot, retired: bool) {
        if free.pool == self.pool {
            let mut slot = self.resume(&mut free);
            slot.set_last_block();
            if retired {
                slot.retire();
            }
        }
    }

    /// Frees the slot for any block of the stream that it was reserved for.
    #[inline]
    fn vacate(&self, mut free: FreeSlot) {
        if free.pool == self.pool {
            let home = self.resume(&mut free).home as usize;
            self.free[home].lock().push(free);
        }
    }

    /// Returns access to a free slot of this table.
    #[inline(always)]
    fn resume<'s>(&'s self, free: &'s mut FreeSlot) -> LockedSlot<'s> {
        debug_assert!(free.pool == self.pool);
        // SAFETY: the slot lives as long as its table, which is this one. Its `FreeSlot` exists
        // once, and is borrowed.
        unsafe { free.slot.as_ref().resume() }
    }

    /// Gives the home stream a batch of new slots, and returns the first.
    #[cold]
    fn give_batch(&self, home: usize) -> ResourceResult<FreeSlot> {
        let more = |given: usize| Some(given + BATCH).filter(|end| *end <= MOST);
        let capacity = || ResourceError::capacity("slots of the use table", MOST);
        let first = self
            .given
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| capacity())?;
        self.make_chunk(first);
        let free_slot = |index: usize| {
            let slot = NonNull::from(self.entry(index as u32)?);
            Some(FreeSlot { slot, pool: self.pool })
        };
        self.free[home].lock().extend((first + 1..first + BATCH).rev().filter_map(free_slot));
        free_slot(first).ok_or_else(capacity)
    }
}

impl LockedSlot<'_> {
    /// Has the launches of all windows look at the block at their ends.
    fn watch(&mut self, launches: &impl Launches) {
        self.list_last();
        for window in &self.windows {
            // One that is over is settled next.
            launches.watch(window.launch());
        }
    }
}

impl LockedBlock<'_> {
    /// Returns whether nothing but its home stream has used the block, and no window is open.
    #[must_use]
    #[inline(always)]
    pub fn is_unused(&self) -> bool {
        self.slot.marks == 0
    }

    /// Settles the block. Returns the use of another stream that its memory comes after on `home`,
    /// its home stream, if there is one. Returns `Err` if there are more, or a window is open, or
    /// parts of the block were used.
    #[allow(clippy::result_unit_err, reason = "the call goes on with `UseTable::release`")]
    pub fn settle(&mut self, home: &EnteredStream<'_>) -> Result<Option<UseId>, ()> {
        if !self.slot.settle_last(|launch| self.launches.is_over(launch)) {
            return Err(());
        }
        let mut after = None;
        let mut count = 0;
        self.slot.ledger.visit_free_waits(|used| {
            if self.launches.holds_up(home.slot(), used) {
                after = Some(used);
                count += 1;
            }
        });
        if count > 1 { Err(()) } else { Ok(after) }
    }

    /// Removes the block from its slot. It [is unused](Self::is_unused), or was
    /// [settled](Self::settle).
    #[inline(always)]
    pub fn release(mut self) -> ReleasedBlock {
        debug_assert!(self.slot.marks & !USES == 0);
        let payload = self.slot.occupant.payload;
        self.slot.set_free();
        let slot = FreeSlot { slot: self.slot.slot(), pool: self.pool };
        ReleasedBlock { slot, payload }
    }
}
