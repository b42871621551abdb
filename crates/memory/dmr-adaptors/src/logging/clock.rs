//! The time stamps that order the records.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

thread_local! {
    // Without a destructor, so that a thread can use it until it has ended.
    static LAST_STAMP: Cell<u64> = const { Cell::new(0) };
}

/// Returns wall-clock nanoseconds since the epoch, larger than all that this thread got before.
#[inline]
pub(super) fn stamp() -> u64 {
    let stamp = after(LAST_STAMP.get(), now_ns());
    LAST_STAMP.set(stamp);
    stamp
}

/// Returns `now_ns`, or the next number after `last` if the clock has not ticked since.
#[inline]
fn after(last: u64, now_ns: u64) -> u64 {
    now_ns.max(last + 1)
}

/// Reads a monotonic clock that starts with the wall-clock time of the first call.
#[inline]
fn now_ns() -> u64 {
    // A wall clock can be set back, which would put a free behind the allocation that reuses it.
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, epoch_ns) = START.get_or_init(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        (Instant::now(), nanoseconds(since_epoch))
    });
    epoch_ns + nanoseconds(start.elapsed())
}

/// 64 bits are enough until the year 2554.
#[inline]
fn nanoseconds(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stamps_of_a_thread_increase_also_where_the_clock_stands_still() {
        let stamps: Vec<_> = (0..10_000).map(|_| stamp()).collect();
        assert!(stamps.is_sorted_by(|earlier, later| earlier < later));
        assert_eq!((after(7, 9), after(7, 7), after(8, 7)), (9, 8, 9));
    }
}
