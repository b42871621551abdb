//! The books of a tree of accounts: limits, and what is drawn. One lock guards them; no code in
//! here calls a resource.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use dmr_core::AllocTag;
use dmr_core::error::Holder;

use super::pending::Sources;
use super::shard::{MOST_CREDIT, Shard};
use super::tags::TagSums;

/// Names an account in its tree. Never used twice; larger than its parent's.
pub(super) type AccountId = u64;

/// The first account of a tree, which has no parent.
pub(super) const ROOT: AccountId = 0;

/// What holders of reserved bytes that no block uses are called.
const RESERVED: AllocTag = AllocTag::new("(reserved)");

/// What a thread may keep of what it frees, however little is left, in bytes: less lock traffic,
/// and it is collected before anybody is refused.
const LEAST_CAP: u64 = 1 << 20;

/// A thread that takes less than this in advance takes nothing, in bytes.
const LEAST_CREDIT: u64 = 4 << 10;

/// All accounts of a tree.
///
/// An account's `drawn` is the bytes of its blocks, its threads' credit, and what its children
/// hold; it never exceeds the limit, except by bytes that were out before and by lowering the
/// limit. A child *holds* of its parent what it has drawn, and at least its `floor`.
#[derive(Debug)]
pub(super) struct Books {
    accounts: BTreeMap<AccountId, Account>,
    next_id: AccountId,
    next_ticket: u64,
    shards: u64,
    /// Counts what could let a waiter through.
    pub(super) changes: u64,
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) sources: Sources,
}

#[derive(Debug)]
struct Account {
    parent: Option<AccountId>,
    name: AllocTag,
    limit: u64,
    drawn: u64,
    /// What it holds of its parent even if it does not need it: a reservation's bytes.
    floor: u64,
    shards: Vec<Arc<CachePadded<Shard>>>,
    /// What is not counted by the thread that it belongs to.
    tags: TagSums,
    /// Whether anybody can still charge it.
    is_open: bool,
}

/// Somebody who waits for a reservation; first come, first served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) account: AccountId,
    pub(super) bytes: u64,
}

/// What the books said when an account did not give what was asked for.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) name: AllocTag,
    pub(super) limit: u64,
    pub(super) remaining: u64,
    pub(super) pending: u64,
    pub(super) holders: Vec<Holder>,
}

impl Refusal {
    /// Returns the refusal of a forked child, which has no memory to allocate.
    pub(super) fn forked() -> Self {
        let (name, holders) = (AllocTag::UNTAGGED, Vec::new());
        Self { name, limit: 0, remaining: 0, pending: 0, holders }
    }
}

impl Account {
    const fn held(&self) -> u64 {
        if self.drawn > self.floor { self.drawn } else { self.floor }
    }
}

impl Books {
    /// Books with one account, [`ROOT`].
    pub(super) fn new(limit: u64) -> Self {
        let mut books = Self {
            accounts: BTreeMap::new(),
            next_id: ROOT,
            next_ticket: 0,
            shards: 0,
            changes: 0,
            waiters: VecDeque::new(),
            sources: Sources::default(),
        };
        books.add(None, AllocTag::UNTAGGED, limit, 0);
        books
    }

    pub(super) fn add(
        &mut self,
        parent: Option<AccountId>,
        name: AllocTag,
        limit: u64,
        floor: u64,
    ) -> AccountId {
        let id = self.next_id;
        self.next_id += 1;
        let (shards, tags) = (Vec::new(), TagSums::default());
        let account = Account { parent, name, limit, drawn: 0, floor, shards, tags, is_open: true };
        self.accounts.insert(id, account);
        id
    }

    /// A place in the queue.
    pub(super) fn next_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// A shard of its own for one more thread.
    pub(super) fn add_shard(&mut self, id: AccountId) -> Arc<CachePadded<Shard>> {
        let number = self.accounts.get(&id).map_or(0, |account| account.shards.len());
        let shard = Arc::new(CachePadded::new(Shard::new(number)));
        if let Some(account) = self.accounts.get_mut(&id) {
            account.shards.push(Arc::clone(&shard));
            self.shards += 1;
        }
        shard
    }

    /// Nobody charges this account any more. It stays in the books for as long as blocks do.
    pub(super) fn close(&mut self, id: AccountId) {
        self.collect(id);
        if let Some(account) = self.accounts.get_mut(&id) {
            account.is_open = false;
            for shard in account.shards.drain(..) {
                shard.tags.sum_into(&mut account.tags);
                self.shards -= 1;
            }
        }
        self.set_floor(id, 0);
        self.forget_if_over(id);
    }

    /// Returns the number of accounts.
    #[cfg(all(test, not(loom)))]
    pub(super) fn accounts(&self) -> usize {
        self.accounts.len()
    }

    /// Forgets accounts that nobody can charge and that hold nothing, from this one upwards.
    fn forget_if_over(&mut self, id: AccountId) {
        let mut at = Some(id);
        while let Some(id) = at {
            let is_over = |account: &&Account| !account.is_open && account.held() == 0;
            let Some(account) = self.accounts.get(&id).filter(is_over) else { return };
            at = account.parent;
            self.accounts.remove(&id);
        }
    }

    /// Draws `bytes` for an account, from it and from all above it.
    ///
    /// # Errors
    ///
    /// The account that has no room; nothing has changed but that shards are closed. All shards
    /// below that account are: what it has drawn now is what is charged now.
    pub(super) fn draw(&mut self, id: AccountId, bytes: u64) -> Result<(), AccountId> {
        let mut collected = None;
        while let Some(full) = self.full(id, bytes) {
            if collected == Some(full) {
                return Err(full);
            }
            self.collect(full);
            collected = Some(full);
        }
        self.draw_anyway(id, bytes);
        Ok(())
    }

    /// Draws without asking whether it fits.
    pub(super) fn draw_anyway(&mut self, id: AccountId, bytes: u64) {
        self.change(id, |account| account.drawn = account.drawn.saturating_add(bytes));
    }

    /// The opposite of drawing.
    pub(super) fn put_back(&mut self, id: AccountId, bytes: u64) {
        self.change(id, |account| account.drawn = account.drawn.saturating_sub(bytes));
        self.changes += 1;
        self.forget_if_over(id);
    }

    /// Changes what an account has drawn or its floor, and with it what those above have drawn.
    fn change(&mut self, id: AccountId, how: impl FnOnce(&mut Account)) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        let before = account.held();
        how(account);
        let (mut before, mut after) = (before, account.held());
        let mut above = account.parent;
        while let Some(account) = above.and_then(|id| self.accounts.get_mut(&id)) {
            if before == after {
                return;
            }
            let held = account.held();
            account.drawn = account.drawn.saturating_sub(before).saturating_add(after);
            // Only the difference matters further up, where others have drawn, too.
            (before, after) = (held, account.held());
            above = account.parent;
        }
    }

    /// The account in which `bytes` more for account `id` do not fit, as far as is drawn.
    pub(super) fn full(&self, id: AccountId, bytes: u64) -> Option<AccountId> {
        let (mut at, mut more) = (Some(id), bytes);
        while let Some((id, account)) = at.and_then(|id| self.accounts.get_key_value(&id)) {
            if more == 0 {
                return None;
            }
            match account.drawn.checked_add(more) {
                Some(sum) if sum <= account.limit => {
                    more = sum.max(account.floor) - account.held();
                }
                _ => return Some(*id),
            }
            at = account.parent;
        }
        None
    }

    /// The account whose limit `bytes` exceed, whatever is drawn.
    pub(super) fn oversized(&self, id: AccountId, bytes: u64) -> Option<AccountId> {
        let (mut at, mut more) = (Some(id), bytes);
        while let Some((id, account)) = at.and_then(|id| self.accounts.get_key_value(&id)) {
            if more > account.limit {
                return Some(*id);
            }
            more = more.saturating_sub(account.floor);
            at = account.parent;
        }
        None
    }

    /// Closes all shards of this account and of those below it, and puts their credit back.
    ///
    /// When the last one is closed, nothing is taken below this account until the lock is free, and
    /// what is put back is at least what was idle at that instant: what does not fit then did not
    /// fit at that instant.
    pub(super) fn collect(&mut self, id: AccountId) {
        let all = self.with_all_below(id);
        all.iter().for_each(|id| self.shards_of(*id).iter().for_each(|shard| shard.close()));
        all.into_iter().for_each(|id| self.put_back_closed(id));
    }

    /// Puts back what has come into closed shards of this account.
    fn put_back_closed(&mut self, id: AccountId) {
        let closed = self.shards_of(id).iter().filter(|shard| shard.is_closed());
        let credit = closed.map(|shard| shard.collect()).fold(0, u64::saturating_add);
        if credit > 0 {
            self.put_back(id, credit);
        }
    }

    fn shards_of(&self, id: AccountId) -> &[Arc<CachePadded<Shard>>] {
        self.accounts.get(&id).map_or(&[], |account| &account.shards)
    }

    /// Puts back what has come into shards after they were closed, so that the numbers are exact
    /// if no call is under way.
    pub(super) fn settle(&mut self) {
        let all: Vec<_> = self.accounts.keys().copied().collect();
        all.into_iter().for_each(|id| self.put_back_closed(id));
    }

    fn with_all_below(&self, id: AccountId) -> Vec<AccountId> {
        let mut found = vec![id];
        for (child, account) in self.accounts.range(id + 1..) {
            // In ascending order, as ids are.
            if account.parent.is_some_and(|parent| found.binary_search(&parent).is_ok()) {
                found.push(*child);
            }
        }
        found
    }

    /// Opens a closed shard of this account again, with credit where there is plenty. Not while
    /// somebody waits: then every free must be seen. (One that found its shard open just before is
    /// seen when the waiter looks again by itself.)
    pub(super) fn open(&mut self, id: AccountId, shard: &Shard) {
        if !self.waiters.is_empty() {
            return;
        }
        let share = self.room(id) / (4 * self.shards.max(1));
        let credit = if share < LEAST_CREDIT { 0 } else { share.min(MOST_CREDIT) };
        self.draw_anyway(id, credit);
        shard.open(credit, credit.saturating_mul(2).max(LEAST_CAP));
    }

    /// Bytes that could be drawn at once.
    fn room(&self, id: AccountId) -> u64 {
        // What an account has reserved comes on top of what those above have left.
        let (mut at, mut room, mut on_top) = (Some(id), u64::MAX, 0_u64);
        while let Some(account) = at.and_then(|id| self.accounts.get(&id)) {
            let own = account.limit.saturating_sub(account.drawn);
            room = room.min(on_top.saturating_add(own));
            on_top = on_top.saturating_add(account.floor.saturating_sub(account.drawn));
            at = account.parent;
        }
        room
    }

    pub(super) fn limit(&self, id: AccountId) -> u64 {
        self.accounts.get(&id).map_or(0, |account| account.limit)
    }

    /// Sets the limit. No credit from before is left: what is allocated from now on is asked.
    pub(super) fn set_limit(&mut self, id: AccountId, limit: u64) {
        self.collect(id);
        if let Some(account) = self.accounts.get_mut(&id) {
            account.limit = limit;
        }
        self.changes += 1;
    }

    pub(super) fn set_floor(&mut self, id: AccountId, floor: u64) {
        self.change(id, |account| account.floor = floor);
        self.changes += 1;
    }

    pub(super) fn name(&self, id: AccountId) -> AllocTag {
        self.accounts.get(&id).map_or(AllocTag::UNTAGGED, |account| account.name)
    }

    pub(super) fn set_name(&mut self, id: AccountId, name: AllocTag) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.name = name;
        }
    }

    /// The counters of what no thread counts.
    pub(super) fn tags(&mut self, id: AccountId) -> Option<&mut TagSums> {
        self.accounts.get_mut(&id).map(|account| &mut account.tags)
    }

    /// Whether `id` is `above` or below it.
    pub(super) fn is_within(&self, id: AccountId, above: AccountId) -> bool {
        let mut at = Some(id);
        while let Some(id) = at {
            if id == above {
                return true;
            }
            at = self.accounts.get(&id).and_then(|account| account.parent);
        }
        false
    }
}

/// What the books say, without closing anything: exact when no call is under way.
impl Books {
    /// Bytes charged to an account, and bytes that are left of it and of all above it.
    pub(super) fn position(&mut self, id: AccountId) -> (u64, u64) {
        self.settle();
        let charged = self.charged();
        let used = |id| charged.get(&id).copied().unwrap_or(0);
        let (mut at, mut room, mut on_top) = (Some(id), u64::MAX, 0_u64);
        while let Some((id, account)) = at.and_then(|id| self.accounts.get_key_value(&id)) {
            room = room.min(on_top.saturating_add(account.limit.saturating_sub(used(*id))));
            on_top = on_top.saturating_add(account.floor.saturating_sub(used(*id)));
            at = account.parent;
        }
        (used(id), room)
    }

    /// Bytes charged to each account: drawn, less what is idle there and below.
    fn charged(&self) -> BTreeMap<AccountId, u64> {
        let (mut charged, mut idle_below) = (BTreeMap::new(), BTreeMap::<AccountId, u64>::new());
        // Children first.
        for (id, account) in self.accounts.iter().rev() {
            let credit = account.shards.iter().map(|shard| shard.peek());
            let below = idle_below.get(id).copied().unwrap_or(0);
            let used = account.drawn.saturating_sub(credit.fold(below, u64::saturating_add));
            charged.insert(*id, used);
            if let Some(parent) = account.parent {
                let idle = account.held().saturating_sub(used.max(account.floor));
                let sum = idle_below.entry(parent).or_default();
                *sum = sum.saturating_add(idle);
            }
        }
        charged
    }

    /// Who holds what of an account, most bytes first.
    pub(super) fn holders(&self, id: AccountId) -> Vec<Holder> {
        let (charged, mut sums) = (self.charged(), TagSums::default());
        for below in self.with_all_below(id) {
            let Some(account) = self.accounts.get(&below) else { continue };
            sums.add_all(&account.tags);
            account.shards.iter().for_each(|shard| shard.tags.sum_into(&mut sums));
            let used = charged.get(&below).copied().unwrap_or(0);
            if below != id && account.floor > used {
                sums.add(RESERVED, account.floor - used);
            }
        }
        sums.holders()
    }

    /// What is said of an account that had no room.
    pub(super) fn refusal(&self, full: AccountId) -> Refusal {
        let used = self.charged().get(&full).copied().unwrap_or(0);
        let limit = self.limit(full);
        Refusal {
            name: self.name(full),
            limit,
            remaining: limit.saturating_sub(used),
            pending: self.sources.pending(|account| self.is_within(account, full)),
            holders: self.holders(full),
        }
    }
}
