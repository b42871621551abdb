//! [`Reservation`]: bytes taken out of a budget at once, first come, first served.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dmr_core::sync::ignore_poison;
use dmr_core::{ResourceError, ResourceResult};

use super::Budget;
use super::account::Account;
use super::tree::{RESERVED, Refusal, Refused, State, Tree};

/// The interval at which a waiting reservation looks again, and reaps.
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
    /// calls `try_reap` of the resources that charge the budget.
    ///
    /// # Errors
    ///
    /// [`OutOfBudget`](ResourceError::OutOfBudget): at once if `bytes` is more than a limit, or if
    /// the account that processes share cannot be used; else after the timeout, and at least one
    /// attempt to reap.
    pub fn reserve(&self, bytes: u64, timeout: Duration) -> ResourceResult<Reservation> {
        let queued = Queued { tree: &self.tree, account: &self.account, bytes, ticket: None };
        let reserved = queued.wait(Instant::now().checked_add(timeout));
        let account =
            reserved.map_err(|refused| out_of_budget(self.tree.refusal(refused), bytes))?;
        Ok(Reservation { budget: Budget { tree: Arc::clone(&self.tree), account } })
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

pub(super) fn out_of_budget(refusal: Refusal, bytes: u64) -> ResourceError {
    let Refusal { name, limit, remaining, pending, holders, shared } = refusal;
    let requested = usize::try_from(bytes).unwrap_or(usize::MAX);
    let error = ResourceError::out_of_budget(name, requested, limit, remaining, pending, holders);
    match shared {
        Some(shared) => error.shared_by(*shared),
        None => error,
    }
}

/// A reservation in the queue of its tree.
#[derive(Debug)]
pub(super) struct Waiter {
    ticket: u64,
    account: Arc<Account>,
    bytes: u64,
    /// `true` if its bytes are charged to the tree, and not yet to the limit around it.
    is_charging: bool,
}

/// A request for a reservation.
struct Queued<'a> {
    tree: &'a Tree,
    account: &'a Arc<Account>,
    bytes: u64,
    /// Its place in the queue, if it waits.
    ticket: Option<u64>,
}

impl Queued<'_> {
    /// Returns the new account once it has its bytes.
    fn wait(mut self, deadline: Option<Instant>) -> Result<Arc<Account>, Refused> {
        let mut reaped: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let is_over = deadline.is_some_and(|deadline| now >= deadline);
            let before = self.tree.releases();
            let refused = match self.admit() {
                Ok(account) => return Ok(account),
                Err(refused @ Refused::Forked) => return Err(refused),
                Err(refused) if refused.is_problem() => return Err(refused),
                Err(refused) => refused,
            };
            if let Some(oversized) = self.tree.oversized(self.account, self.bytes, &refused) {
                return Err(oversized);
            }
            self.tree.poll();
            if !self.tree.stands(&refused, before) {
                continue;
            }
            if is_over && reaped.is_some() {
                return Err(refused);
            }
            if is_over || reaped.is_none_or(|at| now.duration_since(at) >= REAP_EVERY) {
                reaped = Some(now);
                self.tree.try_reap();
                self.tree.poll();
            }
            if !is_over {
                self.sleep(deadline);
            }
        }
    }

    /// Takes the bytes if they fit and no earlier reservation waits for the same room; else joins
    /// the queue.
    fn admit(&mut self) -> Result<Arc<Account>, Refused> {
        let Some(mut state) = self.tree.lock() else { return Err(Refused::Forked) };
        if let Some(account) = self.ahead(&state) {
            self.join(&mut state);
            return Err(Refused::Full { remaining: account.room(), account });
        }
        if let Some(waiter) = self.waiter(&mut state) {
            waiter.is_charging = true;
        }
        match self.tree.charge_locked(state, self.account, self.bytes, RESERVED) {
            Ok(mut state) => {
                self.leave(&mut state);
                let (name, bytes) = (self.account.name(), self.bytes);
                Ok(self.tree.add(&mut state, self.account, name, bytes, bytes))
            }
            Err(refused) => {
                if let Some(mut state) = self.tree.lock() {
                    self.join(&mut state);
                }
                Err(refused)
            }
        }
    }

    /// Returns the account for whose room an earlier reservation waits, if this one needs room
    /// there too. That is the root if the earlier one fits in this tree: it has only to wake up, or waits for the
    /// limit around the root.
    fn ahead(&self, state: &State) -> Option<Arc<Account>> {
        let earlier = state.waiters.iter().take_while(|waiter| Some(waiter.ticket) != self.ticket);
        let full = |waiter: &Waiter| {
            if waiter.is_charging { None } else { self.tree.full(&waiter.account, waiter.bytes) }
        };
        earlier
            .map(|waiter| full(waiter).unwrap_or_else(|| Arc::clone(&self.tree.root)))
            .find(|account| self.account.needs_room_of(self.bytes, account))
    }

    /// Returns its place in the queue, if it waits.
    fn waiter<'s>(&self, state: &'s mut State) -> Option<&'s mut Waiter> {
        state.waiters.iter_mut().find(|waiter| Some(waiter.ticket) == self.ticket)
    }

    fn join(&mut self, state: &mut State) {
        if let Some(waiter) = self.waiter(state) {
            waiter.is_charging = false;
        } else {
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            let (account, bytes) = (Arc::clone(self.account), self.bytes);
            state.waiters.push_back(Waiter { ticket, account, bytes, is_charging: false });
            self.ticket = Some(ticket);
            self.tree.set_waiting(state);
        }
    }

    fn leave(&mut self, state: &mut State) {
        if let Some(ticket) = self.ticket.take() {
            state.waiters.retain(|waiter| waiter.ticket != ticket);
            self.tree.set_waiting(state);
            self.tree.notify_waiters();
        }
    }

    /// Waits until bytes are released, it is time to reap, or the deadline.
    fn sleep(&self, deadline: Option<Instant>) {
        let Some(state) = self.tree.lock() else { return };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.map_or(REAP_EVERY, |left| left.min(REAP_EVERY));
        drop(ignore_poison(self.tree.released.wait_timeout(state, time)));
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let tree = self.tree;
        if self.ticket.is_some()
            && let Some(mut state) = tree.lock()
        {
            self.leave(&mut state);
        }
    }
}
