//! Reads a recording, in bounded memory.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::bytes::Cursor;
use crate::checksum::{checksum, length_of};
use crate::context::{Context, Same};
use crate::kind::Kind;
use crate::strings::Strings;
use crate::{
    Event, LabelId, MAGIC, MAX_CHUNK, MAX_TEXT, OLDEST_VERSION, Problem, ReadError, Record,
    Refusal, Region, RegionState, SpanChange, SpillDirection, Start, StreamChange, StreamNumber,
    StringId, Summary, VERSION,
};

/// Reads the records of a file or another input, in the order in which they were written.
///
/// It is an iterator, which ends after its first error. It keeps one chunk and the texts of the
/// file: at most about 20 MiB, whatever the file holds. Texts are numbered through the sections of
/// a file, so an id stays valid; the same text of two sections has two ids.
#[derive(Debug)]
pub struct Reader<R> {
    input: BufReader<R>,
    /// The chunk, and its offset in the file, behind its length and checksum.
    chunk: Cursor,
    chunk_at: u64,
    /// The end of the last chunk that was read as a whole.
    whole: u64,
    context: Context,
    strings: Strings,
    has_start: bool,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Begins to read: looks for the mark and the version of the format.
    ///
    /// # Errors
    ///
    /// [`NoMagic`](Problem::NoMagic), [`Version`](Problem::Version) or [`Io`](Problem::Io).
    pub fn new(input: R) -> Result<Self, ReadError> {
        let mut input = BufReader::with_capacity(64 << 10, input);
        let mut header = [0; MAGIC.len() + 4];
        let len = read_up_to(&mut input, &mut header).map_err(|error| ReadError::io(0, error))?;
        let same = header.iter().zip(&MAGIC).take(len).take_while(|(found, mark)| found == mark);
        let same = same.count();
        if same < MAGIC.len() {
            return Err(ReadError::new(same as u64, Problem::NoMagic));
        }
        let at = MAGIC.len() as u64;
        if len < header.len() {
            return Err(ReadError::new(len as u64, Problem::Truncated));
        }
        let version = header.last_chunk().map_or(0, |version| u32::from_le_bytes(*version));
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(ReadError::new(at, Problem::Version(version)));
        }
        let start = header.len() as u64;
        Ok(Self {
            input,
            chunk: Cursor::default(),
            chunk_at: start,
            whole: start,
            context: Context::default(),
            strings: Strings::default(),
            has_start: false,
            has_ended: false,
        })
    }

    /// Returns the next record; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. After it there are no more records.
    pub fn next_record(&mut self) -> Result<Option<Record>, ReadError> {
        if self.has_ended {
            return Ok(None);
        }
        let read = self.read();
        self.has_ended = !matches!(read, Ok(Some(_)));
        read
    }

    /// Returns a text; empty for an id that the file has not defined so far.
    #[must_use]
    pub fn text(&self, id: StringId) -> &str {
        self.strings.get(id)
    }

    /// Returns the number of texts so far, whose ids are 1 to this.
    #[must_use]
    pub fn texts(&self) -> usize {
        self.strings.len()
    }

    /// Returns the offset behind the last chunk that was read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.whole
    }

    fn read(&mut self) -> Result<Option<Record>, ReadError> {
        loop {
            if self.chunk.is_at_end() && !self.next_chunk()? {
                return Ok(None);
            }
            let at = self.chunk_at + self.chunk.at as u64;
            match self.decode() {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) => {}
                Err(problem) => {
                    // The byte at which the record could not be read further.
                    let at = at.max(self.chunk_at + self.chunk.at as u64);
                    return Err(ReadError::new(at, problem));
                }
            }
        }
    }

    /// Reads the next chunk. Returns `false` at the end of the file.
    fn next_chunk(&mut self) -> Result<bool, ReadError> {
        let at = self.whole;
        let mut head = [0; 8];
        let failed = |error| ReadError::io(at, error);
        let len = read_up_to(&mut self.input, &mut head).map_err(failed)?;
        if len == 0 {
            return Ok(false);
        }
        if len < head.len() {
            return Err(ReadError::new(at + len as u64, Problem::Truncated));
        }
        let [a, b, c, d, sum @ ..] = head;
        let length = length_of([a, b, c, d]).ok_or(ReadError::new(at, Problem::DamagedLength))?;
        if length == 0 || length as usize > MAX_CHUNK {
            return Err(ReadError::new(at, Problem::ChunkLength(length)));
        }
        let bytes = &mut self.chunk.bytes;
        bytes.clear();
        bytes.resize(length as usize, 0);
        let len = read_up_to(&mut self.input, bytes).map_err(failed)?;
        self.chunk_at = at + head.len() as u64;
        if len < bytes.len() {
            bytes.clear();
            self.chunk.at = 0;
            return Err(ReadError::new(self.chunk_at + len as u64, Problem::Truncated));
        }
        if checksum([a, b, c, d], bytes) != u32::from_le_bytes(sum) {
            bytes.clear();
            self.chunk.at = 0;
            return Err(ReadError::new(at, Problem::Checksum));
        }
        self.chunk.at = 0;
        self.whole = self.chunk_at + u64::from(length);
        self.context = Context::default();
        Ok(true)
    }

    /// Decodes what stands next: a record with an event, or one that only changes the context.
    fn decode(&mut self) -> Result<Option<Record>, Problem> {
        let Self { chunk, context, strings, .. } = self;
        let head = chunk.byte()?;
        let kind = Kind::of(head).ok_or(Problem::Kind(head & Kind::MASK))?;
        let same = Same::of(head);
        if !self.has_start && kind != Kind::Start {
            return Err(Problem::NoStart);
        }
        match kind {
            Kind::Text => {
                read_text(chunk, strings)?;
                return Ok(None);
            }
            Kind::Thread => {
                context.thread = chunk.number_as()?;
                return Ok(None);
            }
            Kind::Device => {
                context.device = chunk.number_as()?;
                return Ok(None);
            }
            Kind::Query => {
                context.query = chunk.number()?;
                return Ok(None);
            }
            Kind::Label => {
                let name = read_id(chunk, strings)?;
                let site = read_id(chunk, strings)?;
                context.label = LabelId { name, site };
                return Ok(None);
            }
            Kind::Start | Kind::Summary => {}
            _ => context.read_time(chunk)?,
        }
        let event = match kind {
            Kind::Text | Kind::Thread | Kind::Device | Kind::Query | Kind::Label => {
                return Ok(None);
            }
            Kind::Start => {
                self.has_start = true;
                *context = Context::default();
                strings.begin_section();
                Event::Start(read_start(chunk, strings)?)
            }
            Kind::Summary => {
                let events = chunk.number()?;
                let lost = chunk.number()?;
                Event::Summary(Summary { events, lost })
            }
            Kind::Allocate => Event::Allocate(context.read_block(chunk, same, strings)?),
            Kind::Free => Event::Free(context.read_block(chunk, same, strings)?),
            Kind::Retire => Event::Retire(context.read_block(chunk, same, strings)?),
            Kind::Grow => Event::Grow(context.read_block(chunk, same, strings)?),
            Kind::Describe => Event::Describe(context.read_block(chunk, same, strings)?),
            Kind::Spill => {
                let block = context.read_block(chunk, same, strings)?;
                let direction = match chunk.byte()? {
                    0 => SpillDirection::Out,
                    1 => SpillDirection::In,
                    value => return Err(Problem::Value { field: "direction of a spill", value }),
                };
                Event::Spill { direction, block }
            }
            Kind::Ready => {
                let address = context.read_address(chunk)?;
                let bytes = chunk.number()?;
                Event::Ready { address, bytes, stream: read_stream(chunk)? }
            }
            Kind::Span => {
                let address = context.read_address(chunk)?;
                let bytes = chunk.number()?;
                let stream = read_stream(chunk)?;
                let change = match chunk.byte()? {
                    0 => SpanChange::Reserve,
                    1 => SpanChange::Release,
                    2 => SpanChange::Map,
                    3 => SpanChange::Unmap,
                    4 => SpanChange::Move { from: chunk.number()? },
                    value => return Err(Problem::Value { field: "change of a span", value }),
                };
                Event::Span { change, address, bytes, stream }
            }
            Kind::Wait => {
                let stream = read_stream(chunk)?;
                let awaited = read_stream(chunk)?;
                let block = chunk.number()?;
                let launch = chunk.number()?;
                Event::Wait { stream, awaited, block, launch, work: chunk.number()? }
            }
            Kind::WaitLength => read_wait_length(chunk)?,
            Kind::HostWait => {
                let stream = read_stream(chunk)?;
                Event::HostWait { stream, length_ns: chunk.number()? }
            }
            Kind::Refused => Event::Refused(read_refusal(chunk, strings)?),
            Kind::GraphLaunch => {
                let stream = read_stream(chunk)?;
                let graph = chunk.number()?;
                Event::GraphLaunch { stream, graph, tag: read_id(chunk, strings)? }
            }
            Kind::BudgetPeak => {
                let budget = read_id(chunk, strings)?;
                let bytes = chunk.number()?;
                Event::BudgetPeak { budget, bytes, limit: chunk.number()? }
            }
            Kind::Stream => {
                let stream = read_stream(chunk)?;
                let name = read_id(chunk, strings)?;
                let change = match chunk.byte()? {
                    0 => StreamChange::Created,
                    1 => StreamChange::Retired,
                    2 => StreamChange::Named,
                    value => return Err(Problem::Value { field: "change of a stream", value }),
                };
                Event::Stream { change, stream, name }
            }
            Kind::LabelBegin => Event::LabelBegin,
            Kind::LabelEnd => Event::LabelEnd,
            Kind::DeviceLost => Event::DeviceLost { message: read_id(chunk, strings)? },
            Kind::SnapshotBegin => {
                let why = read_id(chunk, strings)?;
                Event::SnapshotBegin { why, reserved: chunk.number()? }
            }
            Kind::Region => {
                let address = context.read_address(chunk)?;
                let bytes = chunk.number()?;
                let stream = read_stream(chunk)?;
                let tag = read_id(chunk, strings)?;
                let state = match chunk.byte()? {
                    0 => RegionState::InUse,
                    1 => RegionState::Free,
                    2 => RegionState::Pending,
                    value => return Err(Problem::Value { field: "state of a region", value }),
                };
                Event::Region(Region { address, bytes, state, stream, tag })
            }
            Kind::SnapshotEnd => Event::SnapshotEnd,
        };
        let Context { time_ns, thread, device, query, label, .. } = *context;
        Ok(Some(Record { time_ns, thread, device, query, label, event }))
    }
}

impl Reader<File> {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        Self::new(File::open(path).map_err(|error| ReadError::io(0, error))?)
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

/// The whole chunks of a recording.
pub(crate) struct Whole {
    /// The offset behind the last of them.
    pub(crate) end: u64,
    /// The number of their texts.
    pub(crate) texts: usize,
    /// The bytes of these.
    pub(crate) text_bytes: usize,
}

/// Reads the whole chunks of a recording.
///
/// # Errors
///
/// [`ReadError`] if it cannot be read up to its last chunk.
pub(crate) fn read_whole(file: &File) -> Result<Whole, ReadError> {
    let len = file.metadata().map_err(|error| ReadError::io(0, error))?.len();
    let mut reader = Reader::new(file)?;
    loop {
        match reader.next_record() {
            Ok(Some(_)) => continue,
            Ok(None) | Err(ReadError { problem: Problem::Truncated, .. }) => {}
            // The last chunk of a file may have been written in part, within its length.
            Err(ReadError { problem: Problem::Checksum, .. }) if reader.is_last(len) => {}
            Err(error) => return Err(error),
        }
        let texts = reader.strings.len();
        let text_bytes = reader.strings.bytes();
        return Ok(Whole { end: reader.whole, texts, text_bytes });
    }
}

impl Reader<&File> {
    /// Returns whether the chunk that was not whole is the last of the file of `len` bytes.
    fn is_last(&mut self, len: u64) -> bool {
        let left = io::copy(&mut self.input, &mut io::sink());
        left.is_ok_and(|left| left == 0) && len > self.whole
    }
}

fn read_start(from: &mut Cursor, strings: &mut Strings) -> Result<Start, Problem> {
    let epoch_ns = from.number()?;
    let process = from.number_as()?;
    let clock_error_ppb = from.number()?;
    let clock_step_ns = from.number()?;
    read_text(from, strings)?;
    read_text(from, strings)?;
    let clock = strings.in_file(1)?;
    let program = strings.in_file(2)?;
    Ok(Start { epoch_ns, process, clock, clock_error_ppb, clock_step_ns, program })
}

fn read_wait_length(from: &mut Cursor) -> Result<Event, Problem> {
    let stream = read_stream(from)?;
    let awaited = read_stream(from)?;
    let block = from.number()?;
    let launch = from.number()?;
    let work = from.number()?;
    let length_ns = from.number()?;
    let age_ns = from.number()?;
    Ok(Event::WaitLength { stream, awaited, block, launch, work, length_ns, age_ns })
}

fn read_refusal(from: &mut Cursor, strings: &Strings) -> Result<Refusal, Problem> {
    let bytes = from.number()?;
    let stream = read_stream(from)?;
    let tag = read_id(from, strings)?;
    let limit = read_id(from, strings)?;
    let limit_bytes = from.number()?;
    let used = from.number()?;
    let free = from.number()?;
    let largest_free = from.number()?;
    Ok(Refusal { bytes, stream, tag, limit, limit_bytes, used, free, largest_free })
}

fn read_text(from: &mut Cursor, strings: &mut Strings) -> Result<(), Problem> {
    let len: usize = from.number_as()?;
    if len > MAX_TEXT {
        return Err(Problem::TooLarge);
    }
    strings.push(from.slice(len)?)
}

#[inline]
fn read_id(from: &mut Cursor, strings: &Strings) -> Result<StringId, Problem> {
    strings.in_file(from.number()?)
}

#[inline]
fn read_stream(from: &mut Cursor) -> Result<StreamNumber, Problem> {
    from.number_as().map(StreamNumber)
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
