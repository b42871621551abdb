//! Faults planted under a replay are found, and the findings say where.
#![cfg(feature = "sim")]
#![allow(unsafe_code, reason = "a resource that does wrong makes blocks, too")]

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use clap::Parser;
use dmr_cli::driver::Machine;
use dmr_cli::exit::Failure;
use dmr_cli::replay::{ReplayArgs, replay, report};
use dmr_cli::{Cli, Command};
use dmr_core::{
    AllocTag, BlockParts, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    Generation, ResourceResult, StreamId,
};
use dmr_sim::Universe;
use dmr_trace::Summary;

/// Two streams take turns; every block lives across six others.
fn trace() -> String {
    let mut text = "action,ptr,bytes,stream\n".to_owned();
    for n in 0..200 {
        writeln!(text, "allocate,{n},{},{}", 1000 + n, n % 2).unwrap();
        if n >= 6 {
            writeln!(text, "free,{},,{}", n - 6, n % 2).unwrap();
        }
    }
    text
}

/// Replays the trace with `--verify` on a machine of its own, on the default backend.
fn replay_on(
    universe: &Universe,
    stack: impl FnOnce(Arc<dyn DeviceMemoryResource>) -> Arc<dyn DeviceMemoryResource>,
) -> Result<(Summary, ReplayArgs), Failure> {
    replay_from("async", universe, stack)
}

fn replay_from(
    resource: &str,
    universe: &Universe,
    stack: impl FnOnce(Arc<dyn DeviceMemoryResource>) -> Arc<dyn DeviceMemoryResource>,
) -> Result<(Summary, ReplayArgs), Failure> {
    replay_of(&trace(), resource, universe, stack)
}

fn replay_of(
    trace: &str,
    resource: &str,
    universe: &Universe,
    stack: impl FnOnce(Arc<dyn DeviceMemoryResource>) -> Arc<dyn DeviceMemoryResource>,
) -> Result<(Summary, ReplayArgs), Failure> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    std::fs::write(&path, trace).unwrap();
    let path = path.to_str().unwrap();
    let cli = Cli::parse_from(["dmr", "replay", path, "--verify", "--resource", resource]);
    let Command::Replay(args) = cli.command else { unreachable!() };
    let machine = Machine::simulated(universe.clone(), 0)?;
    Ok((replay(&machine, &args, stack)?, args))
}

fn findings(summary: &Summary) -> Vec<String> {
    let checker = summary.checker.as_ref().expect("the simulated driver checks");
    checker.races.first.iter().chain(&checker.others.first).cloned().collect()
}

#[test]
fn without_a_fault_nothing_is_found_and_nothing_leaks() {
    let universe = Universe::new().unwrap();
    let (summary, args) = replay_on(&universe, |resource| resource).unwrap();
    assert_eq!(findings(&summary), Vec::<String>::new());
    assert!(summary.passed(), "{:?}", summary.details());
    assert_eq!((summary.ops, summary.left_over.count, summary.streams), (394, 6, 2));
    assert_eq!(report(&summary, &args).unwrap().complaint, "");
}

/// Hands the latest block's memory out a second time, once.
#[derive(Debug)]
struct Twice {
    inner: Arc<dyn DeviceMemoryResource>,
    countdown: AtomicU64,
    /// Where the second block starts in the first one.
    offset: u64,
    latest: Mutex<Option<u64>>,
    /// The original parts of the replaced blocks.
    replaced: Mutex<HashMap<Generation, BlockParts>>,
}

impl Twice {
    fn new(inner: Arc<dyn DeviceMemoryResource>, at: u64, offset: u64) -> Arc<Self> {
        let countdown = AtomicU64::new(at);
        let latest = Mutex::default();
        let replaced = Mutex::default();
        Arc::new(Self { inner, countdown, offset, latest, replaced })
    }
}

impl DeviceMemoryResource for Twice {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        let block = self.inner.allocate(bytes, stream, tag)?;
        let latest = self.latest.lock().unwrap().replace(block.ptr());
        match latest {
            Some(ptr) if self.countdown.fetch_sub(1, Ordering::Relaxed) == 1 => {
                let parts = block.into_parts();
                let ptr = ptr + self.offset;
                self.replaced.lock().unwrap().insert(parts.generation, parts);
                // SAFETY: breaks the promise that no other block covers the memory: that is the
                // fault. The memory is there all the same, and at most one byte shorter than this
                // block.
                Ok(unsafe { DeviceBlock::from_parts(BlockParts { ptr, ..parts }) })
            }
            _ => Ok(block),
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let Some(parts) = self.replaced.lock().unwrap().remove(&block.generation()) else {
            return self.inner.deallocate(block);
        };
        let _ = block.into_parts();
        // SAFETY: the block that upstream allocated.
        self.inner.deallocate(unsafe { DeviceBlock::from_parts(parts) })
    }

    dmr_core::forward!(
        inner: is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending,
    );
}

#[test]
fn a_block_allocated_twice_is_found_and_both_lines_are_named() {
    let universe = Universe::new().unwrap();
    let (summary, args) = replay_on(&universe, |resource| Twice::new(resource, 50, 0)).unwrap();
    assert!(!summary.passed());
    // The 51st allocation gets the memory of the 50th: lines 96 and 94 of the trace.
    let overlap = summary.overlaps.first[0];
    assert_eq!((overlap.line, overlap.other_line), (96, 94));
    let corrupt = summary.corrupt_blocks.first[0];
    assert_eq!((corrupt.line, corrupt.free_line), (94, Some(107)));
    let output = report(&summary, &args).unwrap();
    assert!(output.text.contains("overlap  line 96: "), "{}", output.text);
    assert!(output.complaint.contains("1 overlap, "), "{}", output.complaint);
}

#[test]
fn an_overwrite_in_the_middle_of_a_large_block_is_found() {
    let universe = Universe::new().unwrap();
    let trace = "action,ptr,bytes,stream\nallocate,1,16777216,1\nallocate,2,3145728,1\nfree,2,,1\nfree,1,,1\n";
    let stack = |resource| -> Arc<dyn DeviceMemoryResource> { Twice::new(resource, 1, 5 << 20) };
    let (summary, _) = replay_of(trace, "async", &universe, stack).unwrap();
    let corrupt = &summary.corrupt_blocks;
    // The first sample of the 3 MiB that were overwritten.
    assert_eq!((corrupt.count, corrupt.first[0].line, corrupt.first[0].offset), (1, 2, 6 << 20));
}

#[test]
fn a_swallowed_synchronisation_is_a_race_that_names_the_trace_s_line() {
    // Each replay of the trace makes the same driver calls, so every one can be left out. One of
    // them is what orders the second stream's checks before their verdicts are fetched.
    let universe = Universe::new().unwrap();
    universe.reset_calls();
    replay_on(&universe, |resource| resource).unwrap();
    let synchronisations = universe.calls().count("cuStreamSynchronize");
    assert!(synchronisations >= 2, "one for each stream");

    let mut races = Vec::new();
    for n in 1..=synchronisations {
        let universe = Universe::new().unwrap();
        universe.swallow_nth("cuStreamSynchronize", n);
        let (summary, _) = replay_on(&universe, |resource| resource).unwrap();
        let found = summary.checker.as_ref().unwrap().races.first.clone();
        assert_eq!(summary.passed(), found.is_empty(), "{found:#?}");
        races.extend(found);
    }
    assert!(races.iter().any(|race| race.contains("trace line ")), "{races:#?}");
}

#[test]
fn a_swallowed_free_is_a_leak_that_names_the_allocation_s_line() {
    for (backend, free) in [("direct", "cuMemFree_v2"), ("async", "cuMemFreeAsync")] {
        let universe = Universe::new().unwrap();
        universe.swallow_nth(free, 10);
        let (summary, args) = replay_from(backend, &universe, |resource| resource).unwrap();
        let found = findings(&summary);
        // Blocks are freed in order: the tenth free is of the tenth block, allocated by line 14.
        assert_eq!(found.len(), 1, "{found:#?}");
        let [leak] = &found[..] else { unreachable!() };
        assert!(leak.contains("never freed") && leak.ends_with("trace line 14"), "{leak}");
        let complaint = report(&summary, &args).unwrap().complaint;
        assert_eq!(complaint.matches("1 other finding").count(), 1);
    }
}

#[test]
fn a_free_that_the_driver_refuses_is_made_up_for_by_the_end() {
    let universe = Universe::new().unwrap();
    universe.fail_nth("cuMemFree_v2", 10, 999);
    let (summary, _) = replay_from("direct", &universe, |resource| resource).unwrap();
    assert_eq!(findings(&summary), Vec::<String>::new());
    let calls = universe.calls();
    assert_eq!(calls.count("cuMemFree_v2"), calls.count("cuMemAlloc_v2") + 1);
}

#[test]
fn whichever_driver_call_fails_no_block_of_the_trace_is_lost_and_nothing_panics() {
    let universe = Universe::new().unwrap();
    universe.reset_calls();
    replay_on(&universe, |resource| resource).unwrap();
    let calls = universe.calls().total();
    // Every call of the start and of the end, and a sample of those in between.
    for n in (1..=calls).filter(|n| *n < 60 || calls - n < 60 || n % 37 == 0) {
        let universe = Universe::new().unwrap();
        universe.fail_call_number(n, 999);
        let outcome = replay_on(&universe, |resource| resource);
        let verdict = universe.finish();
        // A free that fails in a drop leaks what it should free: not a block, those were freed
        // before. Blocks have less than 2,000 bytes.
        let lost = verdict.reports.iter().find(|report| report.bytes < 2000);
        assert!(lost.is_none(), "call {n} of {calls}: {verdict}");
        let is_reported = verdict.is_clean() || outcome.is_err() || !outcome.unwrap().0.passed();
        assert!(is_reported, "call {n} of {calls}: {verdict}");
    }
}
