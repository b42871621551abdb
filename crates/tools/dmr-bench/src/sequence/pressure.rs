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
    /// Operations of a thread between two of its trims.
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
/// the next one, taken after each of these steps. It depends on the sequences alone.
#[must_use]
pub fn lock_step_peak(sequences: &[Sequence]) -> u64 {
    let steps = sequences.iter().map(|sequence| sequence.ops.len()).max().unwrap_or(0);
    let mut live = 0;
    let mut peak = 0;
    for step in 0..steps {
        for op in sequences.iter().filter_map(|sequence| sequence.ops.get(step)) {
            live = if op.allocates { live + op.bytes } else { live - op.bytes };
        }
        peak = peak.max(live);
    }
    peak
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::{MULTISTREAM_SEED, multistream};

    fn sixteen(ops: usize) -> Vec<Sequence> {
        (0..16).map(|thread| multistream(MULTISTREAM_SEED, thread, ops)).collect()
    }

    #[test]
    fn the_limits_are_those_of_the_peers() {
        let check_values = [
            (100_000, 1_327_506_003, 1_524_629_504, 10_000),
            (20_000, 1_259_412_518, 1_447_034_880, 10_000),
            (5_000, 1_017_583_657, 1_170_210_816, 2_500),
        ];
        for (ops, live_peak, limit, trim_every) in check_values {
            let expected = Pressure { live_peak, limit, trim_every };
            assert_eq!(Pressure::of(&sixteen(ops)), expected, "{ops} operations");
        }
    }

    #[test]
    fn threads_in_lock_step_are_seen_after_each_step() {
        let ops = |ops: &[(bool, u64)]| {
            let mut sequence = Sequence::new(1);
            for &(allocates, bytes) in ops {
                match allocates {
                    true => drop(sequence.allocate(bytes, 0)),
                    false => sequence.free(0, bytes, 0, 0),
                }
            }
            sequence
        };
        // In the second step one thread allocates 4 and then the other one frees 10.
        let a = ops(&[(true, 10), (false, 10)]);
        let b = ops(&[(true, 1), (true, 4), (true, 5)]);
        assert_eq!(lock_step_peak(&[b, a]), 11);
        assert_eq!(lock_step_peak(&[]), 0);
    }
}
