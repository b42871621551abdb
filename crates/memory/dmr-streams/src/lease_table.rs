//! The table of a pool's leases, and the queue of the calls that wait for one.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use dmr_core::sync::ignore_poison;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// The time after which a call that waits checks again that it may wait.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// A table `T` under a lock, with a queue. It is held across no driver call.
///
/// Calls that want the same, by their `key`, are served in the order of their arrival.
/// [`lock`](Self::lock) does not queue.
pub(crate) struct LeaseTable<T> {
    state: Mutex<State<T>>,
    /// Notified when a lease is returned, and when a call leaves the queue, if others are in it.
    returned: Condvar,
}

struct State<T> {
    table: T,
    /// The key of each call that waits, by the number of its arrival.
    queue: BTreeMap<u64, i32>,
    arrivals: u64,
}

/// The locked table.
pub(crate) struct Locked<'a, T>(MutexGuard<'a, State<T>>);

impl<T> LeaseTable<T> {
    pub(crate) fn new(table: T) -> Self {
        let state = State { table, queue: BTreeMap::new(), arrivals: 0 };
        Self { state: Mutex::new(state), returned: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> Locked<'_, T> {
        Locked(ignore_poison(self.state.lock()))
    }

    /// Changes the table so that a lease is free, and wakes the calls that wait.
    pub(crate) fn put(&self, change: impl FnOnce(&mut T)) {
        let mut locked = self.lock();
        change(&mut locked);
        self.wake(locked);
    }

    /// Calls `take` with the locked table until it succeeds, at the latest at the deadline; `None`
    /// is no deadline. Returns its last error, or the error of `may_wait`, which is called before
    /// each wait.
    pub(crate) fn take_in_turn<R, E>(
        &self,
        key: i32,
        deadline: Option<Instant>,
        mut take: impl FnMut(&mut T) -> Result<R, E>,
        mut may_wait: impl FnMut() -> Result<(), E>,
    ) -> Result<R, E> {
        let mut locked = self.lock();
        if locked.is_next(key, u64::MAX)
            && let Ok(taken) = take(&mut locked)
        {
            return Ok(taken);
        }
        let state = &mut locked.0;
        let number = state.arrivals;
        state.arrivals += 1;
        state.queue.insert(number, key);
        let outcome = loop {
            if let Err(error) = may_wait() {
                break Err(error);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            if !is_over {
                let time = left.map_or(CHECK_EVERY, |left| left.min(CHECK_EVERY));
                let waited = self.returned.wait_timeout(locked.0, time);
                locked = Locked(ignore_poison(waited).0);
            }
            // A call whose time is over takes what is free, whatever its turn: those before it wake
            // as well.
            if is_over || locked.is_next(key, number) {
                match take(&mut locked) {
                    Err(_) if !is_over => {}
                    outcome => break outcome,
                }
            }
        };
        locked.0.queue.remove(&number);
        self.wake(locked);
        outcome
    }

    /// Unlocks the table, and wakes the calls that wait: which of them can go on depends on their
    /// keys.
    fn wake(&self, locked: Locked<'_, T>) {
        let any_waits = !locked.0.queue.is_empty();
        drop(locked);
        if any_waits {
            self.returned.notify_all();
        }
    }
}

impl<T> Locked<'_, T> {
    /// Returns whether no call with this key has waited since before the call of this number.
    fn is_next(&self, key: i32, number: u64) -> bool {
        !self.0.queue.range(..number).any(|(_, other)| *other == key)
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.table
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.table
    }
}

#[cfg(all(test, loom))]
#[path = "lease_table_loom.rs"]
mod loom_tests;
