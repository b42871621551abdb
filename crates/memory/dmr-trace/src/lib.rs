//! Allocation traces of GPU programs: read them, write them, replay them on any resource.
//!
//! A trace is a CSV file, gzip or not, with one row per call: what was allocated and freed, on
//! which stream. [`TraceReader`] reads it in the order of the calls, in bounded memory, whatever
//! its size; [`Replay`] makes the same calls on a
//! [`DeviceMemoryResource`](dmr_core::DeviceMemoryResource), times each of them, checks the blocks,
//! and returns a [`Summary`].
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`reader`] | [`TraceReader`]: sorted rows, from the project's own format and from RMM's log |
//! | [`writer`] | [`RecordWriter`]: both formats |
//! | [`row`] | [`RowProblem`]: what is wrong with a row that cannot be read |
//! | [`replay`] | [`Replay`]: the calls of a trace, made again, timed and checked |
//! | [`summary`] | [`Summary`]: what a replay found, and its table |
//! | [`noted`] | [`Noted`]: a count, and the first few of what was counted |
//! | [`error`] | [`TraceError`]: why a trace cannot be read |
//!
//! ```
//! use dmr_trace::TraceReader;
//!
//! let trace = "action,ptr,bytes,stream\nallocate,0x1,4096,0\nfree,0x1,,0\n";
//! let rows = TraceReader::new("example", trace.as_bytes())?.collect::<Result<Vec<_>, _>>()?;
//! assert_eq!((rows[0].line, rows[0].record.bytes), (2, 4096));
//! # Ok::<(), dmr_trace::TraceError>(())
//! ```
#![forbid(unsafe_code)]

pub mod error;
mod header;
mod lines;
pub mod noted;
mod output;
pub mod reader;
pub mod replay;
pub mod row;
mod sort;
mod source;
pub mod summary;
mod table;
pub mod writer;

pub use error::TraceError;
pub use noted::Noted;
pub use output::refuse_overwrite;
pub use reader::{BadRow, TraceReader, TraceRow};
pub use replay::{Replay, ReplayError, ReplayObserver, ReplayOptions, ReplayStreams};
pub use row::RowProblem;
pub use summary::Summary;
pub use writer::{RecordWriter, TraceFormat};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
