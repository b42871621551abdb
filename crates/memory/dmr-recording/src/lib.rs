//! Recordings of GPU memory: which blocks were allocated and freed, which streams waited for which
//! and because of which block, what was refused, and what the heap looked like.
//!
//! A recording is a binary file, described in `docs/src/recording-format.md`. [`Writer`] appends
//! to one, [`Reader`] reads one in bounded memory, up to its last whole chunk if its writer was
//! killed.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`event`] | [`Record`] and [`Event`]: what a recording is made of |
//! | [`writer`] | [`Writer`] |
//! | [`reader`] | [`Reader`] |
//! | [`error`] | [`ReadError`]: which byte of a file cannot be read, and why |
//!
//! ```
//! use dmr_recording::{Block, Event, Reader, Record, Start, StreamNumber, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), &Start::default())?;
//! let tag = writer.intern("kv-cache");
//! let stream = StreamNumber::new(1, 3);
//! let block = Block { address: 0x7000, bytes: 4096, generation: 1, stream, tag };
//! writer.write(&Record { time_ns: 250, ..Record::new(Event::Allocate(block)) })?;
//! let file = writer.finish()?;
//!
//! let mut reader = Reader::new(&file[..])?;
//! let records = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(records[1].event, Event::Allocate(block));
//! assert_eq!(reader.text(tag), "kv-cache");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod bytes;
mod checksum;
mod context;
pub mod error;
pub mod event;
mod kind;
pub mod reader;
mod strings;
pub mod writer;

pub use error::{Problem, ReadError};
pub use event::{
    Block, Event, LabelId, Record, Refusal, Region, RegionState, SpanChange, SpillDirection, Start,
    StreamChange, StreamNumber, StringId, Summary,
};
pub use reader::Reader;
pub use writer::Writer;

/// The first bytes of a recording. The last three show damage by a transfer as text.
pub const MAGIC: [u8; 8] = *b"\x89dmrec\r\n";

/// The version of the format that this crate writes. A later one has more kinds of records.
pub const VERSION: u32 = 2;

/// The oldest version that this crate reads, and appends to.
pub const OLDEST_VERSION: u32 = 1;

/// The most bytes of a chunk, without its length and checksum.
pub const MAX_CHUNK: usize = 1 << 20;

/// The most bytes of a text; a longer one is cut between characters when it is written.
pub const MAX_TEXT: usize = 1024;

/// The most texts of a file, and the most bytes of all of them.
pub const MAX_TEXTS: usize = 1 << 17;

/// The most bytes of all texts of a file.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
