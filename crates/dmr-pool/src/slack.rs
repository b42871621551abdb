//! How much a pool may keep before it saves memory at the cost of time.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What one meeting of two threads adds, and the most that all of them add, in 1024ths.
const STEP: u32 = 8;
const MOST: u32 = 448;

/// To take from one another, threads need each other's locks. A pool with many threads at work is
/// therefore allowed more memory: each time that two of them meet a little, up to nearly twice
/// what was live at its peak.
#[derive(Debug)]
pub(crate) struct Slack {
    divisor: u64,
    /// In 1024ths of the peak.
    contention: AtomicU32,
    /// The most bytes that were seen live.
    peak: AtomicU64,
}

impl Slack {
    /// Bytes that are always allowed: beyond what is live, or at all where pages move.
    pub(crate) const SMALL: u64 = 64 << 20;

    pub(crate) fn new(divisor: u32) -> Self {
        let (contention, peak) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { divisor: u64::from(divisor.max(1)), contention, peak }
    }

    /// Another thread had the lock of an arena in which this one looked for memory.
    pub(crate) fn contended(&self) {
        let contention = self.contention.load(Ordering::Relaxed);
        if contention < MOST {
            // Lost updates are made up for by later ones.
            self.contention.store(contention + STEP, Ordering::Relaxed);
        }
    }

    /// Whether that has happened.
    pub(crate) fn is_contended(&self) -> bool {
        self.contention.load(Ordering::Relaxed) > 0
    }

    /// What may be reserved when so many bytes are live and memory does not go back in between:
    /// one `divisor`-th more than the peak.
    pub(crate) fn allowance_of_peak(&self, live: u64, divisor: u64) -> u64 {
        let peak = self.peak(live);
        let more = peak / 1024 * u64::from(self.contention.load(Ordering::Relaxed));
        peak.saturating_add((peak / divisor).max(more)).max(Self::SMALL)
    }

    /// What may be reserved when everything else costs too much time.
    pub(crate) fn twice_the_peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).saturating_mul(2)
    }

    /// What may be reserved when so many bytes are live.
    pub(crate) fn allowance(&self, live: u64) -> u64 {
        let peak = self.peak(live);
        let saving = live.saturating_add(live / self.divisor);
        match u64::from(self.contention.load(Ordering::Relaxed)) {
            0 => saving,
            contention => saving.max(peak.saturating_add(peak / 1024 * contention)),
        }
        .saturating_add(Self::SMALL)
    }

    /// The most that was seen live, so many bytes included.
    fn peak(&self, live: u64) -> u64 {
        let peak = self.peak.load(Ordering::Relaxed);
        if live > peak {
            self.peak.store(live, Ordering::Relaxed);
        }
        peak.max(live)
    }
}
