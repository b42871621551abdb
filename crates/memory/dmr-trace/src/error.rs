//! The errors of a trace that cannot be read.

use std::io;

use crate::lines::MAX_LINE;

/// The error of a trace that cannot be read to its end: names the file and the line.
///
/// A single bad row is no error: it is counted ([`TraceReader::bad_rows`](crate::TraceReader)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be opened.
    #[non_exhaustive]
    #[error("{trace}: cannot be opened: {source}")]
    Open {
        /// The trace.
        trace: String,
        /// The error.
        source: io::Error,
    },

    /// The output is the trace itself.
    #[non_exhaustive]
    #[error(
        "{output} is the same file as the trace {trace}, and writing it would destroy the trace: \
         name another file"
    )]
    Overwrites {
        /// The trace.
        trace: String,
        /// The output, as it was named.
        output: String,
    },

    /// Reading failed: an I/O error, a truncated or corrupt gzip stream.
    #[non_exhaustive]
    #[error("{trace}: line {line}: cannot be read any further: {source}")]
    Read {
        /// The trace.
        trace: String,
        /// The line in which it failed, from 1.
        line: u64,
        /// The error.
        source: io::Error,
    },

    /// The rows of a log cannot be sorted: the temporary file that holds them cannot be written or
    /// read.
    #[non_exhaustive]
    #[error(
        "{trace}: cannot be sorted in a temporary file in {folder}: {source}; make room there, or name \
         another folder in the environment variable that sets it (TMPDIR)"
    )]
    Sort {
        /// The trace.
        trace: String,
        /// The folder of temporary files.
        folder: String,
        /// The error of the file.
        source: io::Error,
    },

    /// A line is longer than a line of a trace can be.
    #[non_exhaustive]
    #[error("{trace}: line {line}: longer than {MAX_LINE} bytes: this is not a trace")]
    LineTooLong {
        /// The trace.
        trace: String,
        /// The line, from 1.
        line: u64,
    },

    /// The file has no header and no rows.
    #[non_exhaustive]
    #[error("{trace}: line 1: empty: a trace starts with a header that names its columns")]
    Empty {
        /// The trace.
        trace: String,
    },

    /// The first line is not the header of a trace.
    #[non_exhaustive]
    #[error("{trace}: line {line}: {problem}; the header is {header:?}")]
    Header {
        /// The trace.
        trace: String,
        /// The line of the header, from 1.
        line: u64,
        /// The problem.
        problem: HeaderProblem,
        /// The start of the line.
        header: String,
    },
}

/// The problem of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// A column that every trace needs is missing.
    #[error("no column {0:?} (needed are action, ptr and bytes)")]
    Missing(&'static str),
    /// A column that is read occurs twice.
    #[error("two columns are named {0:?}")]
    Twice(&'static str),
    /// Its quotes do not pair, or it ends early.
    #[error("not a row of CSV")]
    Malformed,
    /// It has more columns than a trace can have.
    #[error("more than {0} columns")]
    TooMany(usize),
}
