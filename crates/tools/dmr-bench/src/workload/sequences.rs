//! W1 to W4: sequences on one resource, one thread for each; a cold pass, a warm one, and one that
//! measures each call. W8 has only the last of these passes, with trims.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use dmr_core::DeviceBlock;
use dmr_streams::{StreamLease, StreamPool};
use serde_json::Value;

use super::pass::{Live, Outcome, Place, Trims};
use super::{NONE, Plan, Sequences};
use crate::line::hundredths;
use crate::machine::clock_ns;
use crate::percentiles::Percentiles;
use crate::sequence::{Pressure, Sequence};
use crate::stacks::{self, Stack};
use crate::work::Memory;
use crate::{BenchError, Line, Machine};

/// A cold pass that took longer is its own warm-up.
const COLD_IS_ENOUGH: Duration = Duration::from_millis(1500);

/// One line's worth.
pub(super) struct Run<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
    pub(super) resource: &'a str,
    pub(super) workload: &'a str,
    pub(super) params: &'a Value,
    /// The limit and the trims of W8.
    pub(super) pressure: Option<Pressure>,
}

/// All threads of one pass.
#[derive(Default)]
struct Total {
    outcomes: Vec<Outcome>,
    /// From the first thread's start to the last one's end.
    wall: Duration,
    /// From the first thread's start to the end of the device's work.
    synchronized: Duration,
    truncated: bool,
}

/// The inputs of the passes.
struct Course<'a> {
    run: &'a Run<'a>,
    stack: Option<&'a Stack>,
    sequences: &'a [Sequence],
    /// By thread; the streams of its sequence.
    leases: &'a [Vec<StreamLease>],
    fixed: &'a Memory,
    trims: Option<Trims<'a>>,
    live: Live,
    /// The peak of the device's used memory, as the driver reports it.
    used_peak: u64,
    /// The peak of the bytes that the resource had reserved.
    reserved_peak: u64,
}

impl Run<'_> {
    /// Makes the resource, runs the passes and says what they came to.
    pub(super) fn line(&self, make: &Sequences<'_>) -> Result<Line, BenchError> {
        let device = self.machine.device();
        let streams = self.machine.streams()?;
        device.synchronize()?;
        let base = self.machine.used_bytes()?;
        let created = Instant::now();
        let (stack, trim) = match (self.resource, self.pressure) {
            (NONE, _) => (None, None),
            (name, None) => (Some(stacks::make(name, &streams)?), None),
            (name, Some(Pressure { limit, .. })) => {
                let none = || BenchError(format!("{name} cannot be limited"));
                let limited = stacks::limited(name, &streams, limit)?.ok_or_else(none)?;
                (Some(limited.stack), Some(limited.trim))
            }
        };
        let create = created.elapsed();
        let is_slow = stack.as_ref().is_some_and(|stack| stack.is_slow);
        let sequences = make(is_slow)?;
        let leases = lease(&streams, &sequences)?;
        if self.plan.lends_streams {
            leases.iter().flatten().for_each(|lease| drop(Arc::clone(lease.stream())));
        }
        let fixed = Memory::new(device, self.plan.touch.max(1))?;
        let mut course = Course {
            run: self,
            stack: stack.as_ref(),
            sequences: &sequences,
            leases: &leases,
            fixed: &fixed,
            trims: self
                .pressure
                .zip(trim.as_ref())
                .map(|(pressure, trim)| Trims { every: pressure.trim_every, trim }),
            live: Live::default(),
            used_peak: self.machine.used_bytes()?,
            reserved_peak: 0,
        };
        let plain = match is_slow || self.pressure.is_some() {
            true => None,
            false => {
                let cold = course.pass(false)?;
                let is_enough = cold.wall > COLD_IS_ENOUGH;
                let warm = if is_enough { None } else { Some(course.pass(false)?) };
                Some((cold, warm))
            }
        };
        let by_call = match self.plan.measures_calls || plain.is_none() {
            true => course.pass(true)?,
            false => Total::default(),
        };
        let mut line = self.describe(plain.as_ref(), &by_call, &course)?;
        line = line
            .with("create_ns", create.as_nanos() as u64)
            .with("meminfo_delta_peak_bytes", course.used_peak.saturating_sub(base));
        Ok(line)
    }

    fn describe(
        &self,
        plain: Option<&(Total, Option<Total>)>,
        by_call: &Total,
        course: &Course<'_>,
    ) -> Result<Line, BenchError> {
        let (timed, total_from) = match plain {
            None => (by_call, "latency_pass"),
            Some((cold, None)) => (cold, "cold_pass"),
            Some((_, Some(warm))) => (warm, "warm_pass"),
        };
        let calls_ns = by_call.calls_ns();
        let spans_ns = timed.spans_ns();
        let threads = course.sequences.len();
        // Of a resource that has only the one pass, without the sampling between the calls.
        let total_ns = match plain {
            None if threads == 1 => calls_ns,
            _ => timed.wall.as_nanos() as u64,
        };
        let is_under_pressure = self.pressure.is_some();
        let ops = if is_under_pressure { by_call.done() } else { timed.made() };
        let busy = if plain.is_none() && !is_under_pressure { calls_ns } else { spans_ns };
        let mut allocations = by_call.samples(|outcome| &outcome.allocations);
        let mut frees = by_call.samples(|outcome| &outcome.frees);
        let mut all = [&allocations[..], &frees[..]].concat();
        let hash = course.sequences.iter().fold(0, |hash, sequence| hash ^ sequence.hash.0);
        let peak_live = match course.sequences {
            [only] => Some(only.peak_live),
            // It was looked at in that pass.
            _ => (!by_call.outcomes.is_empty()).then(|| course.live.peak()),
        };
        let streams: usize = course.leases.iter().map(Vec::len).sum();
        let passes = plain.iter().flat_map(|(cold, warm)| std::iter::once(cold).chain(warm));
        let passes: Vec<_> = passes.chain([by_call]).collect();
        let mut line = Line::new(self.resource, self.workload, self.params.clone())
            .with("threads", threads)
            .with("streams", streams)
            .with("ops", ops)
            .with("total_ns", total_ns)
            .with("ns_per_op", hundredths(busy as f64 / ops.max(1) as f64))
            .with("agg_ops_per_s", (ops as f64 * 1e9 / total_ns.max(1) as f64).round())
            .with_percentiles("", &Percentiles::of(&mut all))
            .with_percentiles("alloc_", &Percentiles::of(&mut allocations))
            .with_percentiles("free_", &Percentiles::of(&mut frees))
            .with("clock_ns", clock_ns())
            .with("sync_total_ns", timed.synchronized.as_nanos() as u64);
        if let Some((cold, _)) = plain {
            line = line
                .with("cold_total_ns", cold.wall.as_nanos() as u64)
                .with("cold_ops", cold.made());
        }
        let (reserved, source) = course.reserved()?;
        if let Some(peak_live) = peak_live {
            line = line.with("peak_live_bytes", peak_live);
        }
        if let Some(pressure) = self.pressure {
            line = line
                .with("limit_bytes", pressure.limit)
                .with("lock_step_live_bytes", pressure.live_peak)
                .with("trims", by_call.sum(|outcome| outcome.trims))
                .with("trims_ns", by_call.sum(|outcome| outcome.trims_ns));
        }
        line = line
            .with("peak_reserved_bytes", reserved)
            .with("reserved_src", source)
            .with("failed_allocs", passes.iter().map(|pass| pass.sum(|it| it.failed)).sum::<u64>())
            .with("total_from", total_from)
            .with(
                "truncated",
                plain.map_or(by_call.truncated, |(cold, warm)| {
                    cold.truncated || warm.as_ref().is_some_and(|warm| warm.truncated)
                }),
            )
            .with("lat_truncated", by_call.truncated)
            .with("opseq_fnv", format!("{hash:016x}"))
            .with("simulated", self.machine.is_simulated());
        let errors = passes.iter().flat_map(|pass| &pass.outcomes);
        match errors.filter_map(|outcome| outcome.first_error.as_deref()).next() {
            Some(error) => Ok(line.with("first_alloc_error", error)),
            None => Ok(line),
        }
    }
}

impl Course<'_> {
    /// Every thread goes through its sequence, from the same moment on.
    fn pass(&mut self, by_call: bool) -> Result<Total, BenchError> {
        self.live = Live::default();
        let machine = self.run.machine;
        let resource = self.stack.map(|stack| &*stack.resource);
        let live = &self.live;
        let barrier = Barrier::new(self.sequences.len());
        let used_peak = &mut self.used_peak;
        let reserved_peak = &mut self.reserved_peak;
        let mut sample = || -> Result<(), BenchError> {
            *used_peak = machine.used_bytes()?.max(*used_peak);
            let reserved = resource.map_or(0, |resource| resource.usage().reserved);
            *reserved_peak = reserved.max(*reserved_peak);
            Ok(())
        };
        let mut slots: Vec<Vec<Option<DeviceBlock>>> = self.sequences.iter().map(empty).collect();
        let places: Vec<_> = self
            .leases
            .iter()
            .map(|leases| Place {
                resource,
                fixed: self.fixed.ptr(),
                device: machine.device(),
                streams: leases.iter().collect(),
                touch: self.run.plan.touch,
                budget: self.run.plan.budget,
                live: Some(live),
                trims: self.trims,
            })
            .collect();
        let go = |nth: usize,
                  slots: &mut [Option<DeviceBlock>],
                  sample: &mut dyn FnMut() -> Result<(), BenchError>| {
            let bound = machine.device().bind();
            barrier.wait();
            bound?;
            match by_call {
                true => places[nth].call_by_call(&self.sequences[nth], slots, sample),
                false => places[nth].plain(&self.sequences[nth], slots),
            }
        };
        let outcomes = std::thread::scope(|scope| {
            // The first sequence is this thread's, which is the one that samples.
            let (first, others) = slots.split_at_mut(1);
            let threads: Vec<_> = others
                .iter_mut()
                .enumerate()
                .map(|(nth, slots)| {
                    let go = &go;
                    scope.spawn(move || go(nth + 1, slots, &mut || Ok(())))
                })
                .collect();
            let mut outcomes = vec![go(0, &mut first[0], &mut sample)];
            outcomes.extend(threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(BenchError("a thread panicked".to_owned())))
            }));
            outcomes.into_iter().collect::<Result<Vec<_>, _>>()
        })?;
        machine.device().synchronize()?;
        let now = Instant::now();
        sample()?;
        for (place, slots) in places.iter().zip(&mut slots) {
            place.drain(slots)?;
        }
        if let Some(resource) = resource {
            resource.reap_pending()?;
        }
        Ok(Total::of(outcomes, now, self.sequences))
    }

    /// Returns the peak of the bytes that were reserved from the driver, and the source of that
    /// figure.
    fn reserved(&self) -> Result<(u64, &'static str), BenchError> {
        match self.stack {
            None => Ok((0, "none")),
            Some(Stack { reserved_peak: Some(peak), .. }) => Ok((peak()?, "ReservedMemHigh")),
            Some(_) => Ok((self.reserved_peak, "usage.reserved sampled")),
        }
    }
}

impl Total {
    fn of(outcomes: Vec<Outcome>, now: Instant, sequences: &[Sequence]) -> Self {
        let start = outcomes.iter().filter_map(|outcome| outcome.start).min().unwrap_or(now);
        let end = outcomes.iter().filter_map(|outcome| outcome.end).max().unwrap_or(now);
        let is_cut = |(outcome, sequence): (&Outcome, &Sequence)| outcome.made < sequence.ops.len();
        let truncated = outcomes.iter().zip(sequences).any(is_cut);
        Self { outcomes, wall: end - start, synchronized: now - start, truncated }
    }

    fn made(&self) -> usize {
        self.outcomes.iter().map(|outcome| outcome.made).sum()
    }

    /// Returns the number of successful allocations and frees, in a pass that measures each call.
    fn done(&self) -> usize {
        let of_one = |outcome: &Outcome| {
            outcome.allocations.len() + outcome.frees.len() - outcome.failed as usize
        };
        self.outcomes.iter().map(of_one).sum()
    }

    fn sum(&self, of: impl Fn(&Outcome) -> u64) -> u64 {
        self.outcomes.iter().map(of).sum()
    }

    fn calls_ns(&self) -> u64 {
        self.sum(|outcome| outcome.calls_ns)
    }

    fn spans_ns(&self) -> u64 {
        self.outcomes.iter().map(|outcome| outcome.elapsed().as_nanos() as u64).sum()
    }

    fn samples(&self, of: impl Fn(&Outcome) -> &Vec<u32>) -> Vec<u32> {
        self.outcomes.iter().flat_map(|outcome| of(outcome).iter().copied()).collect()
    }
}

fn lease(
    streams: &Arc<StreamPool>,
    sequences: &[Sequence],
) -> Result<Vec<Vec<StreamLease>>, BenchError> {
    let of_one = |sequence: &Sequence| (0..sequence.streams).map(|_| streams.acquire()).collect();
    Ok(sequences.iter().map(of_one).collect::<Result<_, _>>()?)
}

fn empty(sequence: &Sequence) -> Vec<Option<DeviceBlock>> {
    std::iter::repeat_with(|| None).take(sequence.slots).collect()
}
