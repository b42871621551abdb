//! Memory on its way from the arenas to upstream, where nobody finds it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What one thread has taken out of an arena, another one misses that looks for memory meanwhile.
/// Before that one refuses, it asks here whether it has missed something.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    now: AtomicUsize,
    landed: AtomicU64,
}

/// Something is on its way as long as this lives.
#[derive(Debug)]
#[must_use]
pub(crate) struct Flight<'f>(&'f InFlight);

/// The driver takes no longer for a piece of memory. Who gives it back may itself be waiting, in an
/// upstream that calls the pool.
const PATIENCE: Duration = Duration::from_secs(1);

impl InFlight {
    /// Something leaves. To be called while nobody else can look where it was: whoever finds it gone
    /// is told so here.
    pub(crate) fn leave(&self) -> Flight<'_> {
        self.now.fetch_add(1, Ordering::AcqRel);
        Flight(self)
    }

    /// How often something has landed.
    pub(crate) fn landed(&self) -> u64 {
        self.landed.load(Ordering::Acquire)
    }

    /// Whether something has landed since that was so often, which is waited for if something is on
    /// its way.
    pub(crate) fn has_landed_since(&self, landed: u64) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            let is_any = self.now.load(Ordering::Acquire) > 0;
            if self.landed() != landed {
                return true;
            }
            if !is_any || Instant::now() > until {
                return false;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // In this order: it is never neither on its way nor there.
        self.0.landed.fetch_add(1, Ordering::AcqRel);
        self.0.now.fetch_sub(1, Ordering::AcqRel);
    }
}
