//! Fills device memory with patterns and checks them, ordered on streams.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

use cudarc::driver::result;
use cudarc::driver::sys::cuMemsetD32Async;
use dmr_core::process::LeakedInChild;
use dmr_core::sync::{lock, read, write};
use dmr_core::{
    Access, BlockUse, DeviceBlock, DeviceOps, PatternMismatch, ResourceError, ResourceResult,
    StreamId, UseTokens,
};

use crate::kernels::{Kernels, NOTHING_WRONG, PatternCheck, RESULT_SLOTS};
use crate::stream_waits::Cause;
use crate::{Declaration, Device, HomeStream, StreamGuard, StreamPool};

/// [`DeviceOps`] on the streams of a pool.
///
/// A fill sets the bytes before the first word boundary, the words, and the bytes after them. A
/// check is one kernel, which the driver compiles at the first check; its result stays on the
/// device until [`collect`](DeviceOps::collect) fetches it, or until 65,536 checks are pending.
/// Threads submit concurrently and wait for each other only while results are fetched.
///
/// Work on a block of host memory is recorded as a use of the block. Work on any other block is
/// not: the caller records it where that is needed.
///
/// Dropping it waits for the streams if anything was checked.
pub struct PatternOps {
    streams: Arc<StreamPool>,
    kernels: LeakedInChild<OnceLock<Kernels>>,
    /// Read-locked while a check is submitted, write-locked while results are fetched: then every
    /// check that has a slot has been submitted.
    gate: RwLock<()>,
    pending: LeakedInChild<Mutex<PendingChecks>>,
}

/// Checks whose results were not fetched, and mismatches that were not collected.
#[derive(Default)]
struct PendingChecks {
    /// By result slot, in the order of submission.
    checks: Vec<CheckedRange>,
    /// The streams that the checks were submitted to.
    streams: Vec<StreamId>,
    /// Mismatches that were fetched.
    found: Vec<PatternMismatch>,
    /// The results buffer still has mismatches that were fetched.
    stale_results: bool,
}

#[derive(Clone, Copy)]
struct CheckedRange {
    key: u64,
    /// The start of the range in its block.
    start: usize,
}

impl PatternOps {
    /// Makes operations on the streams of this pool, and its device.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn new(streams: Arc<StreamPool>) -> ResourceResult<Self> {
        streams.device().bind()?;
        Ok(Self {
            streams,
            kernels: LeakedInChild::default(),
            gate: RwLock::new(()),
            pending: LeakedInChild::default(),
        })
    }

    /// Returns the pool whose streams are used.
    #[must_use]
    pub fn stream_pool(&self) -> &Arc<StreamPool> {
        &self.streams
    }

    /// Keeps a stream busy for this long, for tests that make races visible.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool, of a returned lease
    /// or of a retired stream; [`Driver`](ResourceError::Driver).
    pub fn delay(&self, stream: StreamId, nanoseconds: u64) -> ResourceResult<()> {
        let stream = self.streams.enter(stream)?;
        self.kernels()?.spin(&stream, nanoseconds)
    }

    fn device(&self) -> &Device {
        self.streams.device()
    }

    /// Returns the address of a range. Refuses a range outside of the block, and a block of another
    /// device.
    fn address(&self, block: &DeviceBlock, range: &Range<usize>) -> ResourceResult<u64> {
        let ordinal = self.device().ordinal();
        if block.device_ordinal() != ordinal {
            return Err(ResourceError::foreign_block(block, ordinal));
        }
        if range.start > range.end || range.end > block.bytes() {
            let length = range.end.saturating_sub(range.start);
            return Err(ResourceError::out_of_bounds(block, range.start, length));
        }
        Ok(block.ptr() + range.start as u64)
    }

    /// Submits work on a block. If that is host memory, in the order of its uses, and records the
    /// use: the memory is not the host's before the work is done. The work belongs to no launch,
    /// also if a launch's closure allocates.
    fn submit(
        &self,
        block: &DeviceBlock,
        access: Access,
        stream: &StreamGuard<'_>,
        work: impl FnOnce() -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        let _undeclared = Declaration::of_anything(self.device());
        if !block.id().slot().is_of_host_memory() {
            return work();
        }
        let uses = self.streams.uses();
        let mut tokens = UseTokens::new(stream.id());
        uses.prepare_on(stream, &[BlockUse::new(block.id(), access)], &mut tokens)?;
        let worked = work();
        worked.and(uses.finish_in(&mut tokens))
    }

    fn fill(
        &self,
        block: &DeviceBlock,
        Range { start, end }: Range<usize>,
        pattern: u32,
        stream: &StreamGuard<'_>,
    ) -> ResourceResult<()> {
        let words_start = start.next_multiple_of(4).min(end);
        let words_end = words_start + (end - words_start) / 4 * 4;
        for offset in start..words_start {
            self.fill_byte(block, offset, pattern, stream)?;
        }
        if words_start < words_end {
            let ptr = block.ptr() + words_start as u64;
            let words = (words_end - words_start) / 4;
            // SAFETY: the words are inside a live block, which is aligned to more than a word;
            // the stream is alive while there is a guard.
            let fill = |stream| unsafe { cuMemsetD32Async(ptr, pattern, words, stream) }.result();
            stream
                .call(fill)
                .map_err(|error| self.device().driver_error("cuMemsetD32Async", error))?;
        }
        for offset in words_end..end {
            self.fill_byte(block, offset, pattern, stream)?;
        }
        Ok(())
    }

    fn fill_byte(
        &self,
        block: &DeviceBlock,
        offset: usize,
        pattern: u32,
        stream: &StreamGuard<'_>,
    ) -> ResourceResult<()> {
        let byte = pattern.to_le_bytes()[offset % 4];
        let ptr = block.ptr() + offset as u64;
        // SAFETY: the byte is inside a live block; the stream is alive while there is a guard.
        stream
            .call(|stream| unsafe { result::memset_d8_async(ptr, byte, 1, stream) })
            .map_err(|error| self.device().driver_error("cuMemsetD8Async", error))
    }

    /// Returns the kernels, which are compiled when they are first needed.
    fn kernels(&self) -> ResourceResult<&Kernels> {
        self.device().refuse_fork()?;
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let _alone = write(&self.gate);
        if let Some(kernels) = self.kernels.get() {
            return Ok(kernels);
        }
        let kernels = Kernels::load(self.device(), self.streams.private_stream()?)?;
        Ok(self.kernels.get_or_init(|| kernels))
    }

    /// Reserves a result slot for a check on `stream`; `None` if results must be fetched first.
    fn reserve(&self, stream: StreamId, key: u64, start: usize) -> Option<usize> {
        let mut pending = self.pending();
        let slot = pending.checks.len();
        if pending.stale_results || slot == RESULT_SLOTS {
            return None;
        }
        pending.checks.push(CheckedRange { key, start });
        if !pending.streams.iter().any(|known| known.slot() == stream.slot()) {
            pending.streams.push(stream);
        }
        Some(slot)
    }

    /// Waits for all checks that were submitted and moves their mismatches to `found`. After an
    /// error it can be repeated, and loses no result.
    fn fetch(&self) -> ResourceResult<()> {
        // First: another thread may have held a lock when the process was forked.
        self.device().refuse_fork()?;
        let _alone = write(&self.gate);
        // Nothing was checked if there are no kernels.
        let Some(kernels) = self.kernels.get() else { return Ok(()) };
        let mut pending = self.pending();
        if !pending.checks.is_empty() {
            self.device().bind()?;
            for stream in &pending.streams {
                // An event, because waiting for the stream would end a capture that begins
                // meanwhile.
                let uses = self.streams.uses();
                uses.synchronize(&uses.work_so_far(*stream)?)?;
            }
            let results = kernels.fetch(pending.checks.len())?;
            let pending = &mut *pending;
            let checked = pending.checks.drain(..).zip(results);
            let wrong = checked.filter(|(_, at)| *at != NOTHING_WRONG);
            let before = pending.found.len();
            pending.found.extend(wrong.map(|(CheckedRange { key, start }, at)| PatternMismatch {
                key,
                offset: start + at as usize,
            }));
            pending.stale_results |= pending.found.len() > before;
            pending.streams.clear();
        }
        if pending.stale_results {
            kernels.reset()?;
            pending.stale_results = false;
        }
        Ok(())
    }

    fn pending(&self) -> MutexGuard<'_, PendingChecks> {
        lock(&self.pending)
    }
}

impl DeviceOps for PatternOps {
    fn fill_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
    ) -> ResourceResult<()> {
        self.address(block, &range)?;
        let stream = &self.streams.enter(stream)?;
        self.device().bind()?;
        self.submit(block, Access::Write, stream, || self.fill(block, range, pattern, stream))
    }

    fn check_pattern(
        &self,
        block: &DeviceBlock,
        range: Range<usize>,
        pattern: u32,
        stream: StreamId,
        key: u64,
    ) -> ResourceResult<()> {
        let ptr = self.address(block, &range)?;
        let stream = self.streams.enter(stream)?;
        if range.is_empty() {
            return Ok(());
        }
        let kernels = self.kernels()?;
        // The kernel counts from the start of the range, the pattern from that of the block.
        let pattern = pattern.rotate_right(8 * (range.start % 4) as u32);
        loop {
            let submitting = read(&self.gate);
            let Some(slot) = self.reserve(stream.id(), key, range.start) else {
                drop(submitting);
                self.fetch()?;
                continue;
            };
            let check = PatternCheck { ptr, bytes: range.len() as u64, pattern, slot };
            // The result of a check that cannot be submitted stays `NOTHING_WRONG`.
            //
            // SAFETY: the range is inside a live block; freeing that is ordered after the check
            // by the contract of the block's resource, as for any work on its memory.
            let work = || unsafe { kernels.check(&stream, check) };
            return self.submit(block, Access::Read, &stream, work);
        }
    }

    fn collect(&self) -> ResourceResult<Vec<PatternMismatch>> {
        self.fetch()?;
        Ok(std::mem::take(&mut self.pending().found))
    }

    fn library_stream(&self, block: &DeviceBlock) -> ResourceResult<StreamId> {
        let streams = &self.streams;
        let home = block.alloc_stream();
        let entered = streams.enter_home(home)?;
        // First: from the second stream of a pool on, events are recorded.
        let library = streams.library_stream(home.slot())?;
        let work = match &entered {
            HomeStream::Live(stream) => streams.progress().event_on(stream)?,
            HomeStream::Retired => streams.progress().event_now(streams, home.slot())?,
        };
        if let Some(work) = work {
            streams.progress().make_wait(&library, &work, because_of(block))?;
        }
        Ok(library.id())
    }

    fn join_home_stream(&self, block: &DeviceBlock) -> ResourceResult<bool> {
        let streams = &self.streams;
        let home = block.alloc_stream();
        let HomeStream::Live(stream) = streams.enter_home(home)? else { return Ok(false) };
        let library = streams.library_stream(home.slot())?;
        if let Some(work) = streams.progress().event_on(&library)? {
            stream.refuse_capture()?;
            streams.progress().make_wait(&stream, &work, because_of(block))?;
        }
        Ok(true)
    }

    fn count_as_allocation(&self, block: &DeviceBlock) -> bool {
        self.streams.uses().count_as_allocation(block.id())
    }

    fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        self.streams.synchronize(stream)
    }
}

/// Returns the cause of a wait for the work of a block.
fn because_of(block: &DeviceBlock) -> Cause {
    Cause { block: block.generation().get(), launch: 0 }
}

impl Drop for PatternOps {
    /// Waits for the streams, which may be running the kernels.
    fn drop(&mut self) {
        if self.kernels.get().is_some() && self.streams.synchronize_all() != Ok(true) {
            // A stream that captures was skipped, or the device is lost: the module stays loaded.
            std::mem::forget(self.kernels.take());
        }
    }
}

impl fmt::Debug for PatternOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PatternOps");
        shown.field("device", self.device());
        if !self.device().is_forked() {
            let pending = self.pending();
            shown.field("checks_waiting", &pending.checks.len());
            shown.field("mismatches", &pending.found.len());
        }
        shown.finish_non_exhaustive()
    }
}
