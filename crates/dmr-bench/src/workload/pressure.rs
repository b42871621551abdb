//! W8: the sequences of W3 under a limit that nearly suffices, with trims.
//!
//! Sixteen threads make the operations of W3, each on a stream of its own, on a resource that may
//! take 1.15 times the live peak from the device ([`Pressure`]). The operations do not depend on
//! what is refused: an allocation that is refused is counted and not repeated, and the free of its
//! block is left out. After each 10,000 of its own operations, made or left out, a thread trims the
//! resource to 0 bytes.
//!
//! There is one pass, from an empty resource on, with the clock read around each call; the trims
//! are part of its time. An operation counts if it has allocated or freed: the time of a refused
//! call counts, the call does not.

use serde_json::json;

use super::{Plan, sequences, told};
use crate::sequence::{self, MULTISTREAM_SEED, Pressure, Sequence};
use crate::{BenchError, Line, Machine, stacks};

const WORKLOAD: &str = "pressure";
const THREADS: u64 = 16;

/// Operations of one thread.
const OPS: usize = 100_000;

/// Runs it on every resource of the plan that can have a limit. Returns how many failed.
pub(super) fn run(machine: &Machine, plan: &Plan, emit: &mut dyn FnMut(Line)) -> usize {
    let ops = plan.scaled(OPS);
    let of_thread = |thread| sequence::multistream(MULTISTREAM_SEED, thread, ops);
    let sequences: Vec<Sequence> = (0..THREADS).map(of_thread).collect();
    let pressure = Pressure::of(&sequences);
    let params = json!({
        "threads": THREADS,
        "ops_per_thread": ops,
        "limit_bytes": pressure.limit,
        "trim_every": pressure.trim_every,
    });
    let make = |_| Ok::<_, BenchError>(sequences.clone());
    let mut failed = 0;
    for resource in plan.resources.iter().filter(|name| stacks::can_be_limited(name)) {
        let (params, pressure) = (&params, Some(pressure));
        let run = sequences::Run { machine, plan, resource, workload: WORKLOAD, params, pressure };
        failed += usize::from(!told(resource, WORKLOAD, params, run.line(&make), emit));
    }
    failed
}
