//! The latencies of single calls.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::summary::Latency;

/// The latencies of one kind of call, in nanoseconds, to three digits.
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
    total_ns: u64,
}

const LONGEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

impl Latencies {
    pub(crate) fn new() -> Self {
        let histogram = Histogram::new_with_max(LONGEST_NS, DIGITS)
            .unwrap_or_else(|_| unreachable!("the bounds are constants that fit"));
        Self { histogram, total_ns: 0 }
    }

    pub(crate) fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns);
        self.total_ns = self.total_ns.saturating_add(ns);
    }

    pub(crate) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Returns the latencies of both.
    pub(crate) fn merged(&self, other: &Self) -> Self {
        let mut both = Self::new();
        for part in [self, other] {
            // Cannot fail: all have the same bounds.
            let _ = both.histogram.add(&part.histogram);
            both.total_ns = both.total_ns.saturating_add(part.total_ns);
        }
        both
    }

    pub(crate) fn summary(&self) -> Latency {
        let h = &self.histogram;
        let n = h.len();
        let mean = if n == 0 { 0.0 } else { self.total_ns as f64 / n as f64 };
        Latency {
            n,
            mean: (mean * 10.0).round() / 10.0,
            p50: h.value_at_quantile(0.5),
            p90: h.value_at_quantile(0.9),
            p99: h.value_at_quantile(0.99),
            p999: h.value_at_quantile(0.999),
            max: h.max(),
        }
    }
}

/// The median of what timing nothing takes, in nanoseconds: each latency includes it.
pub(crate) fn clock_ns() -> u64 {
    const PAIRS: usize = 10_001;
    let mut pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let start = Instant::now();
            start.elapsed()
        })
        .collect();
    let (_, median, _) = pairs.select_nth_unstable(PAIRS / 2);
    u64::try_from(median.as_nanos()).unwrap_or(u64::MAX)
}
