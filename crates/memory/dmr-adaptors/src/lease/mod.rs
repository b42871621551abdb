//! Counters up to a ceiling, which threads change in cells of their own.
//!
//! A counter has a [`Room`]: its ceiling less what is counted. The ceiling is the limit of a
//! budget, or the peak of a statistic. A cell holds a [`Lease`], which is a part of the room: while
//! it suffices, the threads of that cell change the counter there, and write no memory that other
//! threads write. What is counted is exactly the ceiling less the room and less all leases, so
//! nothing that a cell does by itself reaches the ceiling.
//!
//! If the room does not suffice, the leases of all cells are called in. A cell without a lease is
//! closed: it changes the room itself, under the shared lock. So after the last lease has been
//! called in the counter stands still until that lock is released, and the room is exact at that
//! instant.
//!
//! Order of locks: the shared one, then cells. A thread that holds a cell alone waits for nothing.

#[cfg(all(test, loom, feature = "budget"))]
mod models;

use std::num::NonZero;
use std::sync::OnceLock;
use std::thread;

use crossbeam_utils::CachePadded;

use crate::sync::{SpinLock, SpinLockGuard};
use crate::thread_number::thread_number;

/// The number of changes under the shared lock after which cells get leases again, once the room
/// did not suffice: while a peak rises, leases are of no use, and would be called in all the time.
const PATIENCE: u32 = if cfg!(loom) { 0 } else { 64 };

/// All cells, as bits.
pub(crate) const ALL: u64 = u64::MAX;

/// The part of some counters that all threads share, and a cell for each of some threads, both
/// behind spinlocks.
#[derive(Debug)]
pub(crate) struct Cells<S, C> {
    shared: CachePadded<SpinLock<S>>,
    cells: Box<[CachePadded<SpinLock<C>>]>,
}

impl<S, C: Default> Cells<S, C> {
    /// Makes more cells than threads can run at a time, at most 64: threads rarely share one.
    pub(crate) fn for_all_threads(shared: S) -> Self {
        /// Read once: it takes system calls.
        static CELLS: OnceLock<usize> = OnceLock::new();
        let cells = || {
            let threads = thread::available_parallelism().map_or(16, NonZero::get);
            (4 * threads).clamp(16, 64).next_power_of_two()
        };
        Self::new(shared, if cfg!(loom) { 2 } else { *CELLS.get_or_init(cells) })
    }

    /// Makes one cell, for counters that are rarely changed by two threads at a time.
    #[cfg(feature = "budget")]
    pub(crate) fn single(shared: S) -> Self {
        Self::new(shared, 1)
    }

    fn new(shared: S, cells: usize) -> Self {
        let shared = CachePadded::new(SpinLock::new(shared));
        Self { shared, cells: (0..cells).map(|_| CachePadded::default()).collect() }
    }

    /// Returns the index of the calling thread's cell. Threads have the cells in turn.
    #[inline]
    pub(crate) fn own_index(&self) -> usize {
        thread_number() as usize & (self.cells.len() - 1)
    }

    /// Locks the cell of the calling thread, which must not hold any of these locks.
    #[inline]
    #[cfg(feature = "statistics")]
    pub(crate) fn own(&self) -> SpinLockGuard<'_, C> {
        self.cells[self.own_index()].lock()
    }

    /// Locks the shared part.
    pub(crate) fn shared(&self) -> SpinLockGuard<'_, S> {
        self.shared.lock()
    }

    /// Locks a cell. A thread that holds another one must hold the shared lock.
    pub(crate) fn cell(&self, index: usize) -> SpinLockGuard<'_, C> {
        self.cells[index].lock()
    }

    /// Locks all cells, under the shared lock.
    #[cfg(feature = "statistics")]
    pub(crate) fn all(&self) -> Vec<SpinLockGuard<'_, C>> {
        self.cells.iter().map(|cell| cell.lock()).collect()
    }
}

/// One counter by itself, such as the room of an account.
#[cfg(feature = "budget")]
impl Cells<Room, Lease> {
    /// Adds `amount` to the counter, or removes it if that is negative.
    ///
    /// # Errors
    ///
    /// The room at an instant of the call, which did not suffice.
    #[inline]
    pub(crate) fn change(&self, amount: i64) -> Result<(), i64> {
        self.change_at(self.own_index(), amount)
    }

    /// Adds `amount` to the counter, even if that exceeds the ceiling.
    #[inline]
    pub(crate) fn force(&self, amount: i64) {
        let index = self.own_index();
        if !self.try_change(index, amount) {
            let _ = self.change_slowly(index, amount, |room| {
                room.add(-amount);
                Ok(())
            });
        }
    }

    #[inline]
    fn change_at(&self, index: usize, amount: i64) -> Result<(), i64> {
        if self.try_change(index, amount) {
            Ok(())
        } else {
            self.change_slowly(index, amount, |room| Err(room.left))
        }
    }

    /// Changes the counter in a cell, if its lease allows it.
    #[inline]
    fn try_change(&self, index: usize, amount: i64) -> bool {
        let mut lease = self.cell(index);
        let changed = lease.changed(amount);
        changed.map(|changed| *lease = changed).is_some()
    }

    /// Changes the counter under the shared lock, and calls `exceeded` if the room does not
    /// suffice.
    #[cold]
    #[inline(never)]
    fn change_slowly(
        &self,
        index: usize,
        amount: i64,
        exceeded: impl FnOnce(&mut Room) -> Result<(), i64>,
    ) -> Result<(), i64> {
        let mut room = self.shared();
        let changed = room.change(amount, index, |cell| self.cell(cell).close());
        changed.or_else(|_| exceeded(&mut room))?;
        if room.is_calm() {
            room.lease(amount, index, &mut self.cell(index));
        }
        Ok(())
    }

    /// Returns the room at one instant. Calls all leases in.
    pub(crate) fn room(&self) -> i64 {
        self.shared().call_in(ALL, |cell| self.cell(cell).close())
    }

    /// Raises the ceiling, or lowers it if `amount` is negative. Calls all leases in.
    pub(crate) fn raise_ceiling(&self, amount: i64) {
        let mut room = self.shared();
        room.call_in(ALL, |cell| self.cell(cell).close());
        room.add(amount);
    }
}

/// The room of one counter that is leased to a cell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lease {
    /// The part that is not used. Never negative.
    left: i64,
    /// The most that may be left. Both are 0 in a closed cell.
    most: i64,
}

impl Lease {
    /// Returns the lease after adding `amount` to the counter, or after removing it if that is
    /// negative; `None` if the lease does not allow it.
    #[inline]
    pub(crate) const fn changed(self, amount: i64) -> Option<Self> {
        let left = self.left.wrapping_sub(amount);
        // A negative number is greater than any lease; a sum that overflows an `i64` is, too.
        if left as u64 <= self.most as u64 { Some(Self { left, ..self }) } else { None }
    }

    /// Ends the lease, and returns what is left of it.
    pub(crate) const fn close(&mut self) -> i64 {
        let left = self.left;
        *self = Self { left: 0, most: 0 };
        left
    }

    #[cfg(feature = "statistics")]
    pub(crate) const fn left(self) -> i64 {
        self.left
    }
}

/// The rest of a counter's ceiling, beside the leases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// Negative if more is counted than the ceiling, and then no cell has a lease.
    left: i64,
    /// The cells that may have a lease, as bits.
    open: u64,
    /// The number of changes since the room did not suffice.
    calm: u32,
}

impl Room {
    #[cfg(feature = "budget")]
    pub(crate) const fn new(left: i64) -> Self {
        Self { left, open: 0, calm: PATIENCE }
    }

    #[cfg(feature = "statistics")]
    pub(crate) const fn left(self) -> i64 {
        self.left
    }

    /// Adds to the room, or removes from it, after all leases were called in.
    pub(crate) const fn add(&mut self, amount: i64) {
        self.left = self.left.wrapping_add(amount);
    }

    /// Calls the leases of these cells in, and returns the room. `close` closes the lease of a cell
    /// and returns what was left of it.
    #[inline(never)]
    pub(crate) fn call_in(&mut self, cells: u64, mut close: impl FnMut(usize) -> i64) -> i64 {
        let mut called = self.open & cells;
        self.open &= !cells;
        while called != 0 {
            self.left += close(called.trailing_zeros() as usize);
            called &= called - 1;
        }
        self.left
    }

    /// Adds `amount` to the counter, or removes it if that is negative, for a thread of the cell
    /// `index`. If the room does not suffice, calls in the lease of that cell, and then all others.
    ///
    /// # Errors
    ///
    /// The room, which does not suffice. All leases are called in, and nothing is counted.
    #[inline]
    pub(crate) fn change(
        &mut self,
        amount: i64,
        index: usize,
        mut close: impl FnMut(usize) -> i64,
    ) -> Result<(), i64> {
        if amount > 0 && amount > self.left {
            if self.open != 0 && amount > self.call_in(1 << index, &mut close) {
                self.call_in(ALL, close);
            }
            if amount > self.left {
                self.calm = 0;
                return Err(self.left);
            }
        }
        self.left = self.left.wrapping_sub(amount);
        self.calm = self.calm.saturating_add(1);
        Ok(())
    }

    /// Returns whether a cell should have a lease.
    pub(crate) const fn is_calm(self) -> bool {
        self.calm >= PATIENCE && self.left >= 0
    }

    /// Leases room to a cell, one of whose threads has just changed the counter by `amount`. Each
    /// time it has to, a cell gets twice as much as before, within its share of the room, and at
    /// least what it has removed. Half of the most is left, so that as much can be removed as can
    /// be added.
    pub(crate) fn lease(&mut self, amount: i64, index: usize, lease: &mut Lease) {
        let bit = 1 << index;
        let was_open = self.open & bit != 0;
        self.open |= bit;
        self.left += lease.left;
        lease.most = lease.most.saturating_mul(2).max(amount.saturating_abs());
        let removed = amount.saturating_neg().max(0);
        let share = self.left / i64::from(self.open.count_ones());
        // A cell that opens keeps what it has removed, for the next block.
        let left = if was_open { lease.most / 2 } else { removed };
        lease.left = left.min(share.max(removed)).min(self.left);
        self.left -= lease.left;
    }
}

#[cfg(all(test, not(loom), feature = "budget"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A call of one counter.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Change { cell: usize, amount: i64 },
        Force(i64),
        RaiseCeiling(i64),
        Read,
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let amounts = prop_oneof![-3_i64..=3, -40_i64..=40];
        let changes = (0_usize..4, amounts);
        let call = prop_oneof![
            20 => changes.prop_map(|(cell, amount)| Call::Change { cell, amount }),
            1 => (-30_i64..=30).prop_map(Call::Force),
            1 => (-30_i64..=30).prop_map(Call::RaiseCeiling),
            1 => Just(Call::Read),
        ];
        proptest::collection::vec(call, 1..400)
    }

    proptest! {
        /// As a counter of one thread: a sum and a ceiling.
        #[test]
        fn a_change_is_refused_if_it_exceeds_the_ceiling_and_the_room_is_exact(calls in calls()) {
            let mut ceiling = 100;
            let mut sum = 0;
            let counter = Cells::new(Room::new(ceiling), 4);
            for call in calls {
                match call {
                    Call::Change { cell, amount } => {
                        let fits = amount <= 0 || amount <= ceiling - sum;
                        let expected = if fits { Ok(()) } else { Err(ceiling - sum) };
                        prop_assert_eq!(counter.change_at(cell, amount), expected);
                        sum += if fits { amount } else { 0 };
                    }
                    Call::Force(amount) => {
                        counter.force(amount);
                        sum += amount;
                    }
                    Call::RaiseCeiling(amount) => {
                        counter.raise_ceiling(amount);
                        ceiling += amount;
                    }
                    Call::Read => prop_assert_eq!(counter.room(), ceiling - sum),
                }
            }
            prop_assert_eq!(counter.room(), ceiling - sum);
        }
    }

    #[test]
    fn an_open_cell_changes_the_counter_by_itself_until_its_lease_is_called_in() {
        let counter = Cells::new(Room::new(100), 2);
        counter.change_at(0, 10).unwrap();
        counter.change_at(0, -10).unwrap();
        let shared = counter.shared();
        assert!(counter.try_change(0, 10) && counter.try_change(0, -10));
        assert!(!counter.try_change(1, 10), "the other cell has no lease");
        drop(shared);
        assert_eq!(counter.change_at(1, 95), Ok(()));
        assert!(!counter.try_change(0, 1) && !counter.try_change(0, -1), "it is called in");
        assert_eq!(counter.change_at(0, 6), Err(5));
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let counter = Cells::new(Room::new(i64::MAX), 2);
        counter.change_at(0, i64::MAX).unwrap();
        assert_eq!(counter.change_at(1, i64::MAX), Err(0));
        counter.change_at(0, -i64::MAX).unwrap();
        counter.change_at(1, i64::MAX).unwrap();
        counter.force(i64::MAX);
        assert_eq!(counter.room(), -i64::MAX);
    }
}
