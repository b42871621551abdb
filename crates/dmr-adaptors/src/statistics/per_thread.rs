//! A value for each thread, that a thread can still use while it is being torn down.
//!
//! Blocks that a thread keeps in its own thread-locals are given back from their destructors,
//! when a crate that keeps its key in another thread-local may have lost it, and panics. A panic
//! there aborts the process. Here such a late thread takes a lock and shares one value.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crossbeam_utils::CachePadded;

use super::table::Table;

/// One value for each thread at work. A thread that starts may take over the value of one that
/// has ended.
#[derive(Debug, Default)]
pub(super) struct PerThread<T> {
    values: Table<CachePadded<T>>,
    late: T,
    late_lock: Mutex<()>,
}

impl<T: Default> PerThread<T> {
    /// The thread's own value, unless it has none yet or no more. No other thread is handed it
    /// while this one lives, so that it can take itself for the only writer.
    #[inline]
    pub(super) fn own(&self) -> Option<&T> {
        match SEAT.get() {
            NO_SEAT => None,
            seat => Some(self.values.get_or_make(seat)),
        }
    }

    /// Calls `f` with the thread's value, or with the shared one, alone. `f` must not call this.
    pub(super) fn with<A>(&self, f: impl FnOnce(&T) -> A) -> A {
        if let Some(own) = self.own() {
            return f(own);
        }
        if let Some(seat) = take_a_seat() {
            return f(self.values.get_or_make(seat));
        }
        let _only_one = self.late_lock.lock().unwrap_or_else(PoisonError::into_inner);
        f(&self.late)
    }

    /// The values of all threads, also of those that have ended.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.values.iter().map(|(_, value)| &**value).chain([&self.late])
    }
}

/// Whether this thread has a value of its own: it is not being torn down.
pub(super) fn has_its_own() -> bool {
    SEAT.get() != NO_SEAT || take_a_seat().is_some()
}

const NO_SEAT: usize = usize::MAX;

/// Numbers that threads sit on while they live: small, and given to the next when one ends.
static SEATS: Mutex<Seats> = Mutex::new(Seats { free: Vec::new(), made: 0 });

struct Seats {
    free: Vec<usize>,
    made: usize,
}

thread_local! {
    // Without a destructor, so that it can be read at any time.
    static SEAT: Cell<usize> = const { Cell::new(NO_SEAT) };
    static LEAVE: Leave = const { Leave };
}

/// Frees the thread's seat when the thread ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        let seat = SEAT.replace(NO_SEAT);
        SEATS.lock().unwrap_or_else(PoisonError::into_inner).free.push(seat);
    }
}

/// `None` if the thread is being torn down and has left its seat.
fn take_a_seat() -> Option<usize> {
    LEAVE.try_with(|_| ()).ok()?;
    let mut seats = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
    let seat = seats.free.pop().unwrap_or_else(|| {
        seats.made += 1;
        seats.made - 1
    });
    SEAT.set(seat);
    Some(seat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static COUNTS: LazyLock<PerThread<AtomicU64>> = LazyLock::new(PerThread::default);

    fn sum() -> u64 {
        COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    struct CountsLate;

    impl Drop for CountsLate {
        fn drop(&mut self) {
            count();
        }
    }

    thread_local! {
        static BEFORE: CountsLate = const { CountsLate };
        static AFTER: CountsLate = const { CountsLate };
    }

    fn count() {
        COUNTS.with(|count| count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
    }

    /// One test, for it counts all there is in the process.
    #[test]
    fn threads_count_alone_until_they_are_gone_and_leave_their_seat() {
        let seats = || {
            let seats = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
            (seats.made, seats.free.len())
        };
        for round in 0..20 {
            std::thread::spawn(|| {
                // Destructors run in some order: one of these two runs after the seat is left.
                BEFORE.with(|_| ());
                count();
                AFTER.with(|_| ());
            })
            .join()
            .unwrap();
            assert_eq!(sum(), 3 * (round + 1));
        }
        assert!(COUNTS.late.load(Ordering::Relaxed) >= 20, "a late thread uses the shared value");
        let (made, _) = seats();
        assert!(made < 10, "{made} seats were made for one thread at a time");
    }
}
