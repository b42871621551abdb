//! Sorts the lines of a log by order, in bounded memory.
//!
//! An external merge sort: lines are collected up to the size of a run, sorted in memory, and
//! written behind each other into one temporary file; the merge holds one buffer for each run and
//! takes the smallest of their next lines.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Seek, SeekFrom, Write};

use tempfile::SpooledTempFile;

/// The sort key of a line: its order, and for lines of equal order their position in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) order: u64,
    /// The number of the line.
    pub(crate) line: u64,
}

/// Collects lines, and writes them as sorted runs into a temporary file.
pub(crate) struct Sorter {
    text: Vec<u8>,
    lines: Vec<Line>,
    file: SpooledTempFile,
    runs: Vec<Run>,
    written: u64,
}

/// A line in the text of a sorter.
struct Line {
    key: Key,
    start: usize,
    length: usize,
}

/// A run is written when its lines have this many bytes, or there are this many of them. Up to this
/// many bytes of runs stay in memory, so that a small log needs no file.
const RUN_BYTES: usize = 16 << 20;
const RUN_LINES: usize = 1 << 17;

impl Sorter {
    pub(crate) fn new() -> Self {
        let file = SpooledTempFile::new(RUN_BYTES);
        Self { text: Vec::new(), lines: Vec::new(), file, runs: Vec::new(), written: 0 }
    }

    pub(crate) fn push(&mut self, key: Key, line: &[u8]) -> io::Result<()> {
        if self.text.len() + line.len() > RUN_BYTES || self.lines.len() == RUN_LINES {
            self.write_run()?;
        }
        self.lines.push(Line { key, start: self.text.len(), length: line.len() });
        self.text.extend_from_slice(line);
        Ok(())
    }

    /// Returns the lines in sorted order.
    pub(crate) fn finish(mut self) -> io::Result<Merge> {
        self.write_run()?;
        let mut merge = Merge { file: self.file, runs: self.runs, next: BinaryHeap::new() };
        for run in 0..merge.runs.len() {
            merge.advance(run)?;
        }
        Ok(merge)
    }

    fn write_run(&mut self) -> io::Result<()> {
        self.lines.sort_unstable_by_key(|line| line.key);
        let start = self.written;
        let mut buffer = Vec::with_capacity(2 * BUFFER);
        for &Line { key, start: at, length } in &self.lines {
            let head: Head = [key.order, key.line, length as u64].map(u64::to_le_bytes);
            buffer.extend_from_slice(head.as_flattened());
            buffer.extend_from_slice(&self.text[at..at + length]);
            if buffer.len() >= BUFFER {
                self.file.write_all(&buffer)?;
                self.written += buffer.len() as u64;
                buffer.clear();
            }
        }
        self.file.write_all(&buffer)?;
        self.written += buffer.len() as u64;
        self.runs.push(Run { next: start, end: self.written, ..Run::default() });
        self.text.clear();
        self.lines.clear();
        Ok(())
    }
}

/// The head of a line in a run: order, line number and length.
type Head = [[u8; 8]; 3];

/// Merges the runs of a temporary file.
pub(crate) struct Merge {
    file: SpooledTempFile,
    runs: Vec<Run>,
    /// The next line of each run, which is at the start of its buffer.
    next: BinaryHeap<Reverse<(Key, usize)>>,
}

/// A part of the file, in sorted order.
#[derive(Default)]
struct Run {
    /// The part that was not read yet: the positions in the file of its first byte and of its end.
    next: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The offset of the next line in the buffer, and its length.
    at: usize,
    length: usize,
}

/// Bytes that are read or written at once. Each run has a buffer of this size.
const BUFFER: usize = 16 << 10;

impl Merge {
    /// Puts the next line into `line`, and returns its number; `None` after the last.
    pub(crate) fn next(&mut self, line: &mut Vec<u8>) -> io::Result<Option<u64>> {
        let Some(Reverse((key, nth))) = self.next.pop() else { return Ok(None) };
        let run = &mut self.runs[nth];
        line.clear();
        line.extend_from_slice(&run.buffer[run.at..run.at + run.length]);
        run.at += run.length;
        self.advance(nth)?;
        Ok(Some(key.line))
    }

    /// Makes the next line of a run one of those to choose from, if there is one.
    fn advance(&mut self, nth: usize) -> io::Result<()> {
        let run = &mut self.runs[nth];
        if run.at == run.buffer.len() && run.next == run.end {
            run.buffer = Vec::new();
            return Ok(());
        }
        let mut head = Head::default();
        let bytes = head.as_flattened_mut();
        run.fill(bytes.len(), &mut self.file)?;
        bytes.copy_from_slice(&run.buffer[run.at..run.at + bytes.len()]);
        run.at += bytes.len();
        let [order, line, length] = head.map(u64::from_le_bytes);
        run.length = length as usize;
        run.fill(run.length, &mut self.file)?;
        self.next.push(Reverse((Key { order, line }, nth)));
        Ok(())
    }
}

impl Run {
    /// Makes sure that the buffer has `bytes` more bytes.
    fn fill(&mut self, bytes: usize, file: &mut SpooledTempFile) -> io::Result<()> {
        if self.buffer.len() - self.at >= bytes {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let missing = (bytes - self.buffer.len()).max(BUFFER) as u64;
        let read = missing.min(self.end - self.next);
        file.seek(SeekFrom::Start(self.next))?;
        Read::take(&mut *file, read).read_to_end(&mut self.buffer)?;
        self.next += read;
        if self.buffer.len() < bytes { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}
