//! Writes a recording: records are collected into chunks, and a chunk is written at once.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use crate::bytes::put;
use crate::checksum::{checksum, length_bytes};
use crate::context::Context;
use crate::kind::Kind;
use crate::reader::{Whole, read_whole};
use crate::{
    Event, LabelId, MAGIC, MAX_TEXT, MAX_TEXT_BYTES, MAX_TEXTS, Record, RegionState, SpanChange,
    SpillDirection, Start, StreamChange, StringId, Summary, VERSION,
};

/// Bytes from which on a chunk is written.
const FULL: usize = 64 << 10;

/// The text that stands for each new one when a file can have no more.
const OTHER: &str = "(other)";

/// Writes records to a file or another output.
///
/// A chunk is written by one call of `write_all` once it has 64 KiB, by [`flush`](Self::flush) and
/// by [`finish`](Self::finish). Dropped without these, the records of the last chunk are lost.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    /// Eight bytes for length and checksum, then the chunk.
    chunk: Vec<u8>,
    context: Context,
    ids: HashMap<Box<str>, StringId>,
    /// The texts of earlier sections.
    earlier_texts: usize,
    /// The bytes of all texts of the file.
    text_bytes: usize,
    summary: Summary,
}

impl<W: Write> Writer<W> {
    /// Begins a recording in an output that is empty, with the start of its first section.
    ///
    /// The texts of `start` are those of no recording yet, so they are ignored: pass them to
    /// [`with_names`](Self::with_names).
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn new(out: W, start: &Start) -> io::Result<Self> {
        Self::with_names(out, start, "", "")
    }

    /// Begins a recording as [`new`](Self::new) does, with the names of its clock and of the
    /// program.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn with_names(mut out: W, start: &Start, clock: &str, program: &str) -> io::Result<Self> {
        let mut header = [0; MAGIC.len() + 4];
        header[..MAGIC.len()].copy_from_slice(&MAGIC);
        header[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
        out.write_all(&header)?;
        let end = header.len() as u64;
        let whole = Whole { end, texts: 0, text_bytes: 0 };
        Self::section(out, &whole, start, [clock, program])
    }

    /// Begins a section behind those that the output has.
    fn section(out: W, whole: &Whole, start: &Start, names: [&str; 2]) -> io::Result<Self> {
        let mut writer = Self {
            out,
            chunk: vec![0; 8],
            context: Context::default(),
            ids: HashMap::new(),
            earlier_texts: whole.texts,
            text_bytes: whole.text_bytes,
            summary: Summary::default(),
        };
        let chunk = &mut writer.chunk;
        chunk.push(Kind::Start as u8);
        put(chunk, start.epoch_ns);
        put(chunk, start.process.into());
        put(chunk, start.clock_error_ppb);
        put(chunk, start.clock_step_ns);
        for name in names {
            let name = cut(name);
            put(chunk, name.len() as u64);
            chunk.extend_from_slice(name.as_bytes());
        }
        writer.flush()?;
        Ok(writer)
    }

    /// Returns the id of a text in this section, and defines it if it is new: cut at
    /// [`MAX_TEXT`] bytes. Once there are too many, returns that of `(other)`.
    pub fn intern(&mut self, text: &str) -> StringId {
        let text = cut(text);
        if text.is_empty() {
            return StringId::EMPTY;
        }
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        // Room for the two names of the section, and for "(other)".
        let is_full = self.earlier_texts + self.ids.len() + 4 > MAX_TEXTS
            || self.text_bytes + text.len() + 4 * MAX_TEXT > MAX_TEXT_BYTES;
        if is_full && text != OTHER {
            return self.intern(OTHER);
        }
        self.chunk.push(Kind::Text as u8);
        put(&mut self.chunk, text.len() as u64);
        self.chunk.extend_from_slice(text.as_bytes());
        self.text_bytes += text.len();
        // The names of the section have the first two ids.
        let id = StringId(self.ids.len() as u32 + 3);
        self.ids.insert(text.into(), id);
        id
    }

    /// Adds a record. Its texts are ids that this writer has returned. A
    /// [`Start`](Event::Start) is ignored: the writer has written it.
    ///
    /// # Errors
    ///
    /// Those of the output, when a chunk is full and is written.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        if matches!(record.event, Event::Start(_)) {
            return Ok(());
        }
        self.put_context(record);
        self.put_event(record);
        self.summary.events += 1;
        if self.chunk.len() >= FULL { self.flush() } else { Ok(()) }
    }

    /// Notes events that are missing, for the summary.
    pub fn add_lost(&mut self, events: u64) {
        self.summary.lost += events;
    }

    /// Writes the records that were added as one chunk, so that a reader finds them.
    ///
    /// # Errors
    ///
    /// Those of the output. Then the chunk may be in the file in part, and is lost.
    pub fn flush(&mut self) -> io::Result<()> {
        let chunk = &mut self.chunk;
        if chunk.len() > 8 {
            let length = length_bytes(chunk.len() as u32 - 8);
            let sum = checksum(length, &chunk[8..]);
            chunk[..4].copy_from_slice(&length);
            chunk[4..8].copy_from_slice(&sum.to_le_bytes());
            let written = self.out.write_all(chunk);
            chunk.truncate(8);
            self.context = Context::default();
            written?;
        }
        self.out.flush()
    }

    /// Ends the section with a summary, writes all of it, and returns the output.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.chunk.push(Kind::Summary as u8);
        put(&mut self.chunk, self.summary.events);
        put(&mut self.chunk, self.summary.lost);
        self.flush()?;
        Ok(self.out)
    }

    fn put_context(&mut self, record: &Record) {
        let chunk = &mut self.chunk;
        let context = &mut self.context;
        if record.thread != context.thread {
            chunk.push(Kind::Thread as u8);
            put(chunk, record.thread.into());
            context.thread = record.thread;
        }
        if record.device != context.device {
            chunk.push(Kind::Device as u8);
            put(chunk, record.device.into());
            context.device = record.device;
        }
        if record.query != context.query {
            chunk.push(Kind::Query as u8);
            put(chunk, record.query);
            context.query = record.query;
        }
        if record.label != context.label {
            let LabelId { name, site } = record.label;
            chunk.push(Kind::Label as u8);
            put(chunk, name.0.into());
            put(chunk, site.0.into());
            context.label = record.label;
        }
    }

    fn put_event(&mut self, record: &Record) {
        let time = record.time_ns;
        let out = &mut self.chunk;
        let context = &mut self.context;
        match record.event {
            Event::Start(_) => {}
            Event::Summary(Summary { events, lost }) => {
                out.push(Kind::Summary as u8);
                put(out, events);
                put(out, lost);
            }
            Event::Allocate(block) => context.put_block(out, Kind::Allocate, time, &block),
            Event::Free(block) => context.put_block(out, Kind::Free, time, &block),
            Event::Retire(block) => context.put_block(out, Kind::Retire, time, &block),
            Event::Grow(block) => context.put_block(out, Kind::Grow, time, &block),
            Event::Describe(block) => context.put_block(out, Kind::Describe, time, &block),
            Event::Spill { direction, block } => {
                context.put_block(out, Kind::Spill, time, &block);
                out.push(match direction {
                    SpillDirection::Out => 0,
                    SpillDirection::In => 1,
                });
            }
            Event::Ready { address, bytes, stream } => {
                context.put_head(out, Kind::Ready, 0, time);
                context.put_address(out, address);
                put(out, bytes);
                put(out, stream.0.into());
            }
            Event::Span { change, address, bytes, stream } => {
                context.put_head(out, Kind::Span, 0, time);
                context.put_address(out, address);
                put(out, bytes);
                put(out, stream.0.into());
                out.push(match change {
                    SpanChange::Reserve => 0,
                    SpanChange::Release => 1,
                    SpanChange::Map => 2,
                    SpanChange::Unmap => 3,
                    SpanChange::Move { .. } => 4,
                });
                if let SpanChange::Move { from } = change {
                    put(out, from);
                }
            }
            Event::Wait { stream, awaited, block, launch, work } => {
                context.put_head(out, Kind::Wait, 0, time);
                put(out, stream.0.into());
                put(out, awaited.0.into());
                put(out, block);
                put(out, launch);
                put(out, work);
            }
            Event::WaitLength { stream, awaited, block, launch, work, length_ns, age_ns } => {
                context.put_head(out, Kind::WaitLength, 0, time);
                put(out, stream.0.into());
                put(out, awaited.0.into());
                for number in [block, launch, work, length_ns, age_ns] {
                    put(out, number);
                }
            }
            Event::HostWait { stream, length_ns } => {
                context.put_head(out, Kind::HostWait, 0, time);
                put(out, stream.0.into());
                put(out, length_ns);
            }
            Event::Refused(refusal) => {
                context.put_head(out, Kind::Refused, 0, time);
                for number in [
                    refusal.bytes,
                    refusal.stream.0.into(),
                    refusal.tag.0.into(),
                    refusal.limit.0.into(),
                    refusal.limit_bytes,
                    refusal.used,
                    refusal.free,
                    refusal.largest_free,
                ] {
                    put(out, number);
                }
            }
            Event::GraphLaunch { stream, graph, tag } => {
                context.put_head(out, Kind::GraphLaunch, 0, time);
                put(out, stream.0.into());
                put(out, graph);
                put(out, tag.0.into());
            }
            Event::BudgetPeak { budget, bytes, limit } => {
                context.put_head(out, Kind::BudgetPeak, 0, time);
                put(out, budget.0.into());
                put(out, bytes);
                put(out, limit);
            }
            Event::Stream { change, stream, name } => {
                context.put_head(out, Kind::Stream, 0, time);
                put(out, stream.0.into());
                put(out, name.0.into());
                out.push(match change {
                    StreamChange::Created => 0,
                    StreamChange::Retired => 1,
                    StreamChange::Named => 2,
                });
            }
            Event::LabelBegin => context.put_head(out, Kind::LabelBegin, 0, time),
            Event::LabelEnd => context.put_head(out, Kind::LabelEnd, 0, time),
            Event::DeviceLost { message } => {
                context.put_head(out, Kind::DeviceLost, 0, time);
                put(out, message.0.into());
            }
            Event::SnapshotBegin { why, reserved } => {
                context.put_head(out, Kind::SnapshotBegin, 0, time);
                put(out, why.0.into());
                put(out, reserved);
            }
            Event::Region(region) => {
                context.put_head(out, Kind::Region, 0, time);
                context.put_address(out, region.address);
                put(out, region.bytes);
                put(out, region.stream.0.into());
                put(out, region.tag.0.into());
                out.push(match region.state {
                    RegionState::InUse => 0,
                    RegionState::Free => 1,
                    RegionState::Pending => 2,
                });
            }
            Event::SnapshotEnd => context.put_head(out, Kind::SnapshotEnd, 0, time),
        }
    }
}

impl Writer<File> {
    /// Creates a file, or empties one, and begins a recording in it.
    ///
    /// # Errors
    ///
    /// Those of the file.
    pub fn create(path: &Path, start: &Start, clock: &str, program: &str) -> io::Result<Self> {
        Self::with_names(File::create(path)?, start, clock, program)
    }

    /// Begins a section at the end of a recording: behind its last whole chunk, where its writer
    /// was killed. Begins a recording if there is no file, or if it is empty.
    ///
    /// # Errors
    ///
    /// Those of the file; [`InvalidData`](io::ErrorKind::InvalidData) if it is no recording, or is
    /// damaged before its last chunk. Then it is left as it is.
    pub fn append(path: &Path, start: &Start, clock: &str, program: &str) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path)?;
        if file.metadata()?.len() == 0 {
            return Self::with_names(file, start, clock, program);
        }
        let whole = read_whole(&file).map_err(|error| match error.source {
            Some(source) => source,
            None => io::Error::new(io::ErrorKind::InvalidData, error),
        })?;
        file.set_len(whole.end)?;
        // An older file may get records that its version does not have.
        file.seek(SeekFrom::Start(MAGIC.len() as u64))?;
        file.write_all(&VERSION.to_le_bytes())?;
        file.seek(SeekFrom::Start(whole.end))?;
        Self::section(file, &whole, start, [clock, program])
    }
}

/// Returns the longest part of a text that a file can have, cut between characters.
fn cut(text: &str) -> &str {
    let fits = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(fits).unwrap_or(0);
    &text[..end]
}
