//! `dmr replay`: makes the calls of a trace again, on this machine's driver.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use dmr::DeviceRuntimeBuilder;
use dmr::dmr_adaptors::budget::Budget;
use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_streams::{PatternOps, StreamLease, StreamPool};
use dmr_trace::{
    Replay, ReplayError, ReplayOptions, ReplayStreams, Summary, TraceReader, refuse_overwrite,
};

use crate::driver::{DriverArgs, Machine};
use crate::exit::{Exit, Failure};
use crate::progress::Watch;
use crate::{Output, bytes, source};

/// The arguments of `dmr replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The trace: CSV, gzip or not; this project's format or RMM's log
    pub trace: PathBuf,

    /// The resource that blocks are allocated from [default: DMR_BACKEND, else the first of these]
    #[arg(long, value_name = "NAME", value_parser = source::names())]
    pub resource: Option<String>,

    /// Fill each block with its own pattern and check it before the free; on the simulated driver,
    /// check samples of large blocks
    #[arg(long)]
    pub verify: bool,

    /// Put a budget around the resource, which refuses what would exceed this: 8GiB, 512MiB, 4096
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse)]
    pub limit: Option<u64>,

    /// Log the calls of the replay to this file, which is overwritten: CSV, gzip if its name ends
    /// in .gz
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Put red zones, poison and a quarantine around every block
    #[arg(long)]
    pub guard: bool,

    /// Print one JSON object instead of the table
    #[arg(long)]
    pub json: bool,

    /// Fail for bad rows, frees without an allocation and blocks left over, too
    #[arg(long)]
    pub strict: bool,

    /// The number of streams; a trace with more has them folded
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=StreamId::MAX_SLOTS as i64))]
    pub streams: u16,

    /// The most blocks that can be live at once
    #[arg(long, value_name = "N", default_value_t = ReplayOptions::new().max_live_blocks)]
    pub max_live_blocks: usize,

    /// The driver and the device.
    #[command(flatten)]
    pub driver: DriverArgs,
}

/// Replays and reports.
///
/// # Errors
///
/// No driver or device, an unreadable trace, other errors that end a replay.
pub fn run(args: &ReplayArgs) -> Result<Output, Failure> {
    // An unreadable trace must not start a driver.
    let trace = open(args)?;
    let machine = Machine::choose(&args.driver)?;
    let summary = replay_trace(trace, &machine, args, |resource| resource)?;
    report(&summary, args)
}

/// Replays a trace on `machine`, on the resource that `stack` makes from the backend's. The summary
/// includes the findings of the machine's checker.
///
/// # Errors
///
/// No device, an unreadable trace, other errors that end a replay.
pub fn replay(
    machine: &Machine,
    args: &ReplayArgs,
    stack: impl FnOnce(Arc<dyn DeviceMemoryResource>) -> Arc<dyn DeviceMemoryResource>,
) -> Result<Summary, Failure> {
    replay_trace(open(args)?, machine, args, stack)
}

/// Makes the table, or the JSON object, and the message of a failure.
///
/// # Errors
///
/// None that a summary can cause: its JSON form has no part that cannot be written.
pub fn report(summary: &Summary, args: &ReplayArgs) -> Result<Output, Failure> {
    let mut text = String::new();
    if args.json {
        text = serde_json::to_string(summary).map_err(Failure::unusable)?;
        text.push('\n');
    } else {
        for line in summary.details() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
        }
        let _ = write!(text, "{summary}");
    }
    let wrong = summary.verdict().join(", ");
    let complaint = if wrong.is_empty() { wrong } else { format!("{}: {wrong}", summary.trace) };
    Ok(Output { text, complaint })
}

fn open(args: &ReplayArgs) -> Result<TraceReader, Failure> {
    if let Some(log) = &args.log {
        refuse_overwrite(&args.trace, log).map_err(Failure::unusable)?;
    }
    TraceReader::open(&args.trace).map_err(Failure::unusable)
}

fn replay_trace(
    trace: TraceReader,
    machine: &Machine,
    args: &ReplayArgs,
    stack: impl FnOnce(Arc<dyn DeviceMemoryResource>) -> Arc<dyn DeviceMemoryResource>,
) -> Result<Summary, Failure> {
    let mut summary = replay_on_device(trace, machine, args, stack)?;
    // The replay has freed everything: memory that is left is a leak.
    if let Some(findings) = machine.findings() {
        let checker = summary.checker.get_or_insert_default();
        checker.races = findings.races;
        checker.others.count += findings.others.count;
        checker.others.first.extend(findings.others.first);
    }
    summary.simulated = machine.is_simulated();
    Ok(summary)
}

fn replay_on_device(
    trace: TraceReader,
    machine: &Machine,
    args: &ReplayArgs,
    stack: impl FnOnce(Arc<dyn DeviceMemoryResource>) -> Arc<dyn DeviceMemoryResource>,
) -> Result<Summary, Failure> {
    let max_streams = usize::from(args.streams);
    let builder = source::builder(args.resource.as_deref(), machine.ordinal(), max_streams)?;
    let runtime = args.layers(builder).build().map_err(Failure::unusable)?;
    let driver = machine.describe(runtime.device());
    let resource = stack(Arc::clone(runtime.resource()));
    let mut streams = Leases { pool: Arc::clone(runtime.streams()), held: Vec::new() };

    let mut options = ReplayOptions::new().strict(args.strict);
    options.max_live_blocks = args.max_live_blocks;
    let ops = match args.verify {
        true => Some(PatternOps::new(Arc::clone(runtime.streams())).map_err(Failure::unusable)?),
        false => None,
    };
    let mut replay = Replay::new(&*resource).options(options);
    if let Some(ops) = &ops {
        // The simulator interprets the kernel that checks: too slow for all bytes of a large trace.
        let is_sample = machine.is_simulated();
        replay = if is_sample { replay.verify_samples(ops) } else { replay.verify(ops) };
    }
    let mut watch = Watch::new(args.verify.then(|| machine.labels()).flatten());
    let mut summary = replay.run(trace, &mut streams, &mut watch).map_err(|error| {
        let exit = match error {
            ReplayError::Trace(_) | ReplayError::TooManyLiveBlocks { .. } => Exit::Unusable,
            _ => Exit::Failed,
        };
        Failure { exit, message: error.to_string() }
    })?;
    summary.driver = driver;
    summary.stack = format!("{resource:?}");
    if let Some(log) = runtime.log() {
        log.flush().map_err(Failure::unusable)?;
    }
    if let Some(guard) = runtime.debug_guard() {
        let found = guard.check_all().map_err(Failure::unusable)?;
        let found = guard.take_violations().into_iter().chain(found);
        let checker = summary.checker.get_or_insert_default();
        checker.others.extend(found.map(|corruption| corruption.to_string()));
    }
    Ok(summary)
}

impl ReplayArgs {
    /// Adds the layers of the arguments.
    fn layers(&self, mut builder: DeviceRuntimeBuilder) -> DeviceRuntimeBuilder {
        if let Some(bytes) = self.limit {
            builder = builder.budget_on(&Budget::new(bytes));
        }
        if let Some(path) = &self.log {
            builder = builder.log_csv(path);
        }
        if self.guard {
            builder = builder.debug_guard();
        }
        builder
    }
}

/// Leases a stream for each stream of the trace, as long as the pool has one.
struct Leases {
    pool: Arc<StreamPool>,
    held: Vec<StreamLease>,
}

impl ReplayStreams for Leases {
    fn open(&mut self, _nth: usize) -> ResourceResult<Option<StreamId>> {
        match self.pool.acquire() {
            Ok(lease) => {
                let id = lease.id();
                self.held.push(lease);
                Ok(Some(id))
            }
            Err(ResourceError::Capacity { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
