//! Allocation numbers, unique in the process.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of an allocation: unique in the process, never reused.
///
/// Unordered across threads: each thread takes numbers from a range of its own, so that allocating
/// threads share no cache line.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(NonZeroU64);

/// The length of the range of numbers that a thread takes from the process at once.
const RANGE: u64 = 4096;

thread_local! {
    static NEXT_AND_END: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

impl Generation {
    /// Returns a generation that was never returned before, on any thread.
    #[must_use]
    #[inline]
    pub fn next() -> Self {
        static ISSUED: AtomicU64 = AtomicU64::new(1);
        let take_range = || ISSUED.fetch_add(RANGE, Ordering::Relaxed);
        let number = NEXT_AND_END
            .try_with(|range| {
                let (mut next, mut end) = range.get();
                if next == end {
                    next = take_range();
                    end = next + RANGE;
                }
                range.set((next + 1, end));
                next
            })
            // A thread whose thread-locals are destroyed takes a whole range for one number.
            .unwrap_or_else(|_| take_range());
        // 2⁶⁴ generations are 580 years at one per nanosecond, so the counter never wraps to 0.
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }

    /// Returns whether the calling thread has taken it not long ago. If false, another thread may
    /// have.
    #[must_use]
    #[inline]
    pub fn is_recent_of_thread(self) -> bool {
        let end = NEXT_AND_END.try_with(|range| range.get().1).unwrap_or(0);
        self.get().wrapping_sub(end.wrapping_sub(RANGE)) < RANGE
    }

    /// Returns the number, for logs and messages.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Generation({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_recent_generation_of_another_thread_is_not_of_this_one() {
        let first = Generation::next();
        let of_thread = std::thread::spawn(|| {
            let generation = Generation::next();
            assert!(generation.is_recent_of_thread());
            generation
        });
        let other = of_thread.join().unwrap();
        assert!(first.is_recent_of_thread());
        assert!(!other.is_recent_of_thread());
        let without_any = std::thread::spawn(move || {
            assert!(!first.is_recent_of_thread() && !other.is_recent_of_thread());
        });
        without_any.join().unwrap();
        for _ in 0..RANGE {
            let _ = Generation::next();
        }
        assert!(!first.is_recent_of_thread());
    }

    #[test]
    fn threads_never_get_the_same_generation() {
        let draw = || (0..3 * RANGE).map(|_| Generation::next()).collect::<Vec<_>>();
        let drawn: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), drawn.len());
    }
}
