//! A tree of accounts: what is charged to one is charged to all above it, or to none.
//!
//! The order of locks: the queue of pending blocks, the tree, the map of charges. No lock is held
//! while a resource allocates, frees or reaps.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use dmr_core::error::{Holder, SharedShortage};
use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, Process};

use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock};

use super::account::{Account, AccountId, signed};
use super::charges::{Charge, Charges};
use super::outer::OuterLimit;
use super::pending::PendingBlocks;
use super::reservation::Waiter;

/// The holder of reserved bytes that no block uses.
pub(super) const RESERVED: AllocTag = AllocTag::new("(reserved)");

/// The holder of bytes that were in use before the budget.
pub(super) const EXISTING: AllocTag = AllocTag::new("(before the budget)");

/// Accounts that charge each other, with a root.
///
/// A charge of the root is one atomic instruction. A charge of any other account takes the lock:
/// so no thread sees bytes in a part that the whole then refuses, and every refusal is of bytes
/// that are charged at that instant.
#[derive(Debug)]
pub(super) struct Tree {
    made_in: Process,
    pub(super) root: Arc<Account>,
    outer: Option<Arc<dyn OuterLimit>>,
    state: LeakedInChild<Mutex<State>>,
    pub(super) charges: Charges,
    /// The number of pending blocks that were released.
    reaped: AtomicU64,
    /// The number of charges that were taken back, because the limit around the root refused them.
    taken_back: AtomicU64,
    /// The number of reservations that wait.
    waiting: AtomicU64,
    /// Notified when bytes are released while a reservation waits.
    pub(super) released: Condvar,
}

/// The state that the lock of a tree guards, beside the accounts.
#[derive(Debug)]
pub(super) struct State {
    /// The accounts that a handle can charge, and those that hold bytes.
    accounts: BTreeMap<AccountId, Arc<Account>>,
    next_id: AccountId,
    /// Of each resource that is wrapped, and of those that have pending blocks although their budget
    /// was dropped.
    pending: Vec<Arc<PendingBlocks>>,
    /// Reservations that wait, first come, first served.
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) next_ticket: u64,
}

/// The counts of releases of bytes that no request should be refused for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Releases {
    reaped: u64,
    taken_back: u64,
}

/// Why bytes were not charged.
#[derive(Debug)]
pub(super) enum Refused {
    /// They did not fit into this account at an instant during the call.
    Full { account: Arc<Account>, remaining: u64 },
    /// The limit around the root refused them.
    Outer(Box<Refusal>),
    /// This is a forked child.
    Forked,
}

/// The content of an [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget) error.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal {
    pub(super) name: AllocTag,
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) pending: u64,
    pub(super) holders: Vec<Holder>,
    /// The processes that share the limit around the root.
    pub(super) shared: Option<Box<SharedShortage>>,
}

impl Tree {
    pub(super) fn new(limit: u64, outer: Option<Arc<dyn OuterLimit>>) -> Self {
        let root = Arc::new(Account::new(0, None, AllocTag::UNTAGGED, limit, 0));
        let state = State {
            accounts: BTreeMap::from([(root.id, Arc::clone(&root))]),
            next_id: 1,
            pending: Vec::new(),
            waiters: VecDeque::new(),
            next_ticket: 0,
        };
        Self {
            made_in: Process::current(),
            root,
            outer,
            state: LeakedInChild::new(Mutex::new(state)),
            charges: Charges::new(),
            reaped: AtomicU64::new(0),
            taken_back: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            released: Condvar::new(),
        }
    }

    /// Locks the tree. `None` in a forked child, where another thread may have held the lock.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, State>> {
        (!self.is_forked()).then(|| lock(&self.state))
    }

    /// Returns whether this is a forked child of the process that made the tree.
    pub(super) fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }

    /// Charges `bytes` to an account and to all above it, or to none of them.
    #[inline]
    pub(super) fn charge(
        &self,
        account: &Arc<Account>,
        bytes: u64,
        tag: AllocTag,
    ) -> Result<(), Refused> {
        if account.parent.is_none() && self.outer.is_none() && !self.is_forked() {
            return account.charge(bytes).map_err(|room| Refused::full(account, room));
        }
        let Some(state) = self.lock() else { return Err(Refused::Forked) };
        self.charge_locked(state, account, bytes, tag).map(drop)
    }

    /// Charges with the lock of the tree, which it returns. The lock is not held while the limit around
    /// the root is charged, which can wait for other processes: the bytes are charged to the tree
    /// meanwhile, as those of every call in progress.
    #[inline(never)]
    pub(super) fn charge_locked<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        account: &Arc<Account>,
        bytes: u64,
        tag: AllocTag,
    ) -> Result<MutexGuard<'a, State>, Refused> {
        let charged = Self::charge_accounts(account, bytes);
        let Some(outer) = &self.outer else { return charged.map(|_| state) };
        let more = match charged {
            Ok(0) => return Ok(state),
            Ok(more) => more,
            Err(refused) => {
                drop(state);
                return Err(self.refused_by_root(refused, outer, tag));
            }
        };
        // What a reservation holds of its parent is not the sum of its charges: the lock is held, so that
        // what is taken back is what was charged.
        let is_reserved = account.ancestors().any(|account| account.floor() > 0);
        let state = is_reserved.then_some(state);
        let charged = outer.try_charge(more, tag);
        let Some(state) = state.or_else(|| self.lock()) else { return Err(Refused::Forked) };
        let Err(refusal) = charged else { return Ok(state) };
        Self::adjust_accounts(account, -signed(bytes));
        self.taken_back.fetch_add(1, Ordering::Release);
        drop(state);
        self.notify_waiters();
        Err(Refused::Outer(Box::new(refusal)))
    }

    /// Charges the accounts of the tree, and returns what was charged to the root.
    fn charge_accounts(account: &Arc<Account>, bytes: u64) -> Result<u64, Refused> {
        let before = account.held();
        account.charge(bytes).map_err(|room| Refused::full(account, room))?;
        let Some(parent) = &account.parent else { return Ok(bytes) };
        let above = Self::charge_accounts(parent, account.held() - before);
        if above.is_err() {
            account.adjust(-signed(bytes));
        }
        above
    }

    /// Returns the refusal of the limit around the root for one of the root, if it has no more room than
    /// that: it counts more than this tree.
    fn refused_by_root(
        &self,
        refused: Refused,
        outer: &Arc<dyn OuterLimit>,
        tag: AllocTag,
    ) -> Refused {
        let Refused::Full { account, remaining } = &refused else { return refused };
        if !Arc::ptr_eq(account, &self.root) {
            return refused;
        }
        match outer.try_charge(remaining + 1, tag) {
            Ok(()) => {
                outer.release(remaining + 1, tag);
                refused
            }
            Err(refusal) => Refused::Outer(Box::new(refusal)),
        }
    }

    /// Charges `bytes` that are in use already, even if that exceeds a limit.
    pub(super) fn charge_anyway(&self, account: &Arc<Account>, bytes: u64, tag: AllocTag) {
        self.adjust(account, signed(bytes), tag);
    }

    /// Releases bytes that were charged to an account.
    #[inline]
    pub(super) fn release(&self, account: &Arc<Account>, bytes: u64, tag: AllocTag) {
        if account.parent.is_none() && self.outer.is_none() {
            account.adjust(-signed(bytes));
        } else {
            self.adjust(account, -signed(bytes), tag);
        }
        self.notify_waiters();
    }

    /// Charges `bytes`, even if that exceeds a limit; releases them if they are negative.
    #[inline(never)]
    fn adjust(&self, account: &Arc<Account>, bytes: i64, tag: AllocTag) {
        let Some(state) = self.lock() else { return };
        let root = Self::adjust_accounts(account, bytes);
        drop(state);
        self.adjust_outer(root, tag);
    }

    /// Adjusts the accounts of the tree under its lock. Returns by how many bytes the root changed.
    fn adjust_accounts(account: &Arc<Account>, bytes: i64) -> i64 {
        let before = account.held();
        account.adjust(bytes);
        let Some(parent) = &account.parent else { return bytes };
        Self::adjust_accounts(parent, signed(account.held()) - signed(before))
    }

    /// Adjusts the limit around the root. Call it without the lock.
    fn adjust_outer(&self, bytes: i64, tag: AllocTag) {
        match &self.outer {
            Some(outer) if bytes > 0 => outer.charge_anyway(bytes.unsigned_abs(), tag),
            Some(outer) if bytes < 0 => outer.release(bytes.unsigned_abs(), tag),
            _ => {}
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

    /// Returns the account, from `account` upwards, in which `bytes` more do not fit now. Call it
    /// under the lock.
    pub(super) fn full(&self, account: &Arc<Account>, bytes: u64) -> Option<Arc<Account>> {
        let mut more = bytes;
        for account in account.ancestors() {
            if more > account.room() && more > 0 {
                return Some(Arc::clone(account));
            }
            more = more.saturating_sub(account.unused());
        }
        None
    }

    /// Returns a refusal if `bytes` exceed a limit, whatever is charged: also that of the limit
    /// around the root, if it has refused them.
    pub(super) fn oversized(
        &self,
        account: &Arc<Account>,
        bytes: u64,
        refused: &Refused,
    ) -> Option<Refused> {
        let mut more = bytes;
        for account in account.ancestors() {
            if more > account.limit() {
                return Some(Refused::full(account, account.room()));
            }
            more = more.saturating_sub(account.floor());
        }
        match refused {
            Refused::Outer(refusal) if more > refusal.limit => {
                Some(Refused::Outer(Box::new(Refusal::clone(refusal))))
            }
            _ => None,
        }
    }

    /// Adds an account below `parent`.
    pub(super) fn add(
        &self,
        state: &mut State,
        parent: &Arc<Account>,
        name: AllocTag,
        limit: u64,
        floor: u64,
    ) -> Arc<Account> {
        // An account that only this map refers to cannot be charged any more.
        let is_in_use =
            |account: &Arc<Account>| Arc::strong_count(account) > 1 || account.held() > 0;
        state.accounts.retain(|_, account| is_in_use(account));
        let parent = Some(Arc::clone(parent));
        let account = Arc::new(Account::new(state.next_id, parent, name, limit, floor));
        state.next_id += 1;
        state.accounts.insert(account.id, Arc::clone(&account));
        account
    }

    /// Sets the limit of an account to what `change` makes of it.
    pub(super) fn set_limit(&self, account: &Arc<Account>, change: impl FnOnce(u64) -> u64) {
        let Some(state) = self.lock() else { return };
        account.set_limit(change(account.limit()));
        drop(state);
        self.notify_waiters();
    }

    /// Ends a reservation: its limit becomes 0, and its unused bytes are released.
    pub(super) fn end_reservation(&self, account: &Arc<Account>) {
        let Some(state) = self.lock() else { return };
        let unused = account.unused();
        account.set_limit(0);
        account.set_floor(0);
        let parent = account.parent.as_ref();
        let root = parent.map_or(0, |parent| Self::adjust_accounts(parent, -signed(unused)));
        drop(state);
        self.adjust_outer(root, RESERVED);
        self.notify_waiters();
    }

    /// Returns the bytes that are left of an account and of all above it.
    pub(super) fn remaining(&self, account: &Arc<Account>) -> u64 {
        let Some(state) = self.lock() else { return 0 };
        let (mut remaining, mut reserved) = (u64::MAX, 0_u64);
        for account in account.ancestors() {
            remaining = remaining.min(reserved.saturating_add(account.room()));
            reserved = reserved.saturating_add(account.unused());
        }
        drop(state);
        let outer = self.outer.iter().map(|outer| reserved.saturating_add(outer.remaining()));
        outer.fold(remaining, u64::min)
    }

    /// Releases the charge of a block that was deallocated upstream.
    #[cold]
    pub(super) fn release_stale(&self, charge: Charge) {
        let account = self.lock().and_then(|state| state.accounts.get(&charge.account).cloned());
        if let Some(account) = account {
            self.release(&account, charge.bytes, charge.tag);
        }
    }
}

/// Drops the resources that are kept for their pending blocks, which frees these, and releases their bytes to the
/// limit around the root. Live blocks stay charged there.
impl Drop for Tree {
    fn drop(&mut self) {
        let Some(outer) = &self.outer else { return };
        let Some(mut state) = self.lock() else { return };
        let kept = std::mem::take(&mut state.pending);
        drop(state);
        let mut sums = HashMap::<_, u64>::new();
        for pending in &kept {
            pending.for_each(|block| *sums.entry(block.tag).or_default() += block.bytes);
        }
        drop(kept);
        sums.into_iter().for_each(|(tag, bytes)| outer.release(bytes, tag));
    }
}

/// The resources that charge the tree.
impl Tree {
    pub(super) fn add_pending(&self, pending: &Arc<PendingBlocks>) {
        if let Some(mut state) = self.lock() {
            state.pending.push(Arc::clone(pending));
        }
    }

    /// Removes the resources whose budgets were dropped and that have no pending blocks, and drops
    /// them without a lock.
    pub(super) fn remove_dropped(&self) {
        let Some(mut state) = self.lock() else { return };
        let is_finished = |pending: &mut Arc<PendingBlocks>| pending.is_finished();
        let finished: Vec<_> = state.pending.extract_if(.., is_finished).collect();
        drop(state);
        drop(finished);
    }

    /// Releases the pending blocks that were freed upstream, of all resources.
    pub(super) fn poll(&self) {
        self.all_pending().iter().for_each(|pending| pending.poll(self));
        self.remove_dropped();
    }

    /// Calls `try_reap` of all resources that have pending blocks.
    pub(super) fn try_reap(&self) {
        self.all_pending().iter().for_each(|pending| pending.try_reap());
    }

    fn all_pending(&self) -> Vec<Arc<PendingBlocks>> {
        self.lock().map_or_else(Vec::new, |state| state.pending.clone())
    }

    /// Counts the release of a pending block, after it.
    pub(super) fn count_reaped(&self) {
        self.reaped.fetch_add(1, Ordering::Release);
    }

    /// Returns how often bytes were released that no request should be refused for. A block that
    /// upstream has freed before this call is counted by the end of the next poll.
    pub(super) fn releases(&self) -> Releases {
        let [reaped, taken_back] =
            [&self.reaped, &self.taken_back].map(|count| count.load(Ordering::Acquire));
        Releases { reaped, taken_back }
    }

    /// Returns whether a refusal stands: whether none of the bytes that it met were released since
    /// `before`, which was counted before the charge. Charges that are taken back are never in the limit
    /// around the root.
    pub(super) fn stands(&self, refused: &Refused, before: Releases) -> bool {
        let now = self.releases();
        let is_outer = matches!(refused, Refused::Outer(_));
        now.reaped == before.reaped && (is_outer || now.taken_back == before.taken_back)
    }
}

impl State {
    /// Returns `account` and all accounts below it.
    pub(super) fn within(&self, account: &Arc<Account>) -> Vec<Arc<Account>> {
        self.accounts.values().filter(|below| below.is_within(account)).cloned().collect()
    }

    pub(super) fn pending_within(&self, account: &Arc<Account>) -> Vec<Arc<PendingBlocks>> {
        let is_within = |pending: &&Arc<PendingBlocks>| pending.account.is_within(account);
        self.pending.iter().filter(is_within).cloned().collect()
    }
}

impl Refused {
    /// Returns whether the limit around the root cannot be used: then no room would help.
    pub(super) fn is_problem(&self) -> bool {
        let Self::Outer(refusal) = self else { return false };
        refusal.shared.as_ref().is_some_and(|shared| shared.problem.is_some())
    }

    #[cold]
    fn full(account: &Arc<Account>, remaining: u64) -> Self {
        Self::Full { account: Arc::clone(account), remaining }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::super::Budget;
    use super::*;

    const NAME: AllocTag = AllocTag::new("query");

    /// Adds an account, which forgets those that are not in use, and counts them without it.
    fn accounts(budget: &Budget) -> usize {
        drop(budget.sub_budget(NAME, 0));
        drop(budget.sub_budget(NAME, 0));
        budget.tree.lock().expect("no fork").accounts.len() - 1
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
        let account = Arc::clone(&share.account);
        whole.tree.charge(&account, 10, NAME).expect("room");
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
