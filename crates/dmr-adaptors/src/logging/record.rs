//! What an adaptor hands to a sink: one call, in a fixed size.

use dmr_core::record::{AllocationRecord, Failure};
use dmr_core::{AllocTag, StreamId};

pub use dmr_core::record::RecordAction as LogAction;

/// How a call ended. The heap is touched only if it failed.
pub type LogResult = Result<(), Box<Failure>>;

/// One call on a [`LoggingResource`](super::LoggingResource).
///
/// It has no order number: a counter that all threads share would cost more than the rest of the
/// log, so sinks number what they accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Wall-clock nanoseconds since the epoch: when an allocation, a growth or a reap returned, when a
    /// free began.
    pub time_ns: u64,
    /// The calling thread: a small number, unique in the process.
    pub thread: u64,
    /// What was called.
    pub action: LogAction,
    /// Device address of the block; 0 for a reap and for an allocation that failed.
    pub ptr: u64,
    /// Requested bytes; of a growth, those that the block has afterwards; of a reap, those that it freed.
    pub bytes: u64,
    /// The block's home stream; for an allocation that failed, the stream that was named; for a
    /// reap, [`StreamId::DEFAULT`].
    pub stream: StreamId,
    /// CUDA device ordinal.
    pub device: u32,
    /// Who asked.
    pub tag: AllocTag,
    /// The query on whose behalf ([`with_query`](super::with_query)); 0 for none.
    pub query_id: u64,
    /// The block's generation; 0 where there is no block.
    pub generation: u64,
    /// How it ended.
    pub result: LogResult,
}

impl LogRecord {
    /// The record as a row of a log, number `order` of it. The column `stream` has the stream's
    /// slot in its pool.
    #[must_use]
    pub fn to_row(&self, order: u64) -> AllocationRecord {
        AllocationRecord {
            order,
            time_ns: self.time_ns,
            thread: self.thread,
            action: self.action,
            ptr: self.ptr,
            bytes: self.bytes,
            stream: self.stream.slot() as u64,
            device: self.device,
            tag: self.tag,
            query_id: self.query_id,
            generation: self.generation,
            failure: self.result.as_ref().err().map(|failure| (**failure).clone()),
        }
    }
}
