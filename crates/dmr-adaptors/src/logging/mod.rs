//! A log of every call: [`LoggingResource`], the sinks that take its records, and query ids.
//!
//! A [`LoggingLayer`] puts a [`LoggingResource`] around any resource. Each `allocate`,
//! `deallocate`, `try_reap` and `reap_pending`, whether it succeeds or fails, and each `try_grow` that
//! makes its block larger or fails, becomes one [`LogRecord`] in a [`LoggingSink`]:
//!
//! | sink | what it does with a record |
//! | --- | --- |
//! | [`CsvSink`] | writes it to a file, on a thread of its own; `dmr replay` reads the file |
//! | [`InMemorySink`] | keeps it, up to a bound |
//! | [`BackgroundSink`] | hands it to another sink, on a thread of its own |
//! | [`NullSink`] | nothing |
//! | `TracingSink` | emits a `tracing` event (feature `tracing`) |
//!
//! The log never changes what a call answers: a record that a sink refuses, or panics over, is
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
//! with_query(7, || { /* what is allocated in here has 7 in the column `query_id` */ });
//! # drop(layer);
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Time
//!
//! The column `time_ns` is wall-clock nanoseconds since the epoch, read from a monotonic clock
//! that was set once: it never goes back, and does not follow a wall clock that is set later. An
//! allocation has the time at which it returned, a free that at which it began, so that in time
//! order a free stands before whatever takes its address over. A growth and a reap have the time at
//! which they returned.

mod background;
mod calls;
mod csv;
mod file;
mod memory;
mod query;
mod record;
mod resource;
mod rmm;
mod sink;
#[cfg(feature = "tracing")]
mod tracing;

pub use background::{BackgroundConfig, BackgroundSink, WhenFull};
pub use csv::{CsvSink, CsvSinkConfig, LogFormat};
pub use memory::InMemorySink;
pub use query::{QueryScope, current_query, with_query};
pub use record::{LogAction, LogRecord, LogResult};
pub use resource::{LoggingLayer, LoggingResource};
pub use sink::{LoggingSink, NullSink, SinkError};
#[cfg(feature = "tracing")]
pub use tracing::TracingSink;
