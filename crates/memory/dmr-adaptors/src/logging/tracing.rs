//! A sink that emits `tracing` events.

use dmr_core::AllocationRecord;
use tracing::{debug, trace, warn};

use super::{LoggingSink, RecordAction, SinkError};

/// Emits each record as a `tracing` event, on the thread that made the call.
///
/// The target is `dmr::alloc`. Allocations, growths and deallocations are emitted at `TRACE`, reaps
/// at `DEBUG`, and calls that failed at `WARN`. Fields are named after the columns of a log. Order,
/// time and thread are left out: the subscriber records its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracingSink;

macro_rules! emit {
    ($level:ident, $record:expr, $($failure:tt)*) => {
        $level!(
            target: "dmr::alloc",
            action = $record.action.as_str(),
            ptr = format_args!("{:#x}", $record.ptr),
            bytes = $record.bytes,
            stream = $record.stream,
            device = $record.device,
            tag = $record.tag.name(),
            query_id = $record.query_id,
            generation = $record.generation,
            $($failure)*
        )
    };
}

impl LoggingSink for TracingSink {
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
        match (&record.failure, record.action) {
            (Some(failure), _) => {
                emit!(warn, record, result = failure.kind, "{}", failure.message);
            }
            (None, RecordAction::Reap) => emit!(debug, record, result = "ok"),
            (None, _) => emit!(trace, record, result = "ok"),
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}
