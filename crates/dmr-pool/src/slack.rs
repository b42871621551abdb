//! How much more than what is live a pool may keep before it saves memory at the cost of time.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes that are always allowed.
const SMALL: u64 = 64 << 20;
/// What one meeting of two threads adds, and the most that all of them add, in 1024ths.
const STEP: u32 = 8;
const MOST: u32 = 640;

/// To take from one another, threads need each other's locks. A pool with many threads at work is
/// therefore allowed more memory: each time that two of them meet, a little.
#[derive(Debug)]
pub(crate) struct Slack {
    divisor: u64,
    /// In 1024ths of what is live.
    contention: AtomicU32,
}

impl Slack {
    pub(crate) fn new(divisor: u32) -> Self {
        Self { divisor: u64::from(divisor.max(1)), contention: AtomicU32::new(0) }
    }

    /// Another thread had the lock of an arena in which this one looked for memory.
    pub(crate) fn contended(&self) {
        let contention = self.contention.load(Ordering::Relaxed);
        if contention < MOST {
            // Lost updates are made up for by later ones.
            self.contention.store(contention + STEP, Ordering::Relaxed);
        }
    }

    /// What may be reserved when so many bytes are live.
    pub(crate) fn allowance(&self, live: u64) -> u64 {
        let contention = u64::from(self.contention.load(Ordering::Relaxed));
        let share = (live / self.divisor).max(live / 1024 * contention);
        live.saturating_add(share).saturating_add(SMALL)
    }
}
