//! W1 with the driver's own calls: the floor of every resource that makes them.

use std::time::Instant;

use serde_json::Value;

use super::pass::nanoseconds;
use super::{PAIRS, Plan, RAW};
use crate::line::hundredths;
use crate::machine::clock_ns;
use crate::percentiles::{Percentiles, median};
use crate::work::DriverPool;
use crate::{BenchError, Line, Machine};

/// `cuMemAllocFromPoolAsync` and `cuMemFreeAsync`, on one stream.
///
/// # Errors
///
/// The driver's.
pub(super) fn line(machine: &Machine, plan: &Plan, params: &Value) -> Result<Line, BenchError> {
    let bytes = params["size"].as_u64().unwrap_or(1) as usize;
    let streams = machine.streams()?;
    let lease = streams.acquire()?;
    let stream = lease.stream();
    let pool = DriverPool::new(machine.device())?;
    let pair = || -> Result<(), BenchError> {
        let ptr = pool.allocate(bytes, stream)?;
        // SAFETY: allocated by this pool just now, and never used.
        Ok(unsafe { pool.free(ptr, stream) }?)
    };
    let mut rounds = Vec::new();
    let per_round = plan.scaled(PAIRS) / plan.rounds;
    // The first round warms up and is not counted.
    for round in 0..=plan.rounds {
        let start = Instant::now();
        for _ in 0..per_round {
            pair()?;
        }
        if round > 0 {
            rounds.push(start.elapsed().as_nanos() as f64);
        }
        streams.synchronize(lease.id())?;
    }
    let mut allocations = Vec::new();
    let mut frees = Vec::new();
    for _ in 0..per_round {
        let start = Instant::now();
        let ptr = pool.allocate(bytes, stream)?;
        allocations.push(nanoseconds(start.elapsed()));
        let start = Instant::now();
        // SAFETY: as above.
        unsafe { pool.free(ptr, stream) }?;
        frees.push(nanoseconds(start.elapsed()));
    }
    let mut all = [&allocations[..], &frees[..]].concat();
    let ops = 2 * per_round;
    Ok(Line::new(RAW, "pingpong", params.clone())
        .with("threads", 1)
        .with("streams", 1)
        .with("ops", ops * rounds.len())
        .with("total_ns", rounds.iter().sum::<f64>() as u64)
        .with("ns_per_op", hundredths(median(&rounds) / ops as f64))
        .with("total_from", "median_of_rounds")
        .with_percentiles("", &Percentiles::of(&mut all))
        .with_percentiles("alloc_", &Percentiles::of(&mut allocations))
        .with_percentiles("free_", &Percentiles::of(&mut frees))
        .with("clock_ns", clock_ns())
        .with("peak_live_bytes", bytes)
        .with("simulated", machine.is_simulated()))
}
