//! The targets on one H200, for the rows that have one.

use std::fmt;

/// W5 in one run, as a ratio to the same loop without allocation.
pub(super) const CROSS_STREAM: Target = Target::Ratio(1.03);

/// Under pressure, the pool over pages and over blocks.
pub(super) const PAGES_AND_BLOCKS: [(&str, &str); 3] = [
    ("dmr-pool-pages", "dmr-pool"),
    ("dmr-pool-pages", "dmr-pool-budget"),
    ("dmr-pool-compact-pages", "dmr-pool-compact"),
];

/// The largest ratio of their times, pages over blocks, that meets the target.
pub(super) const PAGES_OVER_BLOCKS: &str = "1.00";

/// That target in words.
pub(super) const PRESSURE: &str = "pages at least blocks";

/// A target.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// Nanoseconds per operation.
    Nanoseconds(f64),
    /// The bound of a stack for speed, and the bound of one for little memory.
    FastOrCompact(f64, f64),
    /// At most this times `none`.
    Ratio(f64),
}

impl Target {
    /// In nanoseconds, if that is its unit; of two, the faster.
    pub(super) fn nanoseconds(self) -> Option<f64> {
        match self {
            Self::Nanoseconds(ns) | Self::FastOrCompact(ns, _) => Some(ns),
            Self::Ratio(_) => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nanoseconds(ns) => write!(f, "{ns}"),
            Self::FastOrCompact(fast, compact) => write!(f, "{fast} or {compact}"),
            Self::Ratio(ratio) => write!(f, "{ratio}x none"),
        }
    }
}

/// The time of a row.
pub(super) fn time(row: &str) -> Option<Target> {
    let nanoseconds = |ns| Some(Target::Nanoseconds(ns));
    match row {
        "W1 256" | "W1 67108864" => nanoseconds(20.0),
        "W2 n=1000 m=1" | "W3 t=1" => nanoseconds(40.0),
        "W3 t=4" => nanoseconds(50.0),
        "W2 n=100000 m=1" | "W2 n=100000 m=4096" | "W3 t=16" => nanoseconds(60.0),
        "W4 gpt_train" | "W4 dataframe" => Some(Target::FastOrCompact(50.0, 500.0)),
        row if row.starts_with("W5 ") => Some(CROSS_STREAM),
        _ => None,
    }
}

/// Returns what a layer may add to an operation of one thread, in nanoseconds, by the name over the
/// column.
pub(super) fn layer(column: &str) -> Option<u32> {
    let (_, layer) = column.split_once('+')?;
    match layer {
        "budget" | "statistics" => Some(15),
        "logging" => Some(70),
        _ => None,
    }
}

/// The peak that was reserved, in MiB, and its ratio to the peak that was live.
pub(super) fn memory(row: &str) -> Option<&'static str> {
    match row {
        "W4 gpt_train" => Some("compact 7540 (1.03), fast 8200 (1.12)"),
        "W4 dataframe" => Some("compact 4265 (1.05), fast 4470 (1.10)"),
        "W3 t=16" => Some("(2.00)"),
        _ => None,
    }
}

/// Returns the next target of a pool of dmr, as a ratio to the best peer of the same round.
pub(super) fn against_best_peer(row: &str, column: &str) -> Option<&'static str> {
    let stack = column.strip_prefix("dmr-").filter(|stack| stack.starts_with("pool"))?;
    match row {
        "W1 256" if stack == "pool-unchecked" => Some("0.20"),
        "W1 256" => Some("0.33"),
        row if row.starts_with("W2 ") => Some("0.33"),
        "W3 t=16" => Some("150 ns"),
        "W4 dataframe" => Some("0.50"),
        row if row.starts_with("W5 ") => Some("1.06x none"),
        _ => None,
    }
}
