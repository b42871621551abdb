//! The workloads: each makes lines and hands them on as they come.

mod bursts;
mod cross_stream;
mod layers;
mod overlap;
mod pass;
mod pressure;
mod pressure_work;
mod raw_pair;
mod sequences;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::sequence::{self, MULTISTREAM_SEED, Sequence};
use crate::{BenchError, Line, Machine};

/// No resource at all: the same loop on a fixed buffer.
pub const NONE: &str = "none";

/// No resource either, but the driver's own calls.
pub const RAW: &str = "raw";

/// The names of all workloads.
pub const NAMES: [&str; 9] = ["w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9"];

/// Makes the sequences of a resource, one for each thread: shorter ones if it is slow.
type Sequences<'a> = dyn Fn(bool) -> Result<Vec<Sequence>, BenchError> + 'a;

/// The blocks of W1, in bytes.
const PAIR_SIZES: [u64; 4] = [256, 4096, 1 << 20, 64 << 20];

/// The blocks of W5, in bytes.
const CROSS_STREAM_SIZES: [usize; 2] = [1024, 1 << 20];

/// The number of pairs of an allocation and a free in W1.
const PAIRS: usize = 200_000;

/// The extent of the measurements.
#[derive(Clone, Debug)]
pub struct Plan {
    /// By name, see [`crate::stacks`].
    pub resources: Vec<String>,
    /// For W7: stacks with layers, by name.
    pub layered: Vec<String>,
    /// For W4.
    pub traces: Vec<PathBuf>,
    /// For W3 and W7.
    pub threads: Vec<usize>,
    /// Bytes of each new block that W3 fills; 0: no work.
    pub touch: usize,
    /// The numbers of blocks that W2 allocates.
    pub blocks: Vec<u64>,
    /// The maximum sizes of those blocks, in MiB.
    pub max_mib: Vec<u64>,
    /// A pass that takes longer is cut short, and says so.
    pub budget: Duration,
    /// The share of the operations that is made, of W1, W3, W5 and W7 to W9.
    pub scale: f64,
    /// Leaves out the largest block counts of W2.
    pub quick: bool,
    /// If true, the streams of W1, W3, W4, W7 and W8 are lent: calls look for captures on them.
    pub lends_streams: bool,
    /// If true, W1 to W4 have a pass that measures each call.
    pub measures_calls: bool,
    /// The number of rounds of W5 and W6 over all resources.
    pub rounds: usize,
    /// The thread counts of W9.
    pub pressure_threads: Vec<usize>,
    /// For W9: the shares of the limit that the threads hold, in percent.
    pub percents: Vec<u64>,
    /// The limit of W9, in bytes.
    pub limit: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            resources: crate::stacks::names().map(str::to_owned).collect(),
            layered: crate::stacks::layered().collect(),
            traces: Vec::new(),
            threads: vec![1, 2, 4, 8, 16],
            touch: 0,
            blocks: vec![1_000, 10_000, 100_000],
            max_mib: vec![1, 4, 64, 256, 1024, 4096],
            budget: Duration::from_secs(3),
            scale: 1.0,
            quick: false,
            lends_streams: false,
            measures_calls: true,
            rounds: 9,
            pressure_threads: vec![16],
            percents: vec![60, 80, 90, 95],
            limit: 2 << 30,
        }
    }
}

impl Plan {
    /// This share of `count`, and at least 50.
    fn scaled(&self, count: usize) -> usize {
        ((count as f64 * self.scale) as usize).max(50)
    }
}

/// Runs a workload and emits its lines. A failure emits a line with the reason; the rest is
/// run all the same. Returns the number of failures.
///
/// # Errors
///
/// No workload of that name.
pub fn run(
    machine: &Machine,
    plan: &Plan,
    workload: &str,
    emit: &mut dyn FnMut(Line),
) -> Result<usize, BenchError> {
    let mut failed = 0;
    let mut each = |name: &str, params: Value, make: &Sequences<'_>| {
        let reference = match name {
            "pingpong" => Some(RAW),
            "multistream" if plan.touch > 0 => Some(NONE),
            _ => None,
        };
        for resource in reference.into_iter().chain(plan.resources.iter().map(String::as_str)) {
            let pressure = None;
            let params = &params;
            let run = sequences::Run { machine, plan, resource, workload: name, params, pressure };
            let outcome = match resource {
                RAW => raw_pair::line(machine, plan, params),
                _ => run.line(make),
            };
            failed += usize::from(!told(resource, name, params, outcome, emit));
        }
    };
    match workload {
        "w1" => {
            for bytes in PAIR_SIZES {
                each("pingpong", json!({ "size": bytes }), &|slow| {
                    let pairs = plan.scaled(if slow { 4_000 } else { PAIRS });
                    Ok(vec![sequence::pingpong(bytes, pairs)])
                });
            }
        }
        "w2" => {
            for &blocks in plan.blocks.iter().filter(|&&blocks| !plan.quick || blocks <= 10_000) {
                for &max_mib in &plan.max_mib {
                    let params = json!({ "num_allocations": blocks, "max_size_mib": max_mib });
                    each("random", params, &|_| Ok(vec![sequence::random(blocks, max_mib)]));
                }
            }
        }
        "w3" => {
            for &threads in &plan.threads {
                let params = json!({ "threads": threads, "touch": plan.touch });
                each("multistream", params, &|slow| {
                    let ops = plan.scaled(if slow { 1_000 } else { 100_000 });
                    let seed = MULTISTREAM_SEED;
                    Ok((0..threads as u64).map(|t| sequence::multistream(seed, t, ops)).collect())
                });
            }
        }
        "w4" => {
            for path in &plan.traces {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let params = json!({ "file": file });
                let trace = sequence::from_trace(path).map_err(BenchError::new);
                each("replay", params, &|_| Ok(vec![trace.clone()?]));
            }
        }
        "w5" => {
            for bytes in CROSS_STREAM_SIZES {
                let params = json!({ "size": bytes });
                let run = cross_stream::Run { machine, plan, resources: &plan.resources, bytes };
                failed += told_all(run.lines("crossstream", &params), "crossstream", emit);
            }
        }
        "w6" => failed += told_all(overlap::lines(machine, plan), "overlap", emit),
        "w7" => failed += layers::run(machine, plan, emit),
        "w8" => failed += pressure::run(machine, plan, emit),
        "w9" => failed += pressure_work::run(machine, plan, emit),
        unknown => {
            let known = NAMES.join(", ");
            return Err(BenchError(format!("no workload {unknown}: there are {known}")));
        }
    }
    Ok(failed)
}

fn told(
    resource: &str,
    workload: &str,
    params: &Value,
    outcome: Result<Line, BenchError>,
    emit: &mut dyn FnMut(Line),
) -> bool {
    let is_good = outcome.is_ok();
    emit(outcome.unwrap_or_else(|error| {
        Line::new(resource, workload, params.clone()).with("error", error.to_string())
    }));
    is_good
}

fn told_all(
    outcome: Result<Vec<Line>, BenchError>,
    workload: &str,
    emit: &mut dyn FnMut(Line),
) -> usize {
    match outcome {
        Ok(lines) => {
            let failed = lines.iter().filter(|line| line.get("error").is_some()).count();
            lines.into_iter().for_each(emit);
            failed
        }
        Err(error) => {
            emit(Line::new("-", workload, json!({})).with("error", error.to_string()));
            1
        }
    }
}
