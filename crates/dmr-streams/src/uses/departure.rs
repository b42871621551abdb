//! A block that comes back from its owner.

use dmr_core::BlockId;

use super::slots::Empty;
use super::{HomeOrder, UseTable, Vacancy};

/// What [`UseTable::give_back`] finds.
#[derive(Debug)]
pub enum Departure<'p> {
    /// The block is another owner's, or nobody's: nothing has changed.
    Foreign,
    /// No window is open and the order holds on the home stream: a free that is queued there waits
    /// for nothing else. The block has left the table.
    Home(Leaving<'p>),
    /// The block is retired: [`UseTable::free_order`] says what its free must come after, and
    /// [`UseTable::unretire`] and [`UseTable::remove`] end that.
    Retired {
        /// What the block's owner has kept in the slot.
        payload: u64,
        /// Why it has not left: never [`HomeOrder::Holds`].
        order: HomeOrder,
    },
}

/// A block that has left the table, and whose slot is kept until its free has succeeded or failed.
/// Dropping it leaks the slot.
#[derive(Debug)]
#[must_use = "the slot is free for another block only when this is told what has become of it"]
pub struct Leaving<'p> {
    pub(super) table: UseTable<'p>,
    pub(super) block: BlockId,
    pub(super) empty: Empty,
    pub(super) payload: u64,
    /// The ledger may hold events.
    pub(super) used: bool,
}

impl Leaving<'_> {
    /// What the block's owner has kept in the slot.
    #[must_use]
    #[inline]
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// The block is gone, and its slot is free for another.
    #[inline]
    pub fn gone(self) {
        let table = self.table;
        table.give_up(self.into_vacancy());
    }

    /// The block is gone, and its slot is for the next one of the same owner.
    #[inline]
    pub fn into_vacancy(mut self) -> Vacancy {
        if self.used {
            // SAFETY: the slot is of this table.
            unsafe { self.table.slots().forget(&mut self.empty) };
        }
        self.table.vacancy(self.empty)
    }

    /// The block was not given back after all: it is in the table as it was before.
    pub fn stay(self) {
        // SAFETY: the slot is of this table.
        unsafe { self.table.slots().restore(self.empty, self.block) };
    }
}
