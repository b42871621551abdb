//! [`Reservation`]: bytes taken out of a budget at once, first come, first served.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dmr_core::ResourceResult;
use dmr_core::sync::ignore_poison;

use crate::sync::lock;

use super::Budget;
use super::account::Account;
use super::tree::{RESERVED, Refused, State, Tree};

/// The time after which a waiting reservation looks again, and reaps.
const REAP_EVERY: Duration = Duration::from_millis(2);

/// Bytes taken out of a budget, as a budget of their own, with the same name. Made by
/// [`Budget::reserve`].
///
/// Charges of this budget use the reserved bytes, so other allocations cannot make them fail. When
/// it is dropped, its limit becomes 0 and unused bytes are released at once; bytes that are still
/// charged are released as they are freed.
#[derive(Debug)]
#[must_use = "what is reserved is released when this is dropped"]
pub struct Reservation {
    budget: Budget,
}

impl Budget {
    /// Takes `bytes` out of this budget and of all that it is a part of, as a whole, and waits up
    /// to `timeout` for them: a query that reserves what it needs is admitted or not, and does not
    /// stop half-way with others.
    ///
    /// First come, first served: a reservation does not overtake one that waits for the same
    /// budget, or that waits for room in a budget that both are parts of. Ordinary allocations do
    /// not queue. A waiting reservation looks again when bytes are released and every 2 ms, and
    /// calls `try_reap` of the resources that have retired blocks of the budget. The lock of an
    /// account that processes share is waited for until the timeout, but for at least 50 ms and at
    /// most its own lock timeout.
    ///
    /// # Errors
    ///
    /// [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget): at once if `bytes` is more than a
    /// limit, or if the account that processes share cannot be used; else after the timeout, and at
    /// least one attempt to reap.
    pub fn reserve(&self, bytes: u64, timeout: Duration) -> ResourceResult<Reservation> {
        let Self { tree, account } = self;
        let deadline = Instant::now().checked_add(timeout);
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let mut queued = Queued { tree, account, bytes, deadline, number: None };
        let mut reaped: Option<Instant> = None;
        let wait = |waits: u64| {
            if waits > 0 {
                if is_over() {
                    return false;
                }
                tree.wait_for_release(deadline);
            }
            if is_over() || reaped.is_none_or(|at| at.elapsed() >= REAP_EVERY) {
                reaped = Some(Instant::now());
                tree.try_reap();
            }
            true
        };
        let reserved = tree.retry(account, bytes, || queued.admit(), wait);
        let account = reserved.map_err(|refused| tree.error(refused, bytes))?;
        Ok(Reservation { budget: Self::new_handle(tree, account) })
    }
}

impl Deref for Reservation {
    type Target = Budget;

    fn deref(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.tree.end_reservation(&self.budget.account);
    }
}

/// A reservation that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiter {
    account: Arc<Account>,
    bytes: u64,
    /// Set while its bytes are charged to the tree and not yet to the limit around it.
    is_charging: bool,
}

/// A request for a reservation.
struct Queued<'a> {
    tree: &'a Tree,
    account: &'a Arc<Account>,
    bytes: u64,
    deadline: Option<Instant>,
    /// Its number in the queue, if it waits.
    number: Option<u64>,
}

impl Queued<'_> {
    /// Takes the bytes if they fit and no earlier reservation waits for the same room; else joins
    /// the queue.
    fn admit(&mut self) -> Result<Arc<Account>, Refused> {
        let Self { tree, account, bytes, deadline, .. } = *self;
        let mut state = tree.lock().ok_or(Refused::Forked)?;
        if let Some(account) = self.ahead(&state) {
            self.join(&mut state, false);
            return Err(Refused::Full { remaining: account.room(), account });
        }
        // The lock is not held during the charge, so later reservations have to see that this one
        // waits for no room of the tree any more.
        if self.number.is_some() {
            self.join(&mut state, true);
        }
        drop(state);
        let charged = tree.charge(account, bytes, RESERVED, deadline);
        let mut state = tree.lock().ok_or(Refused::Forked)?;
        charged.inspect_err(|_| self.join(&mut state, false))?;
        self.leave(&mut state);
        let reserved = tree.add(&mut state, account, *lock(&account.name), bytes);
        reserved.set_reserved();
        Ok(reserved)
    }

    /// Returns the account for whose room an earlier reservation waits, if this one needs room
    /// there too. That is the root if the earlier one fits in this tree: it has only to wake up, or
    /// waits for the limit around the root.
    fn ahead(&self, state: &State) -> Option<Arc<Account>> {
        let blocking = |waiter: &Waiter| {
            let mut path = waiter.account.path();
            let full = path.find(|account| !waiter.is_charging && waiter.bytes > account.room());
            Arc::clone(full.unwrap_or(&self.tree.root))
        };
        let needs_room_of = |above: &Arc<Account>| {
            self.bytes > 0 && self.account.path().any(|account| Arc::ptr_eq(account, above))
        };
        let earlier = state.waiters.range(..self.number.unwrap_or(u64::MAX));
        earlier.map(|(_, waiter)| blocking(waiter)).find(needs_room_of)
    }

    fn join(&mut self, state: &mut State, is_charging: bool) {
        let number = *self.number.get_or_insert_with(|| state.next_id());
        let account = Arc::clone(self.account);
        let bytes = self.bytes;
        state.waiters.insert(number, Waiter { account, bytes, is_charging });
        self.tree.set_waiting(state);
    }

    fn leave(&mut self, state: &mut State) {
        if let Some(number) = self.number.take() {
            state.waiters.remove(&number);
            self.tree.set_waiting(state);
            self.tree.notify_waiters();
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.tree.lock() {
            self.leave(&mut state);
        }
    }
}

impl Tree {
    /// Waits until bytes are released, it is time to reap, or the deadline.
    fn wait_for_release(&self, deadline: Option<Instant>) {
        let Some(state) = self.lock() else { return };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.map_or(REAP_EVERY, |left| left.min(REAP_EVERY));
        drop(ignore_poison(self.released.wait_timeout(state, time)));
    }
}
