//! Sequences in bursts, each stack in turn: what stands out between stacks that differ in a layer.
//!
//! Machines drift, so a layer's cost is the median of the differences to its base, round by round.
//! Between two bursts, outside of the timing, a log is flushed: a burst is shorter than the ring
//! that the log's rows go through, so no ring is ever full while the clock runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dmr_core::DeviceBlock;
use dmr_streams::StreamLease;
use serde_json::Value;

use super::Plan;
use super::pass::{Outcome, Place};
use crate::line::hundredths;
use crate::machine::clock_ns;
use crate::percentiles::{Percentiles, median};
use crate::sequence::Sequence;
use crate::stacks::{self, Stack};
use crate::{BenchError, Line, Machine};

/// Operations of a burst, at most: each leaves one row in a log.
const BURST: usize = stacks::LOG_RING / 2;

/// Rounds that are not counted: they go through all of a ring, and more.
const WARM_UP: usize = 4;

/// The fewest rounds, with those that are not counted.
const ROUNDS: usize = 13;

/// One line of each stack.
pub(super) struct Bursts<'a> {
    pub(super) machine: &'a Machine,
    pub(super) plan: &'a Plan,
    /// A stack without layers, and the same with some.
    pub(super) names: &'a [String],
    /// One for each thread, equally long.
    pub(super) sequences: &'a [Sequence],
    pub(super) workload: &'a str,
    pub(super) params: &'a Value,
}

/// All threads go through it.
struct Course<'a> {
    bursts: &'a Bursts<'a>,
    stacks: &'a [Stack],
    by_thread: &'a [(StreamLease, Vec<Sequence>)],
    rounds: usize,
    together: Together,
    budget_is_spent: AtomicBool,
}

/// Lets all threads start at the same moment, not one after the other as they wake up.
struct Together {
    barrier: Barrier,
    threads: usize,
    arrived: AtomicUsize,
}

/// The outcomes of one thread's turns on each stack, by round; the last round measures each call.
type Turns = Vec<Vec<Outcome>>;

impl Bursts<'_> {
    /// Goes round all stacks.
    pub(super) fn lines(&self) -> Result<Vec<Line>, BenchError> {
        let streams = self.machine.streams()?;
        let make = |name: &String| stacks::make(name, &streams);
        let stacks = self.names.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let threads = self.sequences.len();
        let ops = self.sequences.iter().map(|sequence| sequence.ops.len()).min().unwrap_or(0);
        let burst = BURST.min(ops.div_ceil(ROUNDS).next_multiple_of(2));
        let by_thread = self
            .sequences
            .iter()
            .map(|sequence| Ok((streams.acquire()?, sequence.bursts(burst))))
            .collect::<Result<Vec<_>, BenchError>>()?;
        let course = Course {
            bursts: self,
            stacks: &stacks,
            by_thread: &by_thread,
            rounds: by_thread.iter().map(|(_, bursts)| bursts.len()).min().unwrap_or(0),
            together: Together::new(threads),
            budget_is_spent: AtomicBool::new(false),
        };
        let turns = course.run()?;
        self.names
            .iter()
            .enumerate()
            .map(|(nth, name)| {
                let (base, _) = stacks::parts(name);
                let base = self.names.iter().position(|other| other == base);
                let of = |nth: usize| turns.iter().map(|turns| &turns[nth][..]).collect::<Vec<_>>();
                let result = Measured::of(&of(nth));
                let base = base.filter(|&base| base != nth).map(|base| Measured::of(&of(base)));
                let line = Line::new(name, self.workload, self.params.clone())
                    .with("threads", threads)
                    .with("streams", threads);
                let line = result
                    .describe(line, base.as_ref())
                    .with("burst", burst)
                    .with("truncated", course.budget_is_spent.load(Ordering::Relaxed));
                let line = stacks[nth].describe_log(line)?.with("clock_ns", clock_ns());
                Ok(line.with("simulated", self.machine.is_simulated()))
            })
            .collect()
    }
}

impl Course<'_> {
    /// Every thread's turns.
    fn run(&self) -> Result<Vec<Turns>, BenchError> {
        std::thread::scope(|scope| {
            let others = 1..self.by_thread.len();
            let others: Vec<_> =
                others.map(|thread| scope.spawn(move || self.thread(thread))).collect();
            let mut turns = vec![self.thread(0)];
            turns.extend(others.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(BenchError("a thread panicked".to_owned())))
            }));
            turns.into_iter().collect()
        })
    }

    /// A thread whose turn fails, or panics, keeps the others company to the end.
    fn thread(&self, thread: usize) -> Result<Turns, BenchError> {
        let (lease, bursts) = &self.by_thread[thread];
        let place = |stack: usize| Place {
            resource: Some(&*self.stacks[stack].resource),
            fixed: 0,
            device: self.bursts.machine.device(),
            streams: vec![lease],
            touch: 0,
            budget: Duration::MAX,
            live: None,
            trims: None,
        };
        let places: Vec<_> = (0..self.stacks.len()).map(place).collect();
        let empty = || std::iter::repeat_with(|| None).take(bursts[0].slots).collect();
        let mut slots: Vec<Vec<Option<DeviceBlock>>> =
            std::iter::repeat_with(empty).take(places.len()).collect();
        let mut turns: Turns = std::iter::repeat_with(Vec::new).take(places.len()).collect();
        let mut failure = self.bursts.machine.device().bind().err().map(BenchError::from);
        let started = Instant::now();
        for (round, burst) in bursts.iter().enumerate().take(self.rounds) {
            let mut is_last = round + 1 == self.rounds;
            for nth in 0..places.len() {
                let stack = (round + nth) % places.len();
                self.together.start();
                is_last |= self.budget_is_spent.load(Ordering::Relaxed);
                let place = &places[stack];
                let slots = &mut slots[stack];
                let turn = || match &failure {
                    Some(_) => Ok(Outcome::default()),
                    None if is_last => place.call_by_call(burst, slots, &mut || Ok(())),
                    None => place.plain(burst, slots),
                };
                let outcome = catch_unwind(AssertUnwindSafe(turn))
                    .unwrap_or_else(|_| Err(BenchError("a thread panicked".to_owned())));
                self.together.end();
                match outcome {
                    Ok(outcome) => turns[stack].push(outcome),
                    Err(error) => failure = Some(error),
                }
                if thread == 0 {
                    failure = failure.or(self.stacks[stack].flush_log().err());
                }
            }
            if is_last {
                break;
            }
            let budget = self.bursts.plan.budget * places.len() as u32;
            if thread == 0 && round > WARM_UP && started.elapsed() > budget {
                self.budget_is_spent.store(true, Ordering::Relaxed);
            }
        }
        for (place, slots) in places.iter().zip(&mut slots) {
            place.drain(slots)?;
        }
        failure.map_or(Ok(turns), Err)
    }
}

impl Together {
    fn new(threads: usize) -> Self {
        Self { barrier: Barrier::new(threads), threads, arrived: AtomicUsize::new(0) }
    }

    /// Returns to all threads at once. What one wrote before, all see.
    fn start(&self) {
        self.barrier.wait();
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.threads {
            std::thread::yield_now();
        }
    }

    /// Waits for all threads.
    fn end(&self) {
        if self.barrier.wait().is_leader() {
            self.arrived.store(0, Ordering::Release);
        }
    }
}

/// One stack's turns, over all threads.
struct Measured {
    /// Nanoseconds per operation of each round that counts.
    rounds: Vec<f64>,
    ops: usize,
    total: Duration,
    allocations: Vec<u32>,
    frees: Vec<u32>,
    failed: u64,
    first_error: Option<String>,
}

impl Measured {
    fn of(threads: &[&[Outcome]]) -> Self {
        let turns = threads.iter().map(|turns| turns.len()).min().unwrap_or(0);
        let counted = WARM_UP.min(turns.saturating_sub(2))..turns.saturating_sub(1);
        let of_round = |round: usize| {
            let elapsed: Duration = threads.iter().map(|turns| turns[round].elapsed()).sum();
            (elapsed, threads.iter().map(|turns| turns[round].made).sum::<usize>())
        };
        let counted: Vec<_> = counted.map(of_round).collect();
        let by_call = |of: fn(&Outcome) -> &Vec<u32>| {
            let last = threads.iter().filter_map(|turns| turns.last());
            last.flat_map(|outcome| of(outcome).iter().copied()).collect()
        };
        let all = || threads.iter().copied().flatten();
        Self {
            rounds: counted
                .iter()
                .map(|(elapsed, made)| elapsed.as_nanos() as f64 / (*made).max(1) as f64)
                .collect(),
            ops: counted.iter().map(|(_, made)| made).sum(),
            total: counted.iter().map(|(elapsed, _)| *elapsed).sum(),
            allocations: by_call(|outcome| &outcome.allocations),
            frees: by_call(|outcome| &outcome.frees),
            failed: all().map(|outcome| outcome.failed).sum(),
            first_error: all().find_map(|outcome| outcome.first_error.clone()),
        }
    }

    fn describe(mut self, line: Line, base: Option<&Self>) -> Line {
        let mut line = line
            .with("ops", self.ops)
            .with("total_ns", self.total.as_nanos() as u64)
            .with("ns_per_op", hundredths(median(&self.rounds)))
            .with("total_from", "median_of_rounds")
            .with("rounds", self.rounds.len());
        if let Some(base) = base {
            let pairs = self.rounds.iter().zip(&base.rounds);
            let over: Vec<f64> = pairs.map(|(own, base)| own - base).collect();
            line = line.with("ns_over_base", hundredths(median(&over)));
        }
        let mut all = [&self.allocations[..], &self.frees[..]].concat();
        line = line
            .with_percentiles("", &Percentiles::of(&mut all))
            .with_percentiles("alloc_", &Percentiles::of(&mut self.allocations))
            .with_percentiles("free_", &Percentiles::of(&mut self.frees))
            .with("failed_allocs", self.failed);
        match self.first_error {
            Some(error) => line.with("first_alloc_error", error),
            None => line,
        }
    }
}
