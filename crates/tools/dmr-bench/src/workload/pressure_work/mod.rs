//! W9: threads that fill, read, pass on and free blocks under a hard limit.
//!
//! Sixteen threads, each with a stream of its own, make the steps of
//! [`Steps`](crate::sequence::Steps) on a resource that may take a fixed number of bytes from the
//! device; together they hold a share of it. A block is filled on the stream that it is allocated
//! on and read on the others; both are recorded, and the resource orders what comes after. A
//! refused allocation is counted and frees a block. Nothing is trimmed.
//!
//! There is one pass, from an empty resource on, with the clock read around each allocation. At its
//! end all blocks are freed, and the resource must have none left.

mod worker;

use std::time::{Duration, Instant};

use dmr_core::DeviceMemoryResource;
use dmr_streams::Device;
use serde_json::{Value, json};

use super::{Plan, told};
use crate::line::hundredths;
use crate::machine::clock_ns;
use crate::percentiles::Percentiles;
use crate::sequence::share;
use crate::stacks::{self, Stack};
use crate::{BenchError, Line, Machine};
use worker::{Outcome, Place, Work};

const WORKLOAD: &str = "pressure_work";

/// Steps of one thread.
const STEPS: usize = 100_000;

/// Runs it on every resource of the plan that can have a limit. Returns how many failed.
pub(super) fn run(machine: &Machine, plan: &Plan, emit: &mut dyn FnMut(Line)) -> usize {
    let steps = plan.scaled(STEPS);
    let mut failed = 0;
    for &threads in &plan.pressure_threads {
        for &percent in &plan.percents {
            let params = json!({
                "threads": threads,
                "ops_per_thread": steps,
                "limit_bytes": plan.limit,
                "percent": percent,
            });
            for resource in plan.resources.iter().filter(|name| stacks::can_be_limited(name)) {
                let params = &params;
                let run = Run { machine, plan, resource, params, threads, percent, steps };
                failed += usize::from(!told(resource, WORKLOAD, params, run.line(), emit));
            }
        }
    }
    failed
}

/// One line's worth.
struct Run<'a> {
    machine: &'a Machine,
    plan: &'a Plan,
    resource: &'a str,
    params: &'a Value,
    threads: usize,
    percent: u64,
    steps: usize,
}

/// The result of the pass.
struct Pass {
    outcomes: Vec<Outcome>,
    /// When the device had done all work.
    synchronized: Instant,
    live_peak: u64,
    /// The increase of the device's used memory, as the driver reports it.
    used: u64,
    /// The bytes that the resource had reserved when all blocks were freed and it was trimmed.
    left: u64,
}

impl Run<'_> {
    /// Makes the resource, runs the pass and says what it came to.
    fn line(&self) -> Result<Line, BenchError> {
        let Self { machine, plan, .. } = *self;
        if self.threads == 0 {
            return Err(BenchError("w9 needs at least one thread".to_owned()));
        }
        let device = machine.device();
        let streams = machine.streams()?;
        device.synchronize()?;
        let base = machine.used_bytes()?;
        let none = || BenchError(format!("{} cannot be limited", self.resource));
        let stack = stacks::limited(self.resource, &streams, plan.limit)?.ok_or_else(none)?.stack;
        let leases = (0..self.threads).map(|_| streams.acquire()).collect::<Result<Vec<_>, _>>()?;
        let work = Work {
            steps: self.steps,
            most: share(plan.limit, self.percent, self.threads as u64),
            budget: plan.budget,
        };
        let place = Place::new(&*stack.resource, device, &leases, work)?;
        let mut used_peak = base;
        let mut sample = || -> Result<(), BenchError> {
            used_peak = machine.used_bytes()?.max(used_peak);
            Ok(())
        };
        let mut outcomes = place.pass(&mut sample)?;
        device.synchronize()?;
        let synchronized = Instant::now();
        sample()?;
        place.free_all(&mut outcomes)?;
        let left = settle(&*stack.resource, device)?;
        let used = used_peak - base;
        let live_peak = place.live_peak();
        self.describe(&Pass { outcomes, synchronized, live_peak, used, left }, &stack)
    }

    fn describe(&self, pass: &Pass, stack: &Stack) -> Result<Line, BenchError> {
        let sum = |of: fn(&Outcome) -> u64| pass.outcomes.iter().map(of).sum::<u64>();
        let samples = |of: fn(&Outcome) -> &Vec<u32>| -> Vec<u32> {
            pass.outcomes.iter().flat_map(of).copied().collect()
        };
        let now = pass.synchronized;
        let start = pass.outcomes.iter().filter_map(|it| it.start).min().unwrap_or(now);
        let end = pass.outcomes.iter().filter_map(|it| it.end).max().unwrap_or(now);
        let elapsed = |until: Instant| (until - start).as_nanos() as u64;
        let busy = sum(|it| it.elapsed().as_nanos() as u64);
        let mut allocations = samples(|it| &it.allocations);
        let mut refusals = samples(|it| &it.refusals);
        let allocated = allocations.len() as u64;
        let refused = refusals.len() as u64;
        let freed = sum(|it| it.frees);
        let read = sum(|it| it.reads);
        let passed = sum(|it| it.passes);
        let ops = allocated + freed + read + passed;
        let (reserved, source) = match &stack.reserved_peak {
            Some(peak) => (peak()?, "ReservedMemHigh"),
            None => (pass.used, "cuMemGetInfo"),
        };
        let line = Line::new(self.resource, WORKLOAD, self.params.clone())
            .with("threads", self.threads)
            .with("streams", self.threads)
            .with("ops", ops)
            .with("total_ns", elapsed(end))
            .with("ns_per_op", hundredths(busy as f64 / ops.max(1) as f64))
            .with("agg_ops_per_s", (ops as f64 * 1e9 / elapsed(end).max(1) as f64).round())
            .with_percentiles("alloc_", &Percentiles::of(&mut allocations))
            .with_percentiles("refused_", &Percentiles::of(&mut refusals))
            .with("clock_ns", clock_ns())
            .with("sync_total_ns", elapsed(now))
            .with("allocs", allocated)
            .with("frees", freed)
            .with("reads", read)
            .with("passes", passed)
            .with("failed_allocs", refused)
            .with("peak_live_bytes", pass.live_peak)
            .with("limit_bytes", self.plan.limit)
            .with("peak_reserved_bytes", reserved)
            .with("reserved_src", source)
            .with("end_reserved_bytes", pass.left)
            .with("meminfo_delta_peak_bytes", pass.used)
            .with("total_from", "latency_pass")
            .with("truncated", pass.outcomes.iter().any(|it| it.made < self.steps))
            .with("simulated", self.machine.is_simulated());
        let mut errors = pass.outcomes.iter().filter_map(|it| it.first_refusal.as_deref());
        Ok(match errors.next() {
            Some(error) => line.with("first_alloc_error", error),
            None => line,
        })
    }
}

impl Outcome {
    fn elapsed(&self) -> Duration {
        self.end.zip(self.start).map_or(Duration::ZERO, |(end, start)| end - start)
    }
}

/// Waits for all frees, returns free memory to the device, and checks that no block is left.
/// Returns the bytes that the resource still has reserved.
fn settle(resource: &dyn DeviceMemoryResource, device: &Device) -> Result<u64, BenchError> {
    resource.reap_pending()?;
    resource.trim_to(0)?;
    // NVIDIA's driver returns memory of its pools only after the work behind a free was waited for.
    device.synchronize()?;
    resource.trim_to(0)?;
    let usage = resource.usage();
    match usage.outstanding() == 0 && usage.total_allocated == usage.total_freed {
        true => Ok(usage.reserved),
        false => Err(BenchError(format!("lost: {usage:?}"))),
    }
}

#[cfg(test)]
mod tests;
