//! The adaptor that logs, and its layer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use dmr_core::record::Failure;
use dmr_core::{
    AllocTag, AllocationRecord, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource,
    DriverAllocation, Process, ResourceError, ResourceResult, StreamId, forward,
};

use super::clock::stamp;
use super::query::current_query;
use super::sink::catch_panic;
use super::{LoggingSink, RecordAction, SinkError};
use crate::ResourceLayer;
use crate::thread_number::thread_number;

/// Makes [`LoggingResource`]s that share a sink.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct LoggingLayer {
    sink: Arc<dyn LoggingSink>,
}

impl LoggingLayer {
    /// Returns a layer whose resources record into `sink`.
    pub const fn new(sink: Arc<dyn LoggingSink>) -> Self {
        Self { sink }
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for LoggingLayer {
    type Resource = LoggingResource<R>;

    fn layer(&self, upstream: R) -> LoggingResource<R> {
        LoggingResource::new(upstream, Arc::clone(&self.sink))
    }
}

/// Records every `allocate`, `deallocate`, `try_reap` and `reap_pending`, whether it succeeds or
/// fails, and every `try_grow` that makes its block larger or fails.
///
/// Trims are not recorded. It never changes what a call returns, and never fails one. In a forked
/// child it calls no sink: the records count as dropped. It records the calls that reach it: around
/// a budget or a pool those of the program, below it those that it makes on its upstream.
pub struct LoggingResource<R> {
    upstream: R,
    sink: Arc<dyn LoggingSink>,
    made_in: Process,
    /// On a line of its own: calls read the fields above.
    dropped: CachePadded<AtomicU64>,
}

impl<R> LoggingResource<R> {
    /// Wraps `upstream`, and records the calls into `sink`.
    pub fn new(upstream: R, sink: Arc<dyn LoggingSink>) -> Self {
        Self { upstream, sink, made_in: Process::current(), dropped: CachePadded::default() }
    }

    /// Returns how many records the sink did not take, so far.
    pub fn dropped_records(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Writes every record that the sink took before this call to its destination.
    ///
    /// # Errors
    ///
    /// As [`LoggingSink::flush`]. [`Panicked`](SinkError::Panicked) if the sink panics, and
    /// [`Closed`](SinkError::Closed) in a forked child.
    pub fn flush(&self) -> Result<(), SinkError> {
        if !self.made_in.is_current() {
            return Err(SinkError::Closed);
        }
        catch_panic(|| self.sink.flush())
    }

    /// Returns the sink.
    pub fn sink(&self) -> &Arc<dyn LoggingSink> {
        &self.sink
    }

    /// Returns the resource that is logged.
    pub const fn upstream(&self) -> &R {
        &self.upstream
    }

    /// Returns the resource, no longer logged.
    pub fn into_upstream(self) -> R {
        self.upstream
    }

    #[inline]
    fn log(&self, record: &AllocationRecord) {
        // In a forked child any lock of the sink may be held for ever.
        let is_taken =
            self.made_in.is_current() && catch_panic(|| self.sink.record(record)).is_ok();
        if !is_taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<R: DeviceMemoryResource> LoggingResource<R> {
    #[cold]
    fn log_failed_allocation(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
        error: &ResourceError,
    ) {
        let bytes = bytes as u64;
        let stream = stream.slot() as u64;
        let record = record(RecordAction::Allocate, self.upstream.device_ordinal(), Some(error));
        self.log(&AllocationRecord { bytes, stream, tag, ..record });
    }

    fn log_reap(&self, freed: &ResourceResult<u64>) {
        let error = freed.as_ref().err();
        let record = record(RecordAction::Reap, self.upstream.device_ordinal(), error);
        self.log(&AllocationRecord { bytes: *freed.as_ref().unwrap_or(&0), ..record });
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
        // Stamped after upstream: the free that made room has an earlier stamp.
        match self.upstream.allocate(bytes, stream, tag) {
            Ok(block) => {
                self.log(&record_of(RecordAction::Allocate, &block, None));
                Ok(block)
            }
            Err(error) => {
                self.log_failed_allocation(bytes, stream, tag, &error);
                Err(error)
            }
        }
    }

    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        // Stamped before upstream: an allocation that reuses the address has a later stamp.
        let mut record = record_of(RecordAction::Deallocate, &block, None);
        match self.upstream.deallocate(block) {
            Ok(state) => {
                self.log(&record);
                Ok(state)
            }
            Err(refused) => {
                record.failure = Some(Box::new(Failure::from(&refused.error)));
                self.log(&record);
                Err(refused)
            }
        }
    }

    /// Logged as a deallocation: the resource has the block no more.
    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let mut record = record_of(RecordAction::Deallocate, &block, None);
        let given = self.upstream.give_away(block);
        if let Err(refused) = &given {
            record.failure = Some(Box::new(Failure::from(&refused.error)));
        }
        self.log(&record);
        given
    }

    /// A growth is stamped after upstream: the memory that it took was freed earlier.
    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let before = block.bytes();
        let grown = self.upstream.try_grow(block, bytes);
        if grown.is_err() || block.bytes() != before {
            let record = record_of(RecordAction::Grow, block, grown.as_ref().err());
            self.log(&AllocationRecord { bytes: bytes as u64, ..record });
        }
        grown
    }

    fn try_reap(&self) -> ResourceResult<u64> {
        let freed = self.upstream.try_reap();
        self.log_reap(&freed);
        freed
    }

    fn reap_pending(&self) -> ResourceResult<u64> {
        let freed = self.upstream.reap_pending();
        self.log_reap(&freed);
        freed
    }

    forward!(
        upstream: is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        trim_to,
        allow_access,
        use_tracking,
        // Not wrapped: blocks are logged, pages are not.
        virtual_memory,
    );
}

/// Makes the record of a call on `block`, stamped with the time of this call.
#[inline]
fn record_of(
    action: RecordAction,
    block: &DeviceBlock,
    error: Option<&ResourceError>,
) -> AllocationRecord {
    AllocationRecord {
        ptr: block.ptr(),
        bytes: block.bytes() as u64,
        stream: block.alloc_stream().slot() as u64,
        tag: block.tag(),
        generation: block.generation().get(),
        ..record(action, block.device_ordinal(), error)
    }
}

/// Makes the record of a call without a block, stamped with the time of this call.
#[inline]
fn record(action: RecordAction, device: usize, error: Option<&ResourceError>) -> AllocationRecord {
    let time_ns = stamp();
    AllocationRecord {
        order: time_ns,
        time_ns,
        thread: thread_number(),
        action,
        ptr: 0,
        bytes: 0,
        stream: 0,
        device: u32::try_from(device).unwrap_or(u32::MAX),
        tag: AllocTag::UNTAGGED,
        query_id: current_query(),
        generation: 0,
        failure: error.map(|error| Box::new(Failure::from(error))),
    }
}

impl<R: fmt::Debug> fmt::Debug for LoggingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Logging({:?})", self.upstream)
    }
}

impl<R: fmt::Debug> fmt::Display for LoggingResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
