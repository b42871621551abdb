//! The time that a thread lets the host wait for device work.
//!
//! An allocation that finds too little memory waits for memory in flight that would suffice, which
//! may take as long as the work of a stream does. A program that has something better to do, such
//! as to spill, limits that.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Calls `act`. Until it returns, no resource makes this thread wait for device work for longer
/// than `limit`, all waits together: an allocation that needs memory in flight is refused then as
/// if there were none, and a reap that waits returns the driver's
/// [`CUDA_ERROR_NOT_READY`](crate::ResourceError::Driver). With `Duration::ZERO` nothing waits. In
/// an inner call, the earlier of both deadlines counts.
///
/// Copies to ordinary host memory and calls of the driver take as long as they take. So does a
/// resource that is dropped.
///
/// ```
/// use std::time::Duration;
///
/// use dmr_core::waits::{self, wait_at_most};
///
/// wait_at_most(Duration::from_millis(2), || {
///     // Allocate, or spill something.
///     assert!(waits::deadline().is_some());
/// });
/// assert!(waits::deadline().is_none());
/// ```
pub fn wait_at_most<R>(limit: Duration, act: impl FnOnce() -> R) -> R {
    let before = deadline();
    // A limit beyond the clock's range is none.
    let new = Instant::now().checked_add(limit);
    let _restored = Restored::set(before.into_iter().chain(new).min());
    act()
}

/// Calls `act` without the limits of outer calls of [`wait_at_most`]: for the end of a resource.
pub fn wait_without_limit<R>(act: impl FnOnce() -> R) -> R {
    let _restored = Restored::set(None);
    act()
}

/// Returns the instant at which this thread's waits for device work end; `None` without a limit.
#[must_use]
pub fn deadline() -> Option<Instant> {
    // A thread that ends has no limit any more.
    DEADLINE.try_with(Cell::get).ok().flatten()
}

/// Restores the deadline when it is dropped, also by a panic.
struct Restored(Option<Instant>);

impl Restored {
    fn set(deadline: Option<Instant>) -> Self {
        Self(DEADLINE.try_with(|cell| cell.replace(deadline)).ok().flatten())
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = DEADLINE.try_with(|cell| cell.set(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_earlier_deadline_counts_and_the_outer_one_is_restored() {
        wait_at_most(HOUR, || {
            let outer = deadline().unwrap();
            wait_at_most(2 * HOUR, || assert_eq!(deadline(), Some(outer)));
            wait_at_most(Duration::ZERO, || assert!(deadline().unwrap() < outer));
            wait_without_limit(|| assert_eq!(deadline(), None));
            assert_eq!(deadline(), Some(outer));
        });
        assert_eq!(deadline(), None);
    }

    #[test]
    fn a_panic_ends_the_limit() {
        let panicked = std::panic::catch_unwind(|| wait_at_most(HOUR, || panic!("in the scope")));
        assert!(panicked.is_err());
        assert_eq!(deadline(), None);
    }

    #[test]
    fn a_limit_beyond_the_clock_is_none() {
        wait_at_most(Duration::MAX, || assert_eq!(deadline(), None));
    }
}
