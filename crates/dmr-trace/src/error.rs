//! Why a trace cannot be read at all.

use std::io;

use crate::lines::MAX_LINE;

/// Why a trace cannot be read, or not to its end: names the file and the line.
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
        /// Why.
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
        /// Why.
        source: io::Error,
    },

    /// The rows of a log cannot be sorted: the temporary file that holds them cannot be written or read.
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

    /// There is nothing in it.
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
        /// What is wrong with it.
        problem: HeaderProblem,
        /// The start of the line.
        header: String,
    },
}

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderProblem {
    /// A column that every trace needs is not there.
    #[error("no column {0:?} (needed are action, ptr and bytes)")]
    Missing(&'static str),
    /// A column that is read is there twice.
    #[error("two columns are named {0:?}")]
    Twice(&'static str),
    /// Its quotes do not pair, or it breaks off.
    #[error("not a row of CSV")]
    Malformed,
    /// There are more columns than a trace can have.
    #[error("more than {0} columns")]
    TooMany(usize),
}
