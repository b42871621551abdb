//! A tree of accounts: what is charged to one is charged to all above it, or to none.
//!
//! The order of locks: the queue of retired blocks, the tree, the map of charges. No lock is held
//! while a resource allocates, frees or reaps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, ResourceError, ResourceResult};

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock};

use super::account::{Account, AccountId, signed};
use super::charges::{Charge, Charges};
use super::outer::{OuterLimit, OuterRefusal};
use super::reservation::Waiter;
use super::retired::RetiredBlocks;

/// The holder of reserved bytes that no block uses.
pub(super) const RESERVED: AllocTag = AllocTag::new("(reserved)");

/// The holder of bytes that were in use before the budget.
pub(super) const EXISTING: AllocTag = AllocTag::new("(before the budget)");

/// Accounts that charge each other, with a root.
///
/// A charge of the root takes no lock of the tree. A charge of any other account does: so no thread
/// sees bytes in a part that the whole then refuses, and every refusal is of bytes that are charged
/// at that instant.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Arc<Account>,
    pub(super) outer: Option<Arc<dyn OuterLimit>>,
    state: LeakedInChild<Mutex<State>>,
    pub(super) charges: Charges,
    pub(super) retired: LeakedInChild<Mutex<RetiredBlocks>>,
    /// The number of [`Budget`](super::Budget)s.
    pub(super) handles: AtomicU64,
    /// The number of retired blocks that were released.
    reaped: AtomicU64,
    /// The number of charges that were taken back, because the limit around the root refused them.
    taken_back: AtomicU64,
    /// The number of reservations that wait.
    waiting: AtomicU64,
    /// Notified when bytes are released while a reservation waits.
    pub(super) released: Condvar,
}

/// The part of a tree that its lock guards, beside the accounts.
#[derive(Debug)]
pub(super) struct State {
    /// The accounts that can be charged, and those that hold bytes.
    pub(super) accounts: BTreeMap<AccountId, Arc<Account>>,
    next_id: AccountId,
    /// Reservations that wait, by the number of their arrival.
    pub(super) waiters: BTreeMap<u64, Waiter>,
}

/// The numbers of releases of bytes for which no request should be refused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Releases {
    reaped: u64,
    taken_back: u64,
}

/// A refusal: the bytes were not charged.
#[derive(Debug)]
pub(super) enum Refused {
    /// They did not fit into this account at an instant during the call.
    Full { account: Arc<Account>, remaining: u64 },
    /// The limit around the root refused them.
    Outer(OuterRefusal),
    /// This is a forked child.
    Forked,
}

impl Refused {
    #[cold]
    fn full(account: &Arc<Account>, remaining: u64) -> Self {
        Self::Full { account: Arc::clone(account), remaining }
    }

    /// Returns whether no release of bytes can help.
    pub(super) fn is_final(&self) -> bool {
        match self {
            Self::Full { .. } => false,
            Self::Outer(refusal) => refusal.shared.problem.is_some(),
            Self::Forked => true,
        }
    }
}

impl Tree {
    pub(super) fn new(limit: u64, outer: Option<Arc<dyn OuterLimit>>) -> Self {
        let root = Arc::new(Account::new(0, None, AllocTag::UNTAGGED, limit));
        let accounts = BTreeMap::from([(root.id, Arc::clone(&root))]);
        let state = State { accounts, next_id: 1, waiters: BTreeMap::new() };
        Self {
            root,
            outer,
            state: LeakedInChild::new(Mutex::new(state)),
            charges: Charges::default(),
            retired: LeakedInChild::default(),
            handles: AtomicU64::new(0),
            reaped: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            released: Condvar::new(),
        }
    }

    /// Locks the tree; `None` in a forked child, where a thread of the parent may hold the lock for
    /// ever.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.current().map(lock)
    }

    pub(super) fn is_forked(&self) -> bool {
        self.state.current().is_none()
    }

    /// Refuses a call in a forked child.
    pub(super) fn check(&self, device_ordinal: usize) -> ResourceResult<()> {
        if self.is_forked() { Err(ResourceError::forked_process(device_ordinal)) } else { Ok(()) }
    }

    /// Adds an account below `parent`, and removes those that hold nothing and cannot be charged
    /// any more.
    pub(super) fn add(
        &self,
        state: &mut State,
        parent: &Arc<Account>,
        name: AllocTag,
        limit: u64,
    ) -> Arc<Account> {
        let is_in_use =
            |account: &Arc<Account>| Arc::strong_count(account) > 1 || account.charged() > 0;
        state.accounts.retain(|_, account| is_in_use(account));
        let parent = Some(Arc::clone(parent));
        let account = Arc::new(Account::new(state.next_id(), parent, name, limit));
        state.accounts.insert(account.id, Arc::clone(&account));
        account
    }

    /// Sets the limit of an account to what `change` returns for it.
    pub(super) fn set_limit(&self, account: &Arc<Account>, change: impl FnOnce(u64) -> u64) {
        let Some(state) = self.lock() else { return };
        account.set_limit(change(account.limit()));
        drop(state);
        self.notify_waiters();
    }

    /// Ends a reservation: its limit becomes 0, and its unused bytes are released.
    pub(super) fn end_reservation(&self, account: &Arc<Account>) {
        let (Some(state), Some(parent)) = (self.lock(), &account.parent) else { return };
        let unused = account.end_reservation();
        drop(state);
        self.release(parent, unused, RESERVED);
    }

    /// Returns the bytes that are left of an account and of all above it.
    pub(super) fn remaining(&self, account: &Arc<Account>) -> u64 {
        let Some(state) = self.lock() else { return 0 };
        let remaining = account.path().map(|account| account.room()).fold(u64::MAX, u64::min);
        drop(state);
        let outer = self.outer.iter().filter(|_| account.reaches_root());
        outer.map(|outer| outer.remaining()).fold(remaining, u64::min)
    }
}

/// Charges and releases.
impl Tree {
    /// Returns whether an account is charged without the lock.
    #[inline]
    fn is_lock_free(&self, account: &Account) -> bool {
        account.parent.is_none() && self.outer.is_none() && !self.is_forked()
    }

    /// Charges `bytes` without the lock. Returns `false`, and changes nothing, if they do not fit
    /// or if the account needs the lock: [`charge`](Self::charge) them then.
    #[inline]
    pub(super) fn try_charge(&self, account: &Account, bytes: u64) -> bool {
        self.is_lock_free(account) && account.charge(bytes).is_ok()
    }

    /// Charges `bytes` to an account and to all above it, or to none of them.
    ///
    /// The lock is not held while the limit around the root is charged, which can wait for other
    /// processes, with a deadline no longer than until that. The bytes are charged to the tree
    /// meanwhile, as those of every call in progress.
    pub(super) fn charge(
        &self,
        account: &Arc<Account>,
        bytes: u64,
        tag: AllocTag,
        deadline: Option<Instant>,
    ) -> Result<(), Refused> {
        let state = self.lock().ok_or(Refused::Forked)?;
        // The root is the last: threads that charge it without the lock never meet bytes that an
        // account of the tree refuses.
        for (charged, above) in account.path().enumerate() {
            if let Err(room) = above.charge(bytes) {
                account.path().take(charged).for_each(|below| below.adjust(-signed(bytes)));
                return Err(Refused::full(above, room));
            }
        }
        let outer = self.outer_of(account, bytes);
        drop(state);
        outer.map_or(Ok(()), |outer| outer.try_charge(bytes, tag, deadline)).map_err(|refusal| {
            let _state = self.lock();
            account.path().for_each(|account| account.adjust(-signed(bytes)));
            self.taken_back.fetch_add(1, Ordering::Release);
            self.notify_waiters();
            Refused::Outer(refusal)
        })
    }

    /// Returns the limit around the root, if `bytes` of an account are charged to that.
    fn outer_of(&self, account: &Arc<Account>, bytes: u64) -> Option<&dyn OuterLimit> {
        self.outer.as_deref().filter(|_| bytes > 0 && account.reaches_root())
    }

    /// Releases bytes that were charged to an account.
    #[inline]
    pub(super) fn release(&self, account: &Arc<Account>, bytes: u64, tag: AllocTag) {
        if self.is_lock_free(account) {
            account.adjust(-signed(bytes));
        } else {
            self.adjust(account, -signed(bytes), tag);
        }
        self.notify_waiters();
    }

    /// Releases the charge of a block that was deallocated upstream.
    #[cold]
    pub(super) fn release_stale(&self, charge: Charge) {
        let account = self.lock().and_then(|state| state.accounts.get(&charge.account).cloned());
        if let Some(account) = account {
            self.release(&account, charge.bytes, charge.tag);
        }
    }

    /// Charges `bytes`, even if that exceeds a limit; releases them if they are negative.
    #[inline(never)]
    pub(super) fn adjust(&self, account: &Arc<Account>, bytes: i64, tag: AllocTag) {
        let Some(state) = self.lock() else { return };
        account.path().for_each(|account| account.adjust(bytes));
        let outer = self.outer_of(account, bytes.unsigned_abs());
        drop(state);
        if let Some(outer) = outer {
            outer.adjust(bytes, tag);
        }
    }

    /// Wakes waiting reservations. One that just begins to wait may miss it, and looks again by
    /// itself.
    #[inline]
    pub(super) fn notify_waiters(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.released.notify_all();
        }
    }

    /// Sets the number of reservations that wait, under the lock.
    pub(super) fn set_waiting(&self, state: &State) {
        self.waiting.store(state.waiters.len() as u64, Ordering::Relaxed);
    }
}

/// Refusals: a request is refused only if it did not fit at some instant, for bytes that were in
/// use.
impl Tree {
    /// Calls `attempt` until it succeeds, or until a refusal stands and `make_room` returns
    /// `false`. That is called after each refusal that stands, with the number of its calls before.
    /// A request that is larger than a limit is refused at once.
    pub(super) fn retry<T>(
        &self,
        account: &Arc<Account>,
        bytes: u64,
        mut attempt: impl FnMut() -> Result<T, Refused>,
        mut make_room: impl FnMut(u64) -> bool,
    ) -> Result<T, Refused> {
        let mut calls = 0;
        loop {
            // Counted before the attempt, so that a release during it counts as one after it.
            let before = self.releases();
            let refused = match attempt() {
                Ok(charged) => return Ok(charged),
                Err(refused) if refused.is_final() => return Err(refused),
                Err(refused) => self.oversized(account, bytes, refused)?,
            };
            // Bytes that upstream had freed before the refusal, and that were still charged, might
            // have made it fit, and so might those of a charge that was taken back: it stands only
            // if there were none.
            self.poll();
            if self.stands(&refused, before) {
                if !make_room(calls) {
                    return Err(refused);
                }
                calls += 1;
                self.poll();
            }
        }
    }

    /// Returns a refusal as an error if `bytes` exceed a limit, whatever is charged.
    fn oversized(
        &self,
        account: &Arc<Account>,
        bytes: u64,
        refused: Refused,
    ) -> Result<Refused, Refused> {
        if let Some(account) = account.path().find(|account| bytes > account.limit()) {
            return Err(Refused::full(account, account.room()));
        }
        match refused {
            Refused::Outer(refusal) if bytes > refusal.limit => Err(Refused::Outer(refusal)),
            refused => Ok(refused),
        }
    }

    /// Releases bytes of retired blocks that were freed.
    pub(super) fn release_reaped(&self, account: &Arc<Account>, bytes: u64, tag: AllocTag) {
        if bytes > 0 {
            self.release(account, bytes, tag);
            self.reaped.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the numbers of releases so far. A block that upstream has freed before this call is
    /// counted by the end of the next poll.
    pub(super) fn releases(&self) -> Releases {
        let [reaped, taken_back] =
            [&self.reaped, &self.taken_back].map(|count| count.load(Ordering::Acquire));
        Releases { reaped, taken_back }
    }

    /// Returns whether a refusal stands: whether none of the bytes that it met were released since
    /// `before`, which was counted before the charge. Charges that are taken back are never in the
    /// limit around the root.
    pub(super) fn stands(&self, refused: &Refused, before: Releases) -> bool {
        let now = self.releases();
        let is_outer = matches!(refused, Refused::Outer(_));
        now.reaped == before.reaped && (is_outer || now.taken_back == before.taken_back)
    }
}

impl State {
    /// Returns a number that was not used before.
    pub(super) fn next_id(&mut self) -> AccountId {
        self.next_id += 1;
        self.next_id - 1
    }
}

/// Drops the resources that are kept for their retired blocks, which frees these, and releases
/// their bytes to the limit around the root. Live blocks stay charged there.
impl Drop for Tree {
    fn drop(&mut self) {
        let (Some(outer), Some(mut queue)) = (&self.outer, self.retired()) else { return };
        let retired = std::mem::take(&mut *queue);
        drop(queue);
        let mut sums = HashMap::<_, i64>::new();
        for block in &retired {
            *sums.entry(block.tag).or_default() -= signed(block.bytes);
        }
        drop(retired);
        sums.into_iter().for_each(|(tag, bytes)| outer.adjust(bytes, tag));
    }
}
#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Budget;
    use super::*;

    const NAME: AllocTag = AllocTag::new("query");

    /// Adds an account, which removes those that are not in use, and counts them without it.
    fn accounts(budget: &Budget) -> usize {
        drop(budget.sub_budget(NAME, 0));
        drop(budget.sub_budget(NAME, 0));
        budget.tree.lock().expect("no fork").accounts.len() - 1
    }

    #[test]
    fn an_account_is_forgotten_when_nothing_can_charge_it_and_it_holds_nothing() {
        let whole = Budget::new(1000);
        let share = whole.sub_budget(NAME, 10);
        let account = Arc::clone(&share.account);
        whole.tree.charge(&account, 10, NAME, None).expect("room");
        assert_eq!(accounts(&whole), 2);
        drop(share);
        whole.tree.release(&account, 4, NAME);
        let id = account.id;
        drop(account);
        assert_eq!((accounts(&whole), whole.reserved_bytes()), (2, 6));
        let stale = Charge { account: id, bytes: 6, tag: NAME };
        whole.tree.release_stale(stale);
        assert_eq!((accounts(&whole), whole.reserved_bytes()), (1, 0));
    }
}
