//! Numbers that no two blocks of a process ever share.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which allocation this is: unique in the process, never reused.
///
/// Unordered across threads: each thread draws from a reserve of its own, so that allocating
/// threads share no cache line.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(NonZeroU64);

/// How many generations a thread takes from the process at once.
const RESERVE: u64 = 4096;

impl Generation {
    /// A generation that nobody has had before.
    #[must_use]
    #[inline]
    pub fn next() -> Self {
        static ISSUED: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static NEXT_AND_END: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
        }
        let take = || ISSUED.fetch_add(RESERVE, Ordering::Relaxed);
        let number = NEXT_AND_END
            .try_with(|reserve| {
                let (mut next, mut end) = reserve.get();
                if next == end {
                    next = take();
                    end = next + RESERVE;
                }
                reserve.set((next + 1, end));
                next
            })
            // A thread that is being torn down has no reserve left: it spends a whole one.
            .unwrap_or_else(|_| take());
        // 2⁶⁴ generations are 580 years at one per nanosecond, so the counter never wraps to 0.
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }

    /// The number, for logs and messages.
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
    fn threads_never_draw_the_same_generation() {
        let draw = || (0..3 * RESERVE).map(|_| Generation::next()).collect::<Vec<_>>();
        let drawn: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), drawn.len());
    }
}
