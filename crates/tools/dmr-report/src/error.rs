//! The errors of a file that cannot be reported on.

use std::io;

/// The error of a file that cannot be read: names the file, and the byte or the line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot be read: {source}")]
    #[non_exhaustive]
    Read {
        /// The file.
        file: String,
        /// The error.
        source: io::Error,
    },

    /// A log or a trace cannot be read.
    #[error(transparent)]
    Trace(#[from] dmr_trace::TraceError),

    /// A recording cannot be read.
    #[error("{file}: {source}")]
    #[non_exhaustive]
    Recording {
        /// The file.
        file: String,
        /// The error, which names the byte.
        source: dmr_recording::ReadError,
    },

    /// A pickle has an opcode or a value that a snapshot does not have.
    #[error("{file}: byte {at}: {problem}")]
    #[non_exhaustive]
    Pickle {
        /// The file.
        file: String,
        /// The position of the opcode, from 0.
        at: usize,
        /// The problem.
        problem: String,
    },

    /// A line of the simulator's findings is not what it should be.
    #[error("{file}: line {line}: {problem}")]
    #[non_exhaustive]
    Finding {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },

    /// The file is of no format that is read.
    #[error(
        "{file}: byte 0: neither a recording, a log (CSV, plain or gzip), a pickle of PyTorch nor \
         findings of the simulated driver"
    )]
    #[non_exhaustive]
    Unknown {
        /// The file.
        file: String,
    },

    /// The file has more events than the table.
    #[error("{file}: more than 4,294,967,294 events: report on a part of it")]
    #[non_exhaustive]
    TooManyEvents {
        /// The file.
        file: String,
    },
}
