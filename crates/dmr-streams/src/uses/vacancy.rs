//! Slots that stay with an owner, from one of its blocks to the next.

use dmr_core::error::StreamProblem;
use dmr_core::{
    BlockId, BlockSlot, Generation, ResourceError, ResourceResult, StreamId, StreamPoolId,
};

use super::slots::{Empty, Tenancy, Yielded};
use super::{Carried, UseTable};
use crate::{BlockOwner, StreamGuard};

/// An empty slot, for the next block of an owner that hands out the same memory again and again:
/// the slot goes with the memory. Putting a block into it takes no lock.
///
/// Linear: dropping it leaks the slot; [`UseTable::give_up`] takes it back.
#[derive(Debug)]
#[must_use = "dropping it leaks the slot"]
pub struct Vacancy {
    empty: Empty,
    /// Whose table it is of.
    pool: StreamPoolId,
}

/// What [`UseTable::surrender`] finds.
#[derive(Debug)]
pub enum Surrender {
    /// The block is another owner's, or nobody's: nothing has changed.
    Foreign,
    /// The block was given back before.
    Before,
    /// A window is open: the block is retired, [`UseTable::surrender_retired`] takes it later.
    InUse(u64),
    /// The block has left the table.
    Free {
        /// What the block's owner has kept in the slot.
        payload: u64,
        /// The slot that it had in the table.
        vacancy: Vacancy,
    },
}

impl UseTable<'_> {
    /// An empty slot for an owner, which keeps `payload` in it: [`surrender`](Self::surrender) returns
    /// that. `home` says near which other slots it lies.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another pool;
    /// [`Capacity`](ResourceError::Capacity) once there are 2²⁶ slots.
    pub fn reserve(
        &self,
        owner: &BlockOwner,
        payload: u64,
        home: StreamId,
    ) -> ResourceResult<Vacancy> {
        let home = self.of_this_pool(home)?;
        let tenancy = Tenancy { owner: Some(self.owner_here(owner, home)?), payload };
        Ok(self.vacancy(self.slots().reserve(home.slot(), tenancy)?))
    }

    #[inline]
    pub(super) fn vacancy(&self, empty: Empty) -> Vacancy {
        Vacancy { empty, pool: self.pool.id() }
    }

    /// Enters a block whose allocation has just been submitted to `home`, as
    /// [`insert`](Self::insert) does.
    ///
    /// # Errors
    ///
    /// The slot, if it is of another table.
    #[inline(always)]
    pub fn enter(
        &self,
        vacancy: Vacancy,
        generation: Generation,
        home: &StreamGuard<'_>,
    ) -> Result<BlockSlot, (Vacancy, ResourceError)> {
        let home = home.id();
        if vacancy.pool != self.pool.id() || home.pool() != Some(vacancy.pool) {
            let misuse = ResourceError::stream_misuse(home, StreamProblem::OtherPool);
            return Err((vacancy, misuse));
        }
        let allocation = self.pool.progress().submitted(home.slot());
        // SAFETY: the slot is of the table of this pool.
        Ok(BlockSlot::new(unsafe { self.slots().fill(vacancy.empty, generation, allocation) }))
    }

    /// The owner needs the slot no more: any block of the stream that it was reserved for may have
    /// it. A slot of another table is leaked there.
    #[inline]
    pub fn give_up(&self, vacancy: Vacancy) {
        if vacancy.pool == self.pool.id() {
            // SAFETY: the slot is of the table of this pool.
            unsafe { self.slots().give_up(vacancy.empty) };
        }
    }

    /// Takes a block back whose memory is used again by the same owner, which is then responsible for
    /// its order: adds to `after` what the memory's next user comes after on the block's home stream; on
    /// other streams also after what was submitted to that stream by now. Makes no driver call.
    #[inline(always)]
    pub fn surrender(&self, block: BlockId, owner: &BlockOwner, after: &mut Carried) -> Surrender {
        let home = block.alloc_stream().slot();
        let keep = |used| {
            if self.holds_up(home, used) {
                after.needs.push(used);
            }
        };
        match self.slots().surrender(block, owner.number(), keep) {
            Yielded::Foreign => Surrender::Foreign,
            Yielded::Before => Surrender::Before,
            Yielded::InUse(payload) => Surrender::InUse(payload),
            Yielded::Gone { payload, empty } => {
                Surrender::Free { payload, vacancy: self.vacancy(empty) }
            }
        }
    }

    /// As [`surrender`](Self::surrender), for a block that was found [`InUse`](Surrender::InUse)
    /// before; `None` while a window is open.
    #[must_use]
    pub fn surrender_retired(&self, block: BlockId, owner: &BlockOwner) -> Option<Vacancy> {
        let empty = self.slots().surrender_retired(block, owner.number())?;
        Some(self.vacancy(empty))
    }

    /// Returns the payload of a live block of `owner`: what the owner has kept in its slot.
    #[must_use]
    pub fn payload(&self, block: BlockId, owner: &BlockOwner) -> Option<u64> {
        self.slots().payload(block, owner.number())
    }

    /// What the memory's next user comes after on the stream `home`, which was that of the block
    /// that has left this slot; on other streams also after what was submitted to that stream by
    /// now. It is not in the slot any more then.
    #[must_use]
    pub fn carry(&self, vacancy: &mut Vacancy, home: StreamId) -> Carried {
        let mut carried = Carried::default();
        if vacancy.pool == self.pool.id() && home.pool() == Some(vacancy.pool) {
            let home = home.slot();
            let keep = |used| {
                if self.holds_up(home, used) {
                    carried.needs.push(used);
                }
            };
            // SAFETY: the slot is of the table of this pool.
            unsafe { self.slots().take_waits(&mut vacancy.empty, keep) };
        }
        carried
    }
}
