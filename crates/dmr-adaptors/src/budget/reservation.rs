//! [`Reservation`]: bytes taken out of a budget at once, by whoever waits for them longest.

use std::ops::Deref;
use std::time::{Duration, Instant};

use dmr_core::sync::ignore_poison;
use dmr_core::{ResourceError, ResourceResult};

use super::Budget;
use super::books::{AccountId, Books, ROOT, Refusal, Waiter};
use super::tree::Tree;

/// How often somebody who waits makes the resources let go of what is done with.
const REAP_EVERY: Duration = Duration::from_millis(2);

/// Bytes taken out of a budget, as a budget of their own, with the same name. Made by
/// [`Budget::reserve`].
///
/// What charges it draws on what was reserved, and is never refused because somebody else was
/// faster. Dropped, its limit becomes 0 and what is unused goes back at once; what is still
/// charged goes back as it is freed.
#[derive(Debug)]
#[must_use = "what is reserved goes back when this is dropped"]
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
    /// not queue. While anybody waits, allocations and frees of the whole tree take a lock, and the
    /// waiting thread calls `try_reap` of the resources that charge it.
    ///
    /// # Errors
    ///
    /// [`OutOfBudget`](ResourceError::OutOfBudget): at once if `bytes` is more than a limit; else
    /// after the timeout, and at least one attempt to reap.
    pub fn reserve(&self, bytes: u64, timeout: Duration) -> ResourceResult<Reservation> {
        let id = Queued { tree: &self.account.tree, account: self.account.id, bytes, ticket: None }
            .wait(Instant::now().checked_add(timeout))
            .map_err(|refusal| out_of_budget(refusal, bytes))?;
        Ok(Reservation { budget: self.part(|_| id) })
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
        let account = &self.budget.account;
        let Some(mut books) = account.tree.books() else { return };
        books.set_limit(account.id, 0);
        books.set_floor(account.id, 0);
        account.tree.tell_waiters(&books);
    }
}

pub(super) fn out_of_budget(refusal: Refusal, bytes: u64) -> ResourceError {
    let Refusal { name, limit, remaining, pending, holders } = refusal;
    let requested = usize::try_from(bytes).unwrap_or(usize::MAX);
    ResourceError::out_of_budget(name, requested, limit, remaining, pending, holders)
}

/// A request for a reservation, and its place in the queue.
struct Queued<'a> {
    tree: &'a Tree,
    account: AccountId,
    bytes: u64,
    ticket: Option<u64>,
}

impl Queued<'_> {
    /// The new account, when it is there.
    fn wait(mut self, deadline: Option<Instant>) -> Result<AccountId, Refusal> {
        let mut reaped: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let is_over = deadline.is_some_and(|deadline| now >= deadline);
            let releases = self.tree.releases();
            let (changes, refusal) = {
                let Some(mut books) = self.tree.books() else { return Err(Refusal::forked()) };
                if let Some(over) = books.oversized(self.account, self.bytes) {
                    return Err(books.refusal(over));
                }
                match self.admit(&mut books) {
                    Ok(id) => return Ok(id),
                    Err(full) => {
                        let is_last = is_over && reaped.is_some();
                        (books.changes, is_last.then(|| books.refusal(full)))
                    }
                }
            };
            self.tree.poll();
            if self.tree.releases() != releases {
                continue;
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            if is_over || reaped.is_none_or(|at| now.duration_since(at) >= REAP_EVERY) {
                reaped = Some(now);
                self.tree.try_reap();
                self.tree.poll();
            }
            if !is_over {
                self.sleep(changes, deadline);
            }
        }
    }

    /// Takes the bytes, if it is this one's turn and they fit; else it is queued.
    fn admit(&mut self, books: &mut Books) -> Result<AccountId, AccountId> {
        let Self { account, bytes, .. } = *self;
        let answer = match self.ahead(books) {
            Some(full) => Err(full),
            None => books.draw(account, bytes),
        };
        if answer.is_ok() {
            self.leave(books);
        } else if self.ticket.is_none() {
            let ticket = books.next_ticket();
            books.waiters.push_back(Waiter { ticket, account, bytes });
            self.ticket = Some(ticket);
            // Nothing opens a shard again while somebody waits.
            books.collect(ROOT);
        }
        answer.map(|()| books.add(Some(account), books.name(account), bytes, bytes))
    }

    /// Where somebody who came earlier must be served first: in the account where that one finds
    /// no room, or anywhere if it does and only has to wake up.
    fn ahead(&self, books: &Books) -> Option<AccountId> {
        let earlier = books.waiters.iter().take_while(|waiter| Some(waiter.ticket) != self.ticket);
        earlier
            .map(|waiter| books.full(waiter.account, waiter.bytes).unwrap_or(ROOT))
            .find(|full| books.is_within(self.account, *full))
    }

    /// Until something has changed, it is time to reap, or the deadline.
    fn sleep(&self, changes: u64, deadline: Option<Instant>) {
        let Some(books) = self.tree.books() else { return };
        if books.changes != changes {
            return;
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = left.map_or(REAP_EVERY, |left| left.min(REAP_EVERY));
        let woken = self.tree.freed.wait_timeout(books, time);
        drop(ignore_poison(woken));
    }

    fn leave(&mut self, books: &mut Books) {
        if let Some(ticket) = self.ticket.take() {
            books.waiters.retain(|waiter| waiter.ticket != ticket);
            books.changes += 1;
            self.tree.tell_waiters(books);
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let tree = self.tree;
            if let Some(mut books) = tree.books() {
                self.leave(&mut books);
            }
        }
    }
}
