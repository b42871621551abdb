//! A log of every call: [`LoggingResource`], the sinks that take its records, and query ids.
//!
//! A [`LoggingLayer`] makes [`LoggingResource`]s. Each `allocate`, `deallocate`, `try_reap` and
//! `reap_pending`, whether it succeeds or fails, and each `try_grow` that makes its block larger or
//! fails, becomes one [`AllocationRecord`] in a [`LoggingSink`]:
//!
//! | sink | what it does with a record |
//! | --- | --- |
//! | [`CsvSink`] | writes it to a file, on a thread of its own; `dmr replay` and `dmr sort` read the file |
//! | [`InMemorySink`] | keeps it, up to a bound |
//! | [`BackgroundSink`] | passes it to another sink, on a thread of its own |
//! | [`NullSink`] | nothing |
//! | `TracingSink` | emits a `tracing` event (feature `tracing`) |
//!
//! The log never changes what a call returns: a record that a sink refuses, or panics over, is
//! counted in [`LoggingResource::dropped_records`].
//!
//! ```
//! use dmr_adaptors::logging::{CsvSink, LoggingLayer, with_query};
//! use std::sync::Arc;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("log.csv");
//! let sink = Arc::new(CsvSink::create(path)?);
//! let layer = LoggingLayer::new(sink.clone());
//! // `ResourceBuilder::new(base).layer(layer).build()`
//! with_query(7, || { /* allocations in here have 7 in the column `query_id` */ });
//! # drop(layer);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Order
//!
//! Each record has a time stamp: wall-clock nanoseconds since the epoch, read from a monotonic
//! clock that was set once, so it does not follow a wall clock that is set later. An allocation, a
//! growth and a reap read the clock when the call below has returned, a free before the call below.
//! So a free has an earlier stamp than the allocation that reuses its address, on whichever threads
//! they are made, as long as the clock ticks between the two. The stamps of one thread are never
//! equal.
//!
//! Records reach a sink in any order: the column `order` holds the stamp, and readers sort by it.

mod background;
mod clock;
mod csv;
mod memory;
mod query;
mod resource;
mod sink;
#[cfg(feature = "tracing")]
mod tracing;

pub use background::{BackgroundConfig, BackgroundSink, WhenFull};
pub use csv::{CsvFile, CsvSink};
pub use dmr_core::record::{AllocationRecord, RecordAction};
pub use memory::InMemorySink;
pub use query::{QueryScope, current_query, with_query};
pub use resource::{LoggingLayer, LoggingResource};
pub use sink::{LoggingSink, NullSink, SinkError};
#[cfg(feature = "tracing")]
pub use tracing::TracingSink;
