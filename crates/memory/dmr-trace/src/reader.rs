//! Reads a trace row by row, in the order of its calls, in bounded memory.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::iter::FusedIterator;
use std::path::Path;

use csv_core::ReadRecordResult;
use dmr_core::AllocationRecord;
use serde::Serialize;

use crate::error::HeaderProblem;
use crate::header::{Column, Header};
use crate::lines::{LineError, Lines, MAX_LINE};
use crate::row::{Fields, RowParser, shown};
use crate::sort::{Key, Merge, Sorter};
use crate::source::{self, Consumed};
use crate::{Noted, RowProblem, TraceError};

/// An iterator over the rows of a trace, in the order of the calls.
///
/// Reads the project's own CSV (columns found by header, in any order; needed are `action`, `ptr`
/// and `bytes`) and RMM's log (`Thread,Time,Action,Pointer,Size,Stream`), plain or gzip. Blank
/// lines and lines that start with `#` are skipped.
///
/// A trace with a column `order` is sorted by it before its first row is returned; rows of one
/// order stay in the order of the file. Without that column the order is that of the file.
///
/// Memory stays bounded whatever the file holds: a line has at most 64 KiB, of bad rows the first
/// [`Noted::KEPT`] are kept, and sorting takes 64 MiB and a thousandth of the file, and for a log
/// of more than 16 MiB a temporary file of its size.
///
/// A row that cannot be read is counted ([`bad_rows`](Self::bad_rows)) and skipped. If a trace
/// cannot be read any further, the rows before are returned and then the error; after it there are
/// no more rows.
pub struct TraceReader {
    trace: String,
    size: Option<u64>,
    consumed: Consumed,
    lines: Lines,
    csv: Csv,
    header: Header,
    parser: RowParser,
    rows: u64,
    bad_rows: Noted<BadRow>,
    /// The rows of a trace with a column `order`, from the first call of `next` on.
    sorted: Option<Sorted>,
    ended: bool,
}

/// The rows of a trace in sorted order, and then the error at which reading stopped.
struct Sorted {
    merge: Merge,
    line: Vec<u8>,
    error: Option<TraceError>,
}

/// A row of a trace and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRow {
    /// The line, from 1 (the header's, as a rule).
    pub line: u64,
    /// The call. Failed calls and reaps are rows too.
    pub record: AllocationRecord,
}

/// A row that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadRow {
    /// The line, from 1.
    pub line: u64,
    /// The problem.
    #[serde(serialize_with = "crate::summary::as_text")]
    pub problem: RowProblem,
}

impl fmt::Display for BadRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.problem)
    }
}

impl TraceReader {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or read, or its first line is not the header of a trace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TraceError> {
        let trace = path.as_ref().display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((metadata, file)) => {
                let mut reader = Self::new(trace, file)?;
                reader.size = metadata.is_file().then_some(metadata.len());
                Ok(reader)
            }
            Err(source) => Err(TraceError::Open { trace, source }),
        }
    }

    /// Reads the header from `read`; messages name it `trace`.
    ///
    /// # Errors
    ///
    /// It cannot be read, or its first line is not the header of a trace.
    pub fn new(
        trace: impl Into<String>,
        read: impl Read + Send + 'static,
    ) -> Result<Self, TraceError> {
        let trace = trace.into();
        let (bytes, consumed) = match source::open(read) {
            Ok(opened) => opened,
            Err(source) => return Err(TraceError::Read { trace, line: 1, source }),
        };
        let mut lines = Lines::new(bytes);
        let mut csv = Csv::new();
        let header = loop {
            let line = match lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Err(TraceError::Empty { trace }),
                Err(error) => return Err(cannot_read(trace, lines.number(), error)),
            };
            if is_skipped(line) {
                continue;
            }
            let found = match csv.split(line) {
                Ok(fields) => Header::find(&fields),
                Err(SplitError::TooManyFields) => Err(HeaderProblem::TooMany(Header::MAX_FIELDS)),
                Err(_) => Err(HeaderProblem::Malformed),
            };
            match found {
                Ok(header) => break header,
                Err(problem) => {
                    let header = shown(line.trim_ascii_end());
                    let line = lines.number();
                    return Err(TraceError::Header { trace, line, problem, header });
                }
            }
        };
        Ok(Self {
            trace,
            size: None,
            consumed,
            lines,
            csv,
            header,
            parser: RowParser::default(),
            rows: 0,
            bad_rows: Noted::default(),
            sorted: None,
            ended: false,
        })
    }

    /// Returns the name of the trace in messages: the path of a file.
    #[must_use]
    pub fn trace(&self) -> &str {
        &self.trace
    }

    /// Returns how many rows were read so far, bad ones included.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the rows that could not be read.
    #[must_use]
    pub const fn bad_rows(&self) -> &Noted<BadRow> {
        &self.bad_rows
    }

    /// Returns the bytes that were read from the file so far: of a gzip file, compressed ones.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.consumed.get()
    }

    /// Returns the size of the file in bytes; `None` if it is not a file.
    #[must_use]
    pub const fn bytes_total(&self) -> Option<u64> {
        self.size
    }

    /// Returns the next row of the file that can be read; `None` at the end.
    fn read_row(&mut self) -> Result<Option<TraceRow>, TraceError> {
        loop {
            let line = match self.lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(error) => {
                    return Err(cannot_read(self.trace.clone(), self.lines.number(), error));
                }
            };
            if is_skipped(line) {
                continue;
            }
            self.rows += 1;
            let parsed = parse(&mut self.csv, &self.header, &mut self.parser, line);
            let line = self.lines.number();
            match parsed {
                Ok(record) => return Ok(Some(TraceRow { line, record })),
                Err(problem) => self.bad_rows.note(BadRow { line, problem }),
            }
        }
    }

    /// Returns the next row in sorted order.
    fn sorted_row(&mut self) -> Result<Option<TraceRow>, TraceError> {
        if self.sorted.is_none() {
            self.sorted = Some(self.sort()?);
        }
        let Some(sorted) = &mut self.sorted else { return Ok(None) };
        let line = match sorted.merge.next(&mut sorted.line) {
            Ok(Some(line)) => line,
            Ok(None) => return sorted.error.take().map_or(Ok(None), Err),
            Err(source) => return Err(cannot_sort(&self.trace, source)),
        };
        // It was parsed before it was sorted.
        let record = parse(&mut self.csv, &self.header, &mut self.parser, &sorted.line);
        Ok(record.ok().map(|record| TraceRow { line, record }))
    }

    /// Reads the whole file and sorts its lines. Lines and not records: their size is bounded, and
    /// they are what the temporary file stores. So each row is parsed twice.
    fn sort(&mut self) -> Result<Sorted, TraceError> {
        let mut sorter = Sorter::new();
        let error = loop {
            match self.read_row() {
                Ok(Some(TraceRow { line, record })) => {
                    let key = Key { order: record.order, line };
                    let pushed = sorter.push(key, self.lines.last());
                    pushed.map_err(|source| cannot_sort(&self.trace, source))?;
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        // The rows are parsed again, from the first: the parser must not continue from the last.
        self.parser = RowParser::default();
        let merge = sorter.finish().map_err(|source| cannot_sort(&self.trace, source))?;
        Ok(Sorted { merge, line: Vec::new(), error })
    }
}

fn parse(
    csv: &mut Csv,
    header: &Header,
    parser: &mut RowParser,
    line: &[u8],
) -> Result<AllocationRecord, RowProblem> {
    let expected = header.fields();
    match csv.split(line) {
        Ok(fields) if fields.ends.len() == expected => parser.parse(header, &fields),
        Ok(_) | Err(SplitError::TooManyFields) => Err(RowProblem::FieldCount { expected }),
        Err(SplitError::OpenQuote) => Err(RowProblem::OpenQuote),
        Err(SplitError::LineBreak) => Err(RowProblem::LineBreak),
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRow, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let row = match self.header.index(Column::Order) {
            Some(_) => self.sorted_row(),
            None => self.read_row(),
        };
        self.ended = !matches!(row, Ok(Some(_)));
        row.transpose()
    }
}

impl FusedIterator for TraceReader {}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader")
            .field("trace", &self.trace)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

fn is_skipped(line: &[u8]) -> bool {
    matches!(line.trim_ascii().first(), None | Some(b'#'))
}

fn cannot_read(trace: String, line: u64, error: LineError) -> TraceError {
    match error {
        LineError::Io(source) => TraceError::Read { trace, line, source },
        LineError::TooLong => TraceError::LineTooLong { trace, line },
    }
}

fn cannot_sort(trace: &str, source: io::Error) -> TraceError {
    let folder = std::env::temp_dir().display().to_string();
    TraceError::Sort { trace: trace.to_owned(), folder, source }
}

/// Splits lines into fields, in its own buffers.
struct Csv {
    parser: csv_core::Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
}

enum SplitError {
    OpenQuote,
    LineBreak,
    TooManyFields,
}

impl Csv {
    fn new() -> Self {
        let parser = csv_core::Reader::new();
        // A field is never longer than what it was parsed from.
        Self { parser, text: vec![0; MAX_LINE + 1], ends: vec![0; Header::MAX_FIELDS] }
    }

    /// Splits a line, which ends in `\n`. Inside quotes that is data, so the record of an open
    /// quote does not end.
    fn split(&mut self, line: &[u8]) -> Result<Fields<'_>, SplitError> {
        self.parser.reset();
        let (result, read, _, ends) = self.parser.read_record(line, &mut self.text, &mut self.ends);
        match result {
            ReadRecordResult::Record if read == line.len() => {
                Ok(Fields { text: &self.text, ends: &self.ends[..ends] })
            }
            ReadRecordResult::Record | ReadRecordResult::End => Err(SplitError::LineBreak),
            ReadRecordResult::OutputEndsFull => Err(SplitError::TooManyFields),
            ReadRecordResult::InputEmpty | ReadRecordResult::OutputFull => {
                Err(SplitError::OpenQuote)
            }
        }
    }
}
