//! The measurements of one run of the server.

use std::fmt;
use std::time::Duration;

/// The counts of a runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Allocations of device memory.
    pub allocations: u64,
    /// The most bytes of device memory that were in use at a time.
    pub peak_bytes: u64,
    /// Launches that were refused because of a window of another stream.
    pub conflicts: u64,
    /// Parked caches that were moved to the host.
    pub spilled: u64,
}

/// The figures of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the runtime.
    pub runtime: &'static str,
    /// Requests that were served.
    pub served: usize,
    /// Requests that were refused.
    pub refused: usize,
    /// Requests whose tokens differ from those of the model on the host.
    pub wrong: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    /// From the first admission to the last output.
    pub elapsed: Duration,
    /// Of each step, from recording its launch until the host knew that it was done; sorted.
    pub steps: Vec<Duration>,
    /// The counts of the runtime.
    pub totals: Totals,
}

impl Report {
    /// Returns the tokens generated in a second.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the latency of a step that `percent` of all steps do not exceed.
    #[must_use]
    pub fn step(&self, percent: usize) -> Duration {
        let last = self.steps.len().saturating_sub(1);
        self.steps.get(last * percent / 100).copied().unwrap_or_default()
    }

    /// Returns the head of a table of reports.
    #[must_use]
    pub fn head() -> String {
        let head = "| runtime | requests | refused | wrong | tokens/s | p50 step | p99 step | allocations | \
                    conflicts | spilled | peak bytes |";
        format!("{head}\n|{}", " --- |".repeat(11))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |step: Duration| format!("{:.1} us", step.as_nanos() as f64 / 1000.0);
        let Totals { allocations, peak_bytes, conflicts, spilled } = self.totals;
        write!(
            f,
            "| {} | {} | {} | {} | {:.0} | {} | {} | {allocations} | {conflicts} | {spilled} | {peak_bytes} |",
            self.runtime,
            self.served,
            self.refused,
            self.wrong,
            self.tokens_per_second(),
            micros(self.step(50)),
            micros(self.step(99)),
        )
    }
}
