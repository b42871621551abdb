//! Percentiles of durations, computed as in the peers' programs.

/// Nanoseconds. The p-th percentile is the smallest sample that `p` of all samples do not exceed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// The number of samples.
    pub n: usize,
    /// Half of them are at most this.
    pub p50: u32,
    /// 90 of 100.
    pub p90: u32,
    /// 99 of 100.
    pub p99: u32,
    /// 999 of 1000.
    pub p999: u32,
    /// The longest.
    pub max: u32,
    /// Their mean.
    pub mean: f64,
}

impl Percentiles {
    /// Of these, which get sorted.
    #[must_use]
    pub fn of(samples: &mut [u32]) -> Self {
        samples.sort_unstable();
        let n = samples.len();
        let Some(&max) = samples.last() else { return Self::default() };
        let at = |thousandths: usize| samples[(thousandths * n).div_ceil(1000).max(1) - 1];
        let sum: u64 = samples.iter().map(|&sample| u64::from(sample)).sum();
        let mean = sum as f64 / n as f64;
        Self { n, p50: at(500), p90: at(900), p99: at(990), p999: at(999), max, mean }
    }
}

/// The middle one; of an even number the mean of the two in the middle. Zero of none.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples: Vec<u32> = (1..=1000).rev().collect();
        let p = Percentiles::of(&mut samples);
        assert_eq!((p.p50, p.p90, p.p99, p.p999, p.max), (500, 900, 990, 999, 1000));
        assert_eq!((p.n, p.mean), (1000, 500.5));
    }

    #[test]
    fn one_sample_is_every_percentile_and_none_is_nothing() {
        let p = Percentiles::of(&mut [7]);
        assert_eq!((p.p50, p.p999, p.max), (7, 7, 7));
        assert_eq!(Percentiles::of(&mut []), Percentiles::default());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
