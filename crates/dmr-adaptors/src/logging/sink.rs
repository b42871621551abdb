//! Where records go: the trait, its errors, and the sink that keeps nothing.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use super::LogRecord;

/// Takes the records of any number of [`LoggingResource`](super::LoggingResource)s, from any
/// thread.
///
/// It is called inside `allocate` and `deallocate`, so what takes time there slows them down: put
/// it behind a [`BackgroundSink`](super::BackgroundSink). It may refuse a record, or panic: that
/// costs the record and nothing else.
pub trait LoggingSink: Debug + Send + Sync {
    /// Takes a record, and numbers it.
    ///
    /// # Errors
    ///
    /// The record was not taken; the resource counts it as dropped.
    fn record(&self, record: &LogRecord) -> Result<(), SinkError>;

    /// Brings every record that was taken before this call to where it is going.
    ///
    /// # Errors
    ///
    /// Some may not be there.
    fn flush(&self) -> Result<(), SinkError>;
}

impl<S: LoggingSink + ?Sized> LoggingSink for Arc<S> {
    fn record(&self, record: &LogRecord) -> Result<(), SinkError> {
        (**self).record(record)
    }

    fn flush(&self) -> Result<(), SinkError> {
        (**self).flush()
    }
}

/// Why a sink did not take a record, or could not bring it where it was going.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// It holds as many records as it may.
    #[error("the sink is full: raise its bound, or take records out")]
    Full,

    /// The thread that writes its records is not there: it has ended, this is it, or the process
    /// is a fork of the one that started it.
    #[error("the thread that writes the records of this sink is not there: make a new sink")]
    Closed,

    /// A file could not be written.
    #[error("the log cannot be written: {0}; make room, or choose another file")]
    Io(#[source] Arc<io::Error>),

    /// The sink panicked.
    #[error("the sink panicked: replace it")]
    Panicked,

    /// Records that had been taken did not get where they were going.
    #[non_exhaustive]
    #[error("{records} records were taken and then lost; the first because: {first}")]
    Lost {
        /// How many, since the last time that this was said.
        records: u64,
        /// Why the first of them.
        #[source]
        first: Box<SinkError>,
    },

    /// What a sink of your own says.
    #[error("{0}")]
    Other(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl SinkError {
    /// [`Other`](Self::Other), from any error or message.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into().into())
    }
}

impl From<io::Error> for SinkError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Takes every record and keeps none: for measuring what a log costs without a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullSink;

impl LoggingSink for NullSink {
    fn record(&self, _: &LogRecord) -> Result<(), SinkError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice of a message; none for an error of a sink's own. A new variant does not compile
    /// without.
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
            SinkError::other("mine"),
        ] {
            let message = error.to_string();
            assert!(message.contains(advice_of(&error)), "{message}");
        }
    }
}
