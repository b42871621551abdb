//! W5: a block filled on one stream, copied on another and freed on the first, beside the same
//! loop by hand on memory that stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, UseTrackingExt};
use dmr_streams::{Device, StreamLease};
use serde_json::Value;

use super::pass::nanoseconds;
use super::{NONE, Plan};
use crate::line::hundredths;
use crate::machine::clock_ns;
use crate::percentiles::{Percentiles, median};
use crate::stacks::{self, Stack};
use crate::work::{self, Event, Memory};
use crate::{BenchError, Line, Machine};

const TAG: AllocTag = AllocTag::new("bench");

/// These resources and `none`, which take turns: machines drift, ratios of one round do not.
pub(super) struct Run<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
    pub(super) resources: &'a [String],
    pub(super) bytes: usize,
}

impl Run<'_> {
    /// A line for each.
    ///
    /// # Errors
    ///
    /// The first error of any resource: then there are no ratios.
    pub(super) fn lines(&self, workload: &str, params: &Value) -> Result<Vec<Line>, BenchError> {
        let Self { machine, plan, .. } = *self;
        let names = std::iter::once(NONE).chain(self.resources.iter().map(String::as_str));
        let mut runners = names
            .map(|name| Runner::new(machine, plan, name, self.bytes))
            .collect::<Result<Vec<_>, _>>()?;
        for runner in &mut runners {
            runner.round(runner.iterations.min(200), plan.budget, None)?;
            runner.rounds.clear();
        }
        let count = runners.len();
        for round in 0..plan.rounds {
            for nth in 0..count {
                let runner = &mut runners[(round + nth) % count];
                runner.round(runner.iterations / plan.rounds, plan.budget, None)?;
            }
        }
        let rounds: Vec<_> =
            runners.iter().map(|runner| (runner.name.clone(), runner.rounds.clone())).collect();
        let of = |name: &str| rounds.iter().find(|(known, _)| known == name);
        let line = |runner: &mut Runner| {
            let title = Line::new(&runner.name, workload, params.clone());
            let (base, layer) = stacks::parts(&runner.name);
            let base = layer.and_then(|_| of(base)).map(|(_, rounds)| &rounds[..]);
            runner.line(machine, plan, title, &rounds[0].1, base)
        };
        runners.iter_mut().map(line).collect()
    }
}

struct Runner {
    name: String,
    stack: Option<Stack>,
    device: Device,
    a: StreamLease,
    b: StreamLease,
    written: Event,
    read: Event,
    target: Memory,
    fixed: Memory,
    bytes: usize,
    iterations: usize,
    last: u8,
    rounds: Vec<Round>,
}

/// One turn.
#[derive(Clone, Copy)]
struct Round {
    made: usize,
    host: Duration,
    /// With the streams' work.
    wall: Duration,
    truncated: bool,
}

/// Nanoseconds of each iteration, and of the two calls in it.
#[derive(Default)]
struct Samples {
    iterations: Vec<u32>,
    allocations: Vec<u32>,
    frees: Vec<u32>,
}

impl Round {
    fn host_ns(&self) -> f64 {
        self.host.as_nanos() as f64 / self.made.max(1) as f64
    }

    fn wall_ns(&self) -> f64 {
        self.wall.as_nanos() as f64 / self.made.max(1) as f64
    }
}

impl Runner {
    fn new(machine: &Machine, plan: &Plan, name: &str, bytes: usize) -> Result<Self, BenchError> {
        let device = machine.device().clone();
        let streams = machine.streams()?;
        let stack = match name {
            NONE => None,
            name => Some(stacks::make(name, &streams)?),
        };
        let is_slow = stack.as_ref().is_some_and(|stack| stack.is_slow);
        Ok(Self {
            name: name.to_owned(),
            a: streams.acquire()?,
            b: streams.acquire()?,
            written: Event::new(&device)?,
            read: Event::new(&device)?,
            target: Memory::new(&device, bytes)?,
            fixed: Memory::new(&device, bytes)?,
            bytes,
            iterations: plan.scaled(if is_slow { 2_000 } else { 50_000 }).max(plan.rounds),
            last: 0,
            rounds: Vec::new(),
            stack,
            device,
        })
    }

    fn round(
        &mut self,
        iterations: usize,
        budget: Duration,
        mut samples: Option<&mut Samples>,
    ) -> Result<(), BenchError> {
        let resource = self.stack.as_ref().map(|stack| Arc::clone(&stack.resource));
        let start = Instant::now();
        let mut made = 0;
        while made < iterations {
            self.last = (made * 7 + 1) as u8;
            let samples = samples.as_deref_mut();
            match resource.as_deref() {
                None => self.by_hand(self.fixed.ptr(), samples)?,
                Some(resource) => self.with_blocks(resource, samples)?,
            }
            made += 1;
            if made % 64 == 0 && start.elapsed() > budget {
                break;
            }
        }
        let host = start.elapsed();
        for lease in [&self.a, &self.b] {
            lease.pool().synchronize(lease.id())?;
        }
        let wall = start.elapsed();
        self.rounds.push(Round { made, host, wall, truncated: made < iterations });
        if let Some(resource) = resource {
            resource.reap_pending()?;
        }
        self.stack.as_ref().map_or(Ok(()), Stack::flush_log)
    }

    /// One iteration without a resource.
    fn by_hand(&self, ptr: u64, samples: Option<&mut Samples>) -> Result<(), BenchError> {
        let start = samples.is_some().then(Instant::now);
        self.fill(ptr)?;
        self.written.record(self.a.stream())?;
        self.written.hold(self.b.stream())?;
        self.copy(ptr)?;
        self.read.record(self.b.stream())?;
        self.read.hold(self.a.stream())?;
        if let (Some(samples), Some(start)) = (samples, start) {
            samples.iterations.push(nanoseconds(start.elapsed()));
        }
        Ok(())
    }

    /// One iteration. A resource that tracks uses orders the work; around one that does not the
    /// events are by hand.
    fn with_blocks(
        &self,
        resource: &dyn DeviceMemoryResource,
        samples: Option<&mut Samples>,
    ) -> Result<(), BenchError> {
        let start = Instant::now();
        let block = resource.allocate(self.bytes, self.a.id(), TAG)?;
        let allocated = samples.is_some().then(|| start.elapsed());
        if resource.supports_block_use_tracking() {
            let uses = |access| [BlockUse::new(block.id(), access)];
            let tokens = resource.prepare_uses(&uses(Access::Write), self.a.id())?;
            self.fill(block.ptr())?;
            resource.finish_uses(tokens)?;
            let tokens = resource.prepare_uses(&uses(Access::Read), self.b.id())?;
            self.copy(block.ptr())?;
            resource.finish_uses(tokens)?;
        } else {
            self.by_hand(block.ptr(), None)?;
        }
        let before_free = samples.is_some().then(|| start.elapsed());
        resource.deallocate(block)?;
        if let Some(samples) = samples {
            let end = start.elapsed();
            samples.iterations.push(nanoseconds(end));
            samples.allocations.push(nanoseconds(allocated.unwrap_or_default()));
            samples.frees.push(nanoseconds(end - before_free.unwrap_or_default()));
        }
        Ok(())
    }

    fn fill(&self, ptr: u64) -> Result<(), BenchError> {
        // SAFETY: the block is freed in the order of its uses, the fixed buffer after the run.
        Ok(unsafe { work::fill(&self.device, ptr, self.last, self.bytes, &self.a) }?)
    }

    fn copy(&self, ptr: u64) -> Result<(), BenchError> {
        let to = self.target.ptr();
        let bytes = self.bytes;
        // SAFETY: as above; the target lives as long as the runner.
        Ok(unsafe { work::copy(&self.device, to, ptr, bytes, &self.b) }?)
    }

    fn line(
        &mut self,
        machine: &Machine,
        plan: &Plan,
        title: Line,
        none: &[Round],
        base: Option<&[Round]>,
    ) -> Result<Line, BenchError> {
        let rounds = self.rounds.clone();
        let mut samples = Samples::default();
        self.round((self.iterations / 5).max(1), plan.budget, Some(&mut samples))?;
        let content = self.target.read()?;
        let bad = content.iter().filter(|&&byte| byte != self.last).count();
        let of = |figure: fn(&Round) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let ratios: Vec<f64> =
            rounds.iter().zip(none).map(|(own, none)| own.host_ns() / none.host_ns()).collect();
        let host = of(Round::host_ns);
        let wall = of(Round::wall_ns);
        let made: usize = rounds.iter().map(|round| round.made).sum();
        let total: Duration = rounds.iter().map(|round| round.host).sum();
        let total_wall: Duration = rounds.iter().map(|round| round.wall).sum();
        let reserved = match &self.stack {
            None => self.bytes as u64,
            Some(Stack { reserved_peak: Some(peak), .. }) => peak()?,
            Some(stack) => stack.resource.usage().reserved,
        };
        let mut line = title
            .with("threads", 1)
            .with("streams", 2)
            .with("ops", made)
            .with("total_ns", total.as_nanos() as u64)
            .with("ns_per_op", hundredths(host))
            .with("wall_ns", total_wall.as_nanos() as u64)
            .with("wall_ns_per_op", hundredths(wall))
            .with("rounds", rounds.len())
            .with("total_from", "median_of_rounds")
            .with("ratio_to_none", (median(&ratios) * 1000.0).round() / 1000.0)
            .with("ratios", ratios.iter().map(|&ratio| hundredths(ratio)).collect::<Vec<_>>())
            .with_percentiles("", &Percentiles::of(&mut samples.iterations))
            .with_percentiles("alloc_", &Percentiles::of(&mut samples.allocations))
            .with_percentiles("free_", &Percentiles::of(&mut samples.frees))
            .with("clock_ns", clock_ns())
            .with("peak_live_bytes", self.bytes)
            .with("peak_reserved_bytes", reserved)
            .with("truncated", rounds.iter().any(|round| round.truncated))
            .with("bad_bytes", bad)
            .with("simulated", machine.is_simulated());
        if let Some(base) = base {
            let pairs = rounds.iter().zip(base);
            let over: Vec<f64> = pairs.map(|(own, base)| own.host_ns() - base.host_ns()).collect();
            line = line.with("ns_over_base", hundredths(median(&over)));
        }
        if let Some(stack) = &self.stack {
            line = stack.describe_log(line)?;
        }
        if bad > 0 {
            line = line.with("error", format!("{bad} of {} bytes are wrong", self.bytes));
        }
        Ok(line)
    }
}
