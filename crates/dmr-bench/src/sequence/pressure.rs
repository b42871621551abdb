//! W8: the sequences of W3 under a hard limit, and how that limit is found.

use super::Sequence;

/// The operations of a thread between two trims.
const TRIM_EVERY: usize = 10_000;

/// Memory that nearly suffices, and how often each thread trims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// The peak of the live bytes if all threads went in lock step.
    pub live_peak: u64,
    /// Bytes that the resource may take from the device.
    pub limit: u64,
    /// Each thread trims after every so many of its own operations.
    pub trim_every: usize,
}

impl Pressure {
    /// 1.15 times the live peak in lock step, in whole 2 MiB; a trim after every 10,000 operations,
    /// or two trims per thread where there are fewer than 20,000.
    #[must_use]
    pub fn of(sequences: &[Sequence]) -> Self {
        let live_peak = lock_step_peak(sequences);
        let ops = sequences.iter().map(|sequence| sequence.ops.len()).max().unwrap_or(0);
        let limit = (live_peak * 115 / 100) >> 21 << 21;
        Self { live_peak, limit, trim_every: TRIM_EVERY.min((ops / 2).max(1)) }
    }
}

/// The most bytes that are live at once if all threads make their n-th operation before any makes
/// the next one, seen after each such step. It depends on the sequences alone.
#[must_use]
pub fn lock_step_peak(sequences: &[Sequence]) -> u64 {
    let steps = sequences.iter().map(|sequence| sequence.ops.len()).max().unwrap_or(0);
    let (mut live, mut peak) = (0, 0);
    for step in 0..steps {
        for op in sequences.iter().filter_map(|sequence| sequence.ops.get(step)) {
            live = if op.allocates { live + op.bytes } else { live - op.bytes };
        }
        peak = peak.max(live);
    }
    peak
}
