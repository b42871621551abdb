//! The adaptor that logs, and its layer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use dmr_core::record::Failure;
use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, Process,
    ResourceError, ResourceResult, StreamId,
};

use super::calls::{CallTime, thread_number};
use super::query::current_query;
use super::{LogAction, LogRecord, LogResult, LoggingSink, SinkError};
use crate::ResourceLayer;
use crate::forward::forward;

/// Makes [`LoggingResource`]s that share a sink.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct LoggingLayer {
    sink: Arc<dyn LoggingSink>,
}

impl LoggingLayer {
    /// A layer whose resources record into `sink`.
    pub const fn new(sink: Arc<dyn LoggingSink>) -> Self {
        Self { sink }
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for LoggingLayer {
    type Resource = LoggingResource<R>;

    fn layer(&self, inner: R) -> LoggingResource<R> {
        LoggingResource::new(inner, Arc::clone(&self.sink))
    }
}

/// Records every `allocate`, `deallocate`, `try_reap` and `reap_pending`, ok or failed, and every
/// `try_grow` that made its block larger or failed.
///
/// Trims are not recorded. It never changes what a call returns, and never fails one. In a forked
/// child it records nothing and calls no sink: what it would have recorded there counts as dropped.
/// It records the calls that it forwards: outside of a budget or a pool those of the program,
/// inside those that they make on their upstream.
pub struct LoggingResource<R> {
    inner: R,
    sink: Arc<dyn LoggingSink>,
    made_in: Process,
    /// By thread, so that threads whose records are dropped do not slow each other down.
    dropped: Box<[CachePadded<AtomicU64>; STRIPES]>,
}

const STRIPES: usize = 16;

impl<R> LoggingResource<R> {
    /// Records the calls on `inner` into `sink`.
    pub fn new(inner: R, sink: Arc<dyn LoggingSink>) -> Self {
        Self { inner, sink, made_in: Process::current(), dropped: Box::default() }
    }

    /// How many records the sink did not take, so far.
    pub fn dropped_records(&self) -> u64 {
        self.dropped.iter().map(|dropped| dropped.load(Ordering::Relaxed)).sum()
    }

    /// Brings every record that was taken before this call to where it is going.
    ///
    /// # Errors
    ///
    /// As [`LoggingSink::flush`]. [`Panicked`](SinkError::Panicked) if the sink panics, and
    /// [`Closed`](SinkError::Closed) in a forked child.
    pub fn flush(&self) -> Result<(), SinkError> {
        if self.is_forked() {
            return Err(SinkError::Closed);
        }
        unless_it_panics(|| self.sink.flush())
    }

    /// Where the records go.
    pub fn sink(&self) -> &Arc<dyn LoggingSink> {
        &self.sink
    }

    /// The resource inside.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The resource inside, no longer logged.
    pub fn into_inner(self) -> R {
        self.inner
    }

    fn inner(&self) -> &R {
        &self.inner
    }

    fn log(&self, record: &LogRecord) {
        if unless_it_panics(|| self.sink.record(record)).is_err() {
            self.count_dropped(record.thread);
        }
    }

    fn count_dropped(&self, thread: u64) {
        let stripe = thread as usize % STRIPES;
        self.dropped[stripe].fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this is a forked child, where any lock of the log or its sink may be held for ever.
    fn is_forked(&self) -> bool {
        !self.made_in.is_current()
    }
}

impl<R: DeviceMemoryResource> LoggingResource<R> {
    fn log_reap(&self, answer: &ResourceResult<u64>) {
        if self.is_forked() {
            return self.count_dropped(0);
        }
        let time = CallTime::take();
        let freed = answer.as_ref().map_or(0, |freed| *freed);
        self.log(&LogRecord {
            bytes: freed,
            result: result_of(answer.as_ref()),
            ..self.without_block(&time, LogAction::Reap)
        });
    }

    /// Logs a growth that took place, or failed. Its time is that of its return: the memory that it took
    /// was freed earlier.
    fn log_growth(&self, block: &DeviceBlock, bytes: usize, grown: &ResourceResult<bool>) {
        if self.is_forked() {
            return self.count_dropped(0);
        }
        let time = CallTime::take();
        self.log(&LogRecord {
            bytes: bytes as u64,
            result: result_of(grown.as_ref()),
            ..of_block(&time, LogAction::Grow, block)
        });
    }

    #[cold]
    fn log_failure(&self, bytes: usize, stream: StreamId, tag: AllocTag, error: &ResourceError) {
        if self.is_forked() {
            return self.count_dropped(0);
        }
        let time = CallTime::take();
        self.log(&LogRecord {
            bytes: bytes as u64,
            stream,
            tag,
            result: result_of(Err::<(), _>(error)),
            ..self.without_block(&time, LogAction::Allocate)
        });
    }

    fn without_block(&self, time: &CallTime, action: LogAction) -> LogRecord {
        LogRecord {
            time_ns: time.ns(),
            thread: thread_number(),
            action,
            ptr: 0,
            bytes: 0,
            stream: StreamId::DEFAULT,
            device: ordinal(self.inner.device_ordinal()),
            tag: AllocTag::UNTAGGED,
            query_id: current_query(),
            generation: 0,
            result: Ok(()),
        }
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for LoggingResource<R> {
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // The time is taken after the memory was: whoever freed it has an earlier one.
        match self.inner.allocate(bytes, stream, tag) {
            Ok(block) => {
                let time = CallTime::take();
                self.log(&of_block(&time, LogAction::Allocate, &block));
                Ok(block)
            }
            Err(error) => {
                self.log_failure(bytes, stream, tag, &error);
                Err(error)
            }
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if self.is_forked() {
            self.count_dropped(0);
            return self.inner.deallocate(block);
        }
        // Taken before the memory is given back: whoever is given it has a later time.
        let time = CallTime::take();
        let mut record = of_block(&time, LogAction::Deallocate, &block);
        match self.inner.deallocate(block) {
            Ok(state) => {
                self.log(&record);
                Ok(state)
            }
            Err(refused) => {
                record.result = result_of(Err::<(), _>(&refused.error));
                self.log(&record);
                Err(refused)
            }
        }
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let before = block.bytes();
        let grown = self.inner.try_grow(block, bytes);
        if grown.is_err() || block.bytes() != before {
            self.log_growth(block, bytes, &grown);
        }
        grown
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        let answer = self.inner.try_reap();
        self.log_reap(&answer);
        answer
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        let answer = self.inner.reap_pending();
        self.log_reap(&answer);
        answer
    }

    forward!(
        inner: is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        trim_to,
        use_tracking,
        // Past it: blocks are logged, pages are not.
        virtual_memory,
    );
}

#[inline]
fn of_block(time: &CallTime, action: LogAction, block: &DeviceBlock) -> LogRecord {
    LogRecord {
        time_ns: time.ns(),
        thread: thread_number(),
        action,
        ptr: block.ptr(),
        bytes: block.bytes() as u64,
        stream: block.alloc_stream(),
        device: ordinal(block.device_ordinal()),
        tag: block.tag(),
        query_id: current_query(),
        generation: block.generation().get(),
        result: Ok(()),
    }
}

/// Calls the sink, and returns an error if it panics. State that a panic leaves inconsistent is the
/// sink's own.
fn unless_it_panics(call: impl FnOnce() -> Result<(), SinkError>) -> Result<(), SinkError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|thrown| {
        // Dropping what was thrown may panic again; then it is leaked.
        std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(thrown))));
        Err(SinkError::Panicked)
    })
}

fn ordinal(device: usize) -> u32 {
    u32::try_from(device).unwrap_or(u32::MAX)
}

#[inline]
fn result_of<T>(answer: Result<T, &ResourceError>) -> LogResult {
    match answer {
        Ok(_) => Ok(()),
        Err(error) => Err(Box::new(Failure::from(error))),
    }
}

impl<R: fmt::Debug> fmt::Debug for LoggingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Logging({:?})", self.inner)
    }
}

impl<R: fmt::Debug> fmt::Display for LoggingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
