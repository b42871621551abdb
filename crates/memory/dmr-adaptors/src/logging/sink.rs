//! The trait of sinks, its errors, and the sink that keeps nothing.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use dmr_core::{AllocationRecord, panics};

/// Takes the records of any number of [`LoggingResource`](super::LoggingResource)s, from any
/// thread, in any order: [`order`](AllocationRecord::order) sorts them.
///
/// It is called inside `allocate` and `deallocate`, so a slow sink slows them down: put it behind a
/// [`BackgroundSink`](super::BackgroundSink). It may refuse a record, or panic: that costs the
/// record and nothing else.
pub trait LoggingSink: Debug + Send + Sync {
    /// Takes a record.
    ///
    /// # Errors
    ///
    /// The record was not taken; the resource counts it as dropped.
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError>;

    /// Writes every record that was taken before this call to its destination.
    ///
    /// # Errors
    ///
    /// Some records may not be there.
    fn flush(&self) -> Result<(), SinkError>;
}

impl<S: LoggingSink + ?Sized> LoggingSink for Arc<S> {
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
        (**self).record(record)
    }

    fn flush(&self) -> Result<(), SinkError> {
        (**self).flush()
    }
}

/// The error of a sink that did not take a record, or could not write it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The sink holds as many records as it may.
    #[error("the sink is full: raise its bound, or take records out")]
    Full,

    /// The writer thread of the sink does not run: it has ended, it is the calling thread, or the
    /// process is a fork of the one that started it.
    #[error("the thread that writes the records of this sink is not there: make a new sink")]
    Closed,

    /// A file could not be written.
    #[error("the log cannot be written: {0}; make room, or choose another file")]
    Io(#[source] Arc<io::Error>),

    /// The sink panicked.
    #[error("the sink panicked: replace it")]
    Panicked,

    /// Records were accepted and then lost.
    #[non_exhaustive]
    #[error("{records} records were taken and then lost; the first because: {first}")]
    Lost {
        /// The number of records, since the last flush that returned this error.
        records: u64,
        /// The error of the first of them.
        #[source]
        first: Box<SinkError>,
    },

    /// An error of a sink of the program.
    #[error("{0}")]
    Other(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl SinkError {
    /// Makes [`Other`](Self::Other) from any error or message.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into().into())
    }
}

impl From<io::Error> for SinkError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Calls a sink, and returns an error if it panics. Its state after a panic is the sink's own
/// matter.
pub(super) fn catch_panic(call: impl FnOnce() -> Result<(), SinkError>) -> Result<(), SinkError> {
    panics::catch(call).unwrap_or(Err(SinkError::Panicked))
}

/// Takes every record and keeps none: for measuring what a log costs without a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullSink;

impl LoggingSink for NullSink {
    fn record(&self, _: &AllocationRecord) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice in the message of an error; none for an error of the program. A new variant does
    /// not compile without.
    fn advice_of(error: &SinkError) -> &'static str {
        match error {
            SinkError::Full => ": raise its bound, or take records out",
            SinkError::Closed => ": make a new sink",
            SinkError::Io(_) => "; make room, or choose another file",
            SinkError::Panicked => ": replace it",
            SinkError::Lost { first, .. } => advice_of(first),
            SinkError::Other(_) => "",
        }
    }

    #[test]
    fn each_message_says_what_to_do() {
        for error in [
            SinkError::Full,
            SinkError::Closed,
            io::Error::other("no space").into(),
            SinkError::Panicked,
            SinkError::Lost { records: 3, first: Box::new(SinkError::Full) },
            SinkError::other("of the program"),
        ] {
            let message = error.to_string();
            assert!(message.contains(advice_of(&error)), "{message}");
        }
    }
}
