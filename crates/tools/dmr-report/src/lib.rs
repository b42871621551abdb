//! Where the memory of a GPU program went: reads a recording, a log, a snapshot of PyTorch or the
//! findings of the simulated driver into one [`Model`], and shows it.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`source`] | [`open`]: a file of any format, as a model |
//! | [`model`] | [`Model`]: the events as columns, blocks, waits, requests that failed |
//! | [`builder`] | [`Builder`]: a model from events, for a source of one's own |
//! | [`analysis`] | the peak, the holes, the waits, the places of blocks |
//! | [`page`] | [`page::write`]: the page |
//! | [`export`] | the same for PyTorch's viewer and for Perfetto |
//! | [`text`] | [`text::report`]: the report for a terminal |
//! | [`diff`] | two files compared |
//! | [`findings`] | the findings of the simulated driver |
//! | [`error`] | [`ReportError`]: why a file cannot be reported on |
//!
//! ```
//! use dmr_report::builder::{Allocation, Builder};
//! use dmr_report::model::Source;
//!
//! let mut builder = Builder::new(Source::default());
//! let block = Allocation { key: 1, bytes: 4096, tag: "batch", ..Allocation::default() };
//! builder.allocate(0, &block)?;
//! builder.free(1_000, &block)?;
//! let model = builder.finish();
//! assert!(dmr_report::text::report(&model).contains("batch"));
//! # Ok::<(), dmr_report::ReportError>(())
//! ```
#![forbid(unsafe_code)]

pub mod analysis;
pub mod builder;
pub mod diff;
pub mod error;
pub mod export;
pub mod findings;
pub mod model;
pub mod names;
pub mod page;
pub mod source;
pub mod text;

pub use builder::Builder;
pub use error::ReportError;
pub use model::Model;
pub use source::open;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
