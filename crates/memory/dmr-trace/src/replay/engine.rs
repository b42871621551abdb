//! The replay itself: reads a chunk, makes its calls, frees every block at the end.

use std::time::{Duration, Instant};

use dmr_core::record::RecordAction;
use dmr_core::{AllocTag, AllocationRecord, DeviceBlock, DeviceMemoryResource, StreamId};

use super::blocks::{BlockKey, Blocks, Entry, Held};
use super::latency::{Latencies, clock_ns};
use super::streams::{ReplayStreams, StreamMap, TraceStream};
use super::verify::Verifier;
use super::{Progress, Replay, ReplayError, ReplayObserver, ReplayOptions};
use crate::summary::{CallFailure, Overlap, Unfreed};
use crate::{Summary, TraceReader, TraceRow};

/// One replay in progress.
pub(crate) struct Engine<'a> {
    pub(super) resource: &'a dyn DeviceMemoryResource,
    options: ReplayOptions,
    streams: StreamMap<'a>,
    observer: &'a mut dyn ReplayObserver,
    pub(super) verifier: Option<Verifier<'a>>,
    pub(super) blocks: Blocks,
    allocating: Latencies,
    freeing: Latencies,
    pub(super) growing: Latencies,
    pub(super) summary: Summary,
    trace: String,
}

/// The call of a row. Small: a chunk of them stays in the cache.
pub(super) struct Op {
    pub(super) line: u64,
    pub(super) key: BlockKey,
    pub(super) bytes: u64,
    pub(super) stream: TraceStream,
    pub(super) tag: AllocTag,
    pub(super) call: Call,
}

#[derive(Clone, Copy)]
pub(super) enum Call {
    Allocate,
    Free,
    Grow,
}

/// Rows that are parsed before their calls are made.
const CHUNK: usize = 16_384;

impl<'a> Engine<'a> {
    pub(crate) fn new(
        replay: &Replay<'a>,
        streams: &'a mut dyn ReplayStreams,
        observer: &'a mut dyn ReplayObserver,
    ) -> Self {
        Self {
            resource: replay.resource,
            options: replay.options,
            streams: StreamMap::new(streams),
            observer,
            verifier: replay.verify.map(Verifier::new),
            blocks: Blocks::default(),
            allocating: Latencies::new(),
            freeing: Latencies::new(),
            growing: Latencies::new(),
            summary: Summary::default(),
            trace: String::new(),
        }
    }

    pub(crate) fn run(mut self, mut reader: TraceReader) -> Result<Summary, ReplayError> {
        let start = Instant::now();
        let outstanding = self.resource.bytes_outstanding();
        self.trace = reader.trace().to_owned();
        let replayed = self.replay(&mut reader).and_then(|last| self.check_left_over(last));
        self.free_all();
        replayed?;

        let left = self.resource.bytes_outstanding();
        if left != outstanding {
            let message = format!(
                "{outstanding} bytes were outstanding before the replay, {left} are after it, \
                 though every block was freed"
            );
            self.summary.failures.note(CallFailure { line: None, message });
        }
        Ok(self.summarise(&reader, start))
    }

    /// Replays all rows of the trace, and returns the last line.
    fn replay(&mut self, reader: &mut TraceReader) -> Result<u64, ReplayError> {
        let mut ops = Vec::with_capacity(CHUNK);
        let mut last = 1;
        loop {
            // Parsed ahead of the calls: parsing between them would evict from the processor's
            // cache what the next call uses.
            ops.clear();
            while ops.len() < CHUNK
                && let Some(row) = reader.next()
            {
                ops.extend(self.call_of(&row?));
            }
            for op in &ops {
                self.observer.row(Some(op.line));
                match op.call {
                    Call::Allocate => self.allocate(op)?,
                    Call::Free => self.free(op)?,
                    Call::Grow => self.grow(op)?,
                }
                last = op.line;
            }
            self.observer.row(None);
            self.observer.progress(Progress {
                rows: reader.rows(),
                bytes_read: reader.bytes_read(),
                bytes_total: reader.bytes_total(),
            });
            if ops.len() < CHUNK {
                return Ok(last);
            }
        }
    }

    /// Returns the call of a row, if it has one.
    fn call_of(&mut self, row: &TraceRow) -> Option<Op> {
        let record: &AllocationRecord = &row.record;
        if record.failure.is_some() {
            self.summary.failed_rows += 1;
            return None;
        }
        let call = match record.action {
            RecordAction::Allocate => Call::Allocate,
            RecordAction::Deallocate => Call::Free,
            RecordAction::Grow => Call::Grow,
            _ => {
                self.summary.other_rows += 1;
                return None;
            }
        };
        Some(Op {
            line: row.line,
            key: BlockKey::of(record),
            bytes: record.bytes,
            stream: TraceStream { device: record.device, stream: record.stream },
            tag: record.tag,
            call,
        })
    }

    fn allocate(&mut self, op: &Op) -> Result<(), ReplayError> {
        if op.bytes == 0 {
            self.summary.zero_byte_rows += 1;
            return Ok(());
        }
        let limit = self.options.max_live_blocks;
        if self.blocks.len() >= limit {
            let trace = self.trace.clone();
            let line = op.line;
            return Err(ReplayError::TooManyLiveBlocks { trace, line, limit });
        }
        let stream = self.streams.resolve(op.stream).map_err(|source| {
            let trace = self.trace.clone();
            let line = op.line;
            ReplayError::Stream { trace, line, source }
        })?;
        let entry = match self.allocate_timed(op, stream) {
            Ok(block) => Entry::Held(self.hold_and_fill(op, block)),
            Err(message) => {
                self.summary.failed_allocs += 1;
                self.summary.failures.note(CallFailure { line: Some(op.line), message });
                Entry::NotAllocated
            }
        };
        if let Some(line) = self.blocks.insert(op.key, entry) {
            self.summary.reallocated.note(Unfreed { line, again_line: op.line });
        }
        Ok(())
    }

    /// Makes the allocation of a row; otherwise returns the message of its error.
    pub(super) fn allocate_timed(
        &mut self,
        op: &Op,
        stream: StreamId,
    ) -> Result<DeviceBlock, String> {
        // The resource refuses a size beyond the address space.
        let bytes = usize::try_from(op.bytes).unwrap_or(usize::MAX);
        let start = Instant::now();
        let block = self.resource.allocate(bytes, stream, op.tag);
        let took = start.elapsed();
        let block = block.map_err(|error| error.to_string())?;
        self.allocating.record(took);
        Ok(block)
    }

    /// Holds a new block and fills it.
    pub(super) fn hold_and_fill(&mut self, op: &Op, block: DeviceBlock) -> Held {
        let mut held = self.hold(op, block, op.line, op.stream);
        if let Some(verifier) = &self.verifier
            && let Err(error) = verifier.fill(&mut held)
        {
            let message = format!("the block could not be filled: {error}");
            self.summary.failures.note(CallFailure { line: Some(op.line), message });
        }
        self.update_peaks();
        held
    }

    /// Holds a block that has its bytes from the row of `op`, and notes a wrong size or an overlap.
    /// `line` is the row that allocated the block.
    pub(super) fn hold(
        &mut self,
        op: &Op,
        block: DeviceBlock,
        line: u64,
        stream: TraceStream,
    ) -> Held {
        if block.bytes() as u64 != op.bytes {
            let message = format!("{} bytes requested, {} returned", op.bytes, block.bytes());
            self.summary.failures.note(CallFailure { line: Some(op.line), message });
        }
        let held = self.blocks.hold(block, line, stream);
        if let Some(other_line) = held.overlaps {
            let ptr = held.block.ptr();
            self.summary.overlaps.note(Overlap { line: op.line, other_line, ptr });
        }
        held
    }

    pub(super) fn update_peaks(&mut self) {
        let summary = &mut self.summary;
        summary.peak_live_bytes = summary.peak_live_bytes.max(self.blocks.bytes());
        summary.peak_reserved_bytes =
            summary.peak_reserved_bytes.max(self.resource.usage().reserved);
    }

    fn free(&mut self, op: &Op) -> Result<(), ReplayError> {
        let held = match self.blocks.take(op.key) {
            Some(Entry::Held(held)) => held,
            Some(Entry::NotAllocated) => {
                self.summary.skipped_frees += 1;
                return Ok(());
            }
            None if op.bytes == 0 && self.summary.zero_byte_rows > 0 => {
                self.summary.zero_byte_rows += 1;
                return Ok(());
            }
            None => {
                self.summary.unmatched_frees.note(op.line);
                return Ok(());
            }
        };
        if held.stream != op.stream {
            self.summary.cross_stream_frees += 1;
        }
        self.free_timed(op.line, held)
    }

    /// Checks a block and frees it, for the row of `line`.
    pub(super) fn free_timed(&mut self, line: u64, held: Held) -> Result<(), ReplayError> {
        self.check(&held, Some(line))?;
        match self.deallocate(held) {
            Ok(took) => self.freeing.record(took),
            Err(message) => {
                self.summary.failed_frees += 1;
                self.summary.failures.note(CallFailure { line: Some(line), message });
            }
        }
        Ok(())
    }

    /// Submits the check of a block that is about to be freed.
    fn check(&mut self, held: &Held, free_line: Option<u64>) -> Result<(), ReplayError> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let line = free_line.unwrap_or(held.line);
        if let Err(error) = verifier.check(held, free_line) {
            let message = format!("the block could not be checked: {error}");
            self.summary.failures.note(CallFailure { line: Some(line), message });
        }
        if verifier.is_full() { self.collect(line) } else { Ok(()) }
    }

    fn collect(&mut self, line: u64) -> Result<(), ReplayError> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        match verifier.collect() {
            Ok(corrupt) => {
                self.summary.corrupt_blocks.extend(corrupt);
                Ok(())
            }
            Err(source) => {
                let trace = self.trace.clone();
                Err(ReplayError::Verify { trace, line, source })
            }
        }
    }

    /// Frees a block, and returns how long that took; a block that the resource refuses is kept.
    fn deallocate(&mut self, held: Held) -> Result<Duration, String> {
        self.blocks.release(&held);
        let Held { block, line, stream, .. } = held;
        let start = Instant::now();
        let result = self.resource.deallocate(block);
        let took = start.elapsed();
        result.map(|_| took).map_err(|refused| {
            let message = refused.to_string();
            let mut held = self.blocks.hold(refused.block, line, stream);
            held.refused = true;
            self.blocks.keep(held);
            message
        })
    }

    /// Checks the blocks that the trace never frees, and fetches the last results of checks.
    fn check_left_over(&mut self, last_line: u64) -> Result<(), ReplayError> {
        let mut checked = Ok(());
        for held in self.blocks.drain() {
            if !held.refused {
                self.summary.left_over.note(held.line);
                self.summary.left_over_bytes += held.block.bytes() as u64;
                self.observer.row(Some(held.line));
                checked = checked.and_then(|()| self.check(&held, None));
            }
            self.blocks.keep(held);
        }
        self.observer.row(None);
        checked.and_then(|()| self.collect(last_line))
    }

    /// Frees all blocks, in two attempts: a resource may refuse while work is in flight.
    fn free_all(&mut self) {
        self.observer.row(None);
        for is_last in [false, true] {
            for held in self.blocks.drain() {
                let line = Some(held.line);
                if let Err(message) = self.deallocate(held)
                    && is_last
                {
                    self.summary.failures.note(CallFailure { line, message });
                }
            }
            if let Err(error) = self.resource.reap_pending()
                && is_last
            {
                let message = format!("the freed blocks could not be reaped: {error}");
                self.summary.failures.note(CallFailure { line: None, message });
            }
        }
    }

    fn summarise(mut self, reader: &TraceReader, start: Instant) -> Summary {
        let all = self.allocating.merged(&self.freeing).merged(&self.growing);
        let summary = &mut self.summary;
        summary.trace = self.trace;
        summary.strict = self.options.strict;
        summary.peak_tags = self.blocks.peak_tags();
        summary.verified = self.verifier.is_some();
        summary.rows = reader.rows();
        summary.bad_rows = reader.bad_rows().clone();
        summary.allocs = self.allocating.summary().n;
        summary.frees = self.freeing.summary().n;
        summary.grows = self.growing.summary().n;
        summary.ops = summary.allocs + summary.frees + summary.grows;
        summary.streams = self.streams.opened_count();
        summary.trace_streams = self.streams.distinct();
        summary.folded_streams = summary.trace_streams.saturating_sub(summary.streams);
        summary.trace_devices = self.streams.devices();
        summary.total_ns = all.total_ns();
        summary.latency = all.summary();
        summary.ns_per_op = summary.latency.mean;
        summary.alloc_latency = self.allocating.summary();
        summary.free_latency = self.freeing.summary();
        summary.wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        summary.clock_ns = clock_ns();
        self.summary
    }
}
