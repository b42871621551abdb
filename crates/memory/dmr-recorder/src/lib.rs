//! A flight recorder of GPU memory: keeps the last events of each thread, and writes them when
//! something goes wrong, or on request.
//!
//! The crates of the memory report what they do through the functions of [`hooks`], from any
//! thread. While the recorder is off, each costs a load and a branch. While it is on, an event is
//! written to a ring of its thread: eight words on a cache line that no other thread writes. Its
//! time is a reading of the processor's cycle counter, which serves a burst of allocations and
//! frees. [`write_recording`] copies the rings while the threads go on, and writes a file of
//! [`dmr_recording`].
//!
//! There is one recorder in a process, for all of its devices. A forked child begins without one.
//!
//! ```
//! use dmr_recorder::{RecorderConfig, label, start, stop, write_recording};
//!
//! start(RecorderConfig::new())?;
//! {
//!     let _decode = label("decode");
//!     // allocations and launches in here have the label, and this place
//! }
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("run.rec");
//! write_recording(&path)?;
//! stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attached;
mod background;
mod clock;
pub mod config;
mod gate;
pub mod heap;
pub mod hooks;
mod label;
mod late;
mod notes;
mod panics;
pub mod peak;
pub mod query;
mod raw;
mod recorder;
mod ring;
mod signals;
mod sources;
mod sync;
mod thread;
mod ticker;
mod waits;
mod write;

pub use config::{RecorderConfig, StartError};
pub use gate::is_on;
pub use heap::{Heap, HeapPart, HeapSource, HeapState, register_heap};
pub use label::{LabelScope, label};
pub use late::{LateEvents, register_late_events};
pub use notes::{Refused, name_stream, register_stream_pool};
pub use peak::{Peak, TagBytes, peak};
pub use recorder::{
    RecorderStatus, Retrying, Written, gave_up, start, status, stop, write_recording,
    write_recording_to,
};
pub use thread::{Unrecorded, thread_number};
pub use write::stream_number;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
