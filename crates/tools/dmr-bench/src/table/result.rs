//! One line of results as the table sees it: in which row and which column it stands.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use crate::line::BENCH;
use crate::workload::{NONE, RAW};

/// The fields that the tables show. The peers leave some out.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Outcome {
    pub(super) bench: String,
    pub(super) resource: String,
    pub(super) workload: String,
    #[serde(default)]
    params: Value,
    #[serde(default)]
    label: Option<String>,
    /// The number of the round, if there were several.
    #[serde(default)]
    pub(super) round: Option<u64>,
    #[serde(default)]
    pub(super) ns_per_op: Option<f64>,
    #[serde(default)]
    pub(super) ratio_to_none: Option<f64>,
    #[serde(default)]
    pub(super) ns_over_base: Option<f64>,
    #[serde(default)]
    pub(super) log_rows: Option<u64>,
    #[serde(default)]
    pub(super) log_dropped: Option<u64>,
    #[serde(default)]
    pub(super) p99: Option<u64>,
    #[serde(default)]
    pub(super) alloc_p50: Option<u64>,
    #[serde(default)]
    pub(super) alloc_p99: Option<u64>,
    #[serde(default)]
    pub(super) alloc_p999: Option<u64>,
    #[serde(default)]
    pub(super) alloc_max: Option<u64>,
    #[serde(default)]
    pub(super) refused_p50: Option<u64>,
    #[serde(default)]
    pub(super) refused_p99: Option<u64>,
    #[serde(default)]
    pub(super) refused_p999: Option<u64>,
    #[serde(default)]
    pub(super) refused_max: Option<u64>,
    #[serde(default)]
    pub(super) agg_ops_per_s: Option<f64>,
    #[serde(default)]
    pub(super) failed_allocs: Option<u64>,
    #[serde(default)]
    pub(super) limit_bytes: Option<u64>,
    #[serde(default)]
    pub(super) peak_live_bytes: Option<u64>,
    #[serde(default)]
    pub(super) peak_reserved_bytes: Option<u64>,
    #[serde(default)]
    pub(super) truncated: bool,
    #[serde(default)]
    pub(super) error: Option<String>,
    #[serde(default)]
    gpu: Option<String>,
    #[serde(default)]
    simulated: bool,
}

impl Outcome {
    /// Returns the text about the machine.
    pub(super) fn environment(&self) -> Option<String> {
        let gpu = self.gpu.as_ref()?;
        let caveat = if self.simulated { " (simulated: times are host cost only)" } else { "" };
        Some(format!("{}: {gpu}{caveat}", self.bench))
    }
}

/// A row: sorted as the workloads are numbered, sizes by size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    workload: &'static str,
    numbers: Vec<u64>,
    name: String,
}

impl Key {
    /// `None` for a line that is no result of a workload.
    pub(super) fn of(outcome: &Outcome) -> Option<Self> {
        let number = |name: &str| outcome.params.get(name).and_then(Value::as_u64);
        let row =
            |workload, numbers: Vec<u64>, name: String| Some(Self { workload, numbers, name });
        match outcome.workload.as_str() {
            "pingpong" => number("size").and_then(|n| row("W1", vec![n], n.to_string())),
            "random" => {
                let n = number("num_allocations")?;
                let max = number("max_size_mib")?;
                row("W2", vec![n, max], format!("n={n} m={max}"))
            }
            "multistream" => {
                let threads = number("threads")?;
                let touch = number("touch").unwrap_or(0);
                let work = if touch > 0 { "+touch" } else { "" };
                row("W3", vec![touch, threads], format!("t={threads}{work}"))
            }
            "replay" => {
                let file = outcome.params.get("file")?.as_str()?;
                row(
                    "W4",
                    Vec::new(),
                    file.trim_end_matches(".gz").trim_end_matches(".csv").to_owned(),
                )
            }
            "crossstream" => number("size").and_then(|n| row("W5", vec![n], n.to_string())),
            "crossstream_freeb" => number("size").and_then(|n| row("W5b", vec![n], n.to_string())),
            "overlap" => row("W6", Vec::new(), "B is done".to_owned()),
            "pressure" => number("threads").and_then(|n| row("W8", vec![n], format!("t={n}"))),
            "pressure_work" => {
                let threads = number("threads")?;
                let percent = number("percent")?;
                row("W9", vec![threads, percent], format!("t={threads} {percent} %"))
            }
            "stack" => {
                let of = outcome.params.get("of")?.as_str()?;
                let size = number("size");
                let threads = number("threads");
                let words = [size.map(|n| n.to_string()), threads.map(|n| format!("t={n}"))];
                let name = words.into_iter().flatten().fold(of.to_owned(), |a, b| a + " " + &b);
                let nth = of.bytes().last().unwrap_or_default();
                row("W7", vec![nth.into(), size.unwrap_or(0), threads.unwrap_or(0)], name)
            }
            _ => None,
        }
    }

    pub(super) fn is_cross_stream(&self) -> bool {
        self.workload.starts_with("W5")
    }

    /// Returns whether the row measures the cost of layers.
    pub(super) fn is_of_layers(&self) -> bool {
        self.workload == "W7"
    }

    /// Returns whether the memory was limited, without device work.
    pub(super) fn is_pressure(&self) -> bool {
        self.workload == "W8"
    }

    /// Returns whether the memory was limited, with device work.
    pub(super) fn is_pressure_with_work(&self) -> bool {
        self.workload == "W9"
    }

    /// Returns whether the reserved bytes of the row are a property of the allocator.
    pub(super) fn is_about_memory(&self) -> bool {
        matches!(self.workload, "W2" | "W3" | "W4" | "W8" | "W9")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.workload, self.name)
    }
}

/// The name over the column; `None` for what is measured by other means than a workload.
pub(super) fn column(outcome: &Outcome) -> Option<String> {
    let is_expandable = outcome.label.as_deref() == Some("expandable");
    match outcome.bench.as_str() {
        BENCH => Some(format!("{BENCH}-{}", outcome.resource)),
        "torch_raw" if is_expandable => Some("torch+expandable".to_owned()),
        "torch_raw" => Some("torch".to_owned()),
        "rmm" | "torch_py" => Some(outcome.resource.clone()),
        _ => None,
    }
}

/// Returns whether a column, or a program, is one of dmr.
pub(super) fn is_ours(name: &str) -> bool {
    name.strip_prefix(BENCH).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Returns whether a column is no resource: the same work without one, or the driver's own calls.
pub(super) fn is_reference(name: &str) -> bool {
    let resource = name.strip_prefix(BENCH).and_then(|rest| rest.strip_prefix('-'));
    matches!(resource.unwrap_or(name), NONE | RAW)
}
