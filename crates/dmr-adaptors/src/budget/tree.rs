//! A tree of accounts that threads charge: their shards first, then the books.
//!
//! The order of locks: a list of retired blocks, then the books, then nothing. No lock is held
//! while a resource allocates, frees or reaps.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, Process};

use crate::sync::{Condvar, Mutex, MutexGuard, lock};

use super::books::{AccountId, Books, Refusal};
use super::charges::Charges;
use super::pending::Polled;
use super::shard::Shard;
use super::tags::TagSums;

/// Accounts that draw on each other.
#[derive(Debug)]
pub(super) struct Tree {
    made_in: Process,
    books: LeakedInChild<Mutex<Books>>,
    pub(super) charges: Charges,
    /// Notified when bytes are released while a reservation waits.
    pub(super) freed: Condvar,
}

/// Why bytes were not charged.
#[derive(Debug)]
pub(super) enum Refused {
    /// More than a limit on the way: it never fits.
    Oversized(Refusal),
    /// It did not fit, at an instant during the call. With numbers, if they were asked for.
    Full(Option<Refusal>),
    /// This is a forked child.
    Forked,
}

impl Tree {
    pub(super) fn new(limit: u64) -> Self {
        let (books, freed) = (LeakedInChild::new(Mutex::new(Books::new(limit))), Condvar::new());
        Self { made_in: Process::current(), books, charges: Charges::new(), freed }
    }

    /// Locks the books. `None` in a forked child, where the lock may be held for ever.
    pub(super) fn books(&self) -> Option<MutexGuard<'_, Books>> {
        (!self.is_forked()).then(|| lock(&self.books))
    }

    /// Returns whether this is a forked child of the process that made the tree.
    pub(super) fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// Makes a shard of this account for one more thread.
    pub(super) fn shard(&self, id: AccountId) -> Arc<CachePadded<Shard>> {
        match self.books() {
            Some(mut books) => books.add_shard(id),
            None => Arc::new(CachePadded::new(Shard::new(0))),
        }
    }

    /// Charges `bytes`; from the thread's own shard if that has them.
    #[inline]
    pub(super) fn charge(
        &self,
        id: AccountId,
        shard: Option<&Shard>,
        bytes: u64,
        in_full: bool,
    ) -> Result<(), Refused> {
        if shard.is_some_and(|shard| shard.take(bytes)) {
            return Ok(());
        }
        self.charge_in_books(id, shard, bytes, in_full)
    }

    #[cold]
    fn charge_in_books(
        &self,
        id: AccountId,
        shard: Option<&Shard>,
        bytes: u64,
        in_full: bool,
    ) -> Result<(), Refused> {
        let Some(mut books) = self.books() else { return Err(Refused::Forked) };
        if let Some(over) = books.oversized(id, bytes) {
            return Err(Refused::Oversized(books.refusal(over)));
        }
        if let Some(shard) = shard {
            shard.close();
            books.put_back(id, shard.collect());
        }
        if let Err(full) = books.draw(id, bytes) {
            return Err(Refused::Full(in_full.then(|| books.refusal(full))));
        }
        if let Some(shard) = shard {
            books.open(id, shard);
        }
        Ok(())
    }

    /// Releases a charge; into the thread's own shard if that is open.
    #[inline]
    pub(super) fn release(&self, id: AccountId, shard: Option<&Shard>, bytes: u64) {
        if !shard.is_some_and(|shard| shard.give(bytes)) {
            self.release_in_books(id, shard, bytes);
        }
    }

    #[cold]
    fn release_in_books(&self, id: AccountId, shard: Option<&Shard>, bytes: u64) {
        let Some(mut books) = self.books() else { return };
        let credit = shard.map_or(0, |shard| {
            shard.close();
            shard.collect()
        });
        books.put_back(id, bytes.saturating_add(credit));
        if let Some(shard) = shard {
            books.open(id, shard);
        }
        self.tell_waiters(&books);
    }

    /// Closes an account: nothing is charged to it any more.
    pub(super) fn close(&self, id: AccountId) {
        let Some(mut books) = self.books() else { return };
        books.close(id);
        self.tell_waiters(&books);
    }

    /// Wakes waiting reservations, after a change that may let one through.
    pub(super) fn tell_waiters(&self, books: &Books) {
        if !books.waiters.is_empty() {
            self.freed.notify_all();
        }
    }

    /// Counts a block for its tag.
    #[inline]
    pub(super) fn count(&self, id: AccountId, shard: Option<&Shard>, tag: AllocTag, bytes: u64) {
        match shard {
            Some(shard) => shard.tags.add(tag, bytes),
            None => self.in_books(id, |tags| tags.add(tag, bytes)),
        }
    }

    /// Counts the bytes by which a block has grown for its tag.
    pub(super) fn count_growth(
        &self,
        id: AccountId,
        shard: Option<&Shard>,
        tag: AllocTag,
        more_bytes: u64,
    ) {
        match shard {
            Some(shard) => shard.tags.grow(tag, more_bytes),
            None => self.count_bytes(id, tag, more_bytes),
        }
    }

    /// Removes a block of this tag from the counts.
    #[inline]
    pub(super) fn uncount(&self, id: AccountId, shard: Option<&Shard>, tag: AllocTag, bytes: u64) {
        match shard {
            Some(shard) => shard.tags.remove(tag, bytes),
            None => self.in_books(id, |tags| tags.remove(tag, bytes)),
        }
    }

    #[cold]
    #[inline(never)]
    fn in_books(&self, id: AccountId, change: impl FnOnce(&mut TagSums)) {
        if let Some(mut books) = self.books()
            && let Some(tags) = books.tags(id)
        {
            change(tags);
        }
    }

    /// Counts bytes without a block.
    pub(super) fn count_bytes(&self, id: AccountId, tag: AllocTag, bytes: u64) {
        self.in_books(id, |tags| tags.change(tag, bytes, 0));
    }

    /// Removes bytes without a block from the counts.
    pub(super) fn uncount_bytes(&self, id: AccountId, tag: AllocTag, bytes: u64) {
        self.count_bytes(id, tag, bytes.wrapping_neg());
    }

    /// Releases what the resources that charge this tree have freed.
    pub(super) fn poll(&self) {
        for source in self.sources().iter().filter(|source| source.has_pending()) {
            source.poll(self);
        }
        self.drop_what_is_over();
    }

    /// Returns how often something that was retired was released, by any thread. What was freed before
    /// this call, and is not counted yet, is counted by the end of the next poll.
    pub(super) fn releases(&self) -> u64 {
        self.books().map_or(0, |books| books.sources.releases())
    }

    /// Calls `try_reap` of all resources that charge this tree.
    pub(super) fn try_reap(&self) {
        let sources = self.sources();
        sources.iter().filter(|source| source.has_pending()).for_each(|source| source.try_reap());
    }

    pub(super) fn has_pending(&self) -> bool {
        self.sources().iter().any(|source| source.has_pending())
    }

    /// Returns all sources, to poll them without the lock.
    fn sources(&self) -> Vec<Arc<dyn Polled>> {
        self.books().map_or_else(Vec::new, |books| books.sources.all())
    }

    /// Removes a source whose budget was dropped, once it has nothing pending.
    pub(super) fn leave(&self, source: &Arc<dyn Polled>) {
        if source.has_pending() {
            source.poll(self);
        }
        if source.has_pending() {
            if let Some(mut books) = self.books() {
                books.sources.leave(source);
            }
        } else {
            self.remove(source);
        }
    }

    /// Removes sources whose budgets were dropped and that have nothing pending.
    fn drop_what_is_over(&self) {
        let left = self.books().map_or_else(Vec::new, |books| books.sources.left());
        left.iter().filter(|source| !source.has_pending()).for_each(|source| self.remove(source));
    }

    /// Removes a source from the books, and drops it after the lock is released.
    fn remove(&self, source: &Arc<dyn Polled>) {
        let removed = self.books().map(|mut books| books.sources.remove(source));
        drop(removed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::super::Budget;
    use super::*;

    const NAME: AllocTag = AllocTag::new("query");

    fn accounts(budget: &Budget) -> usize {
        budget.account.tree.books().expect("no fork").accounts()
    }

    #[test]
    fn accounts_that_nothing_can_charge_and_that_hold_nothing_are_forgotten() {
        let whole = Budget::new(1000);
        for _ in 0..100 {
            let share = whole.sub_budget(NAME, 10);
            let reserved = share.reserve(10, Duration::ZERO).expect("room");
            assert_eq!(accounts(&whole), 3);
            drop((share, reserved));
            assert_eq!(accounts(&whole), 1);
        }
    }

    #[test]
    fn an_account_whose_bytes_outlive_it_is_forgotten_with_the_last_of_them() {
        let whole = Budget::new(1000);
        let share = whole.sub_budget(NAME, 10);
        let (tree, id) = (Arc::clone(&share.account.tree), share.account.id);
        tree.charge(id, None, 10, false).expect("room");
        drop(share);
        tree.release(id, None, 4);
        assert_eq!((accounts(&whole), whole.reserved_bytes()), (2, 6));
        tree.release(id, None, 6);
        assert_eq!((accounts(&whole), whole.reserved_bytes()), (1, 0));
    }
}
