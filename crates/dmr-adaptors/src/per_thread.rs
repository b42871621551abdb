//! A value for each thread, that a thread can still use while it is being torn down.
//!
//! Blocks that a thread keeps in its own thread-locals are given back from their destructors,
//! when a crate that keeps its key in another thread-local may have lost it, and panics. A panic
//! there aborts the process. Here such a late thread is told that it has no value of its own.
//!
//! It takes no lock, which a fork could leave locked, except to make room for more threads than
//! there ever were at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_utils::CachePadded;

use crate::table::{LAST, Table};

/// One value for each thread at work. A thread that starts may take over the value of one that
/// has ended.
#[derive(Debug)]
pub(crate) struct PerThread<T> {
    values: Table<CachePadded<T>>,
}

impl<T: Default> PerThread<T> {
    pub(crate) const fn new() -> Self {
        Self { values: Table::new() }
    }

    /// The thread's own value, made if need be; `None` while the thread is being torn down. No
    /// other thread is handed it while this one lives, so that it can take itself for the only
    /// writer.
    #[inline]
    pub(crate) fn own(&self) -> Option<&T> {
        match SEAT.get() {
            NO_SEAT => self.own_from_now_on(),
            seat => Some(self.values.get_or_make(seat)),
        }
    }

    #[cold]
    fn own_from_now_on(&self) -> Option<&T> {
        Some(self.values.get_or_make(take_a_seat()?))
    }

    /// The values of all threads, also of those that have ended.
    #[cfg(any(feature = "logging", test))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.values.iter().map(|(_, value)| &**value)
    }
}

const NO_SEAT: usize = usize::MAX;

/// Numbers that threads sit on while they live, the least that are free: whether each is taken.
static SEATS: Table<AtomicBool> = Table::new();

thread_local! {
    // Without a destructor, so that it can be read at any time.
    static SEAT: Cell<usize> = const { Cell::new(NO_SEAT) };
    static LEAVE: Leave = const { Leave };
}

/// Frees the thread's seat when the thread ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        let seat = SEATS.get(SEAT.replace(NO_SEAT));
        seat.into_iter().for_each(|seat| seat.store(false, Ordering::Release));
    }
}

/// `None` if the thread is being torn down and has left its seat. Whoever finds a seat free sees
/// all that was done on it.
fn take_a_seat() -> Option<usize> {
    LEAVE.try_with(|_| ()).ok()?;
    let is_free = |seat: &usize| !SEATS.get_or_make(*seat).swap(true, Ordering::Acquire);
    let seat = (0..LAST).find(is_free)?;
    SEAT.set(seat);
    Some(seat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    static COUNTS: PerThread<AtomicU64> = PerThread::new();
    static LATE: AtomicU64 = AtomicU64::new(0);

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
        match COUNTS.own() {
            Some(count) => count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
            None => drop(LATE.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// One test, for it counts all there is in the process.
    #[test]
    fn threads_count_alone_until_they_are_gone_and_leave_their_seat() {
        for round in 0..200 {
            std::thread::spawn(|| {
                // Destructors run in some order: one of these two runs after the seat is left.
                BEFORE.with(|_| ());
                count();
                AFTER.with(|_| ());
            })
            .join()
            .unwrap();
            assert_eq!(sum() + LATE.load(Ordering::Relaxed), 3 * (round + 1));
        }
        assert!(LATE.load(Ordering::Relaxed) >= 200, "a late thread has no value");
        let used = COUNTS.iter().filter(|count| count.load(Ordering::Relaxed) > 0).count();
        // Threads of other tests have seats as well.
        assert!(used < 100, "{used} seats for one thread at a time");
    }

    #[test]
    fn threads_at_work_never_share_a_value() {
        static CLAIMS: PerThread<AtomicU64> = PerThread::new();
        let all_there = std::sync::Barrier::new(100);
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let own = CLAIMS.own().expect("a thread at work has one");
                    assert_eq!(own.fetch_add(1, Ordering::Relaxed), 0);
                    all_there.wait();
                    own.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }
}
