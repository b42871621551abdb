//! Lines of bounded length, numbered from 1.

use std::io::{self, BufRead, Read};

use crate::source::Bytes;

/// The longest line of a trace, in bytes. A row of the project's own format stays far below.
pub(crate) const MAX_LINE: usize = 64 << 10;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads one line at a time into one buffer.
pub(crate) struct Lines {
    bytes: Bytes,
    line: Vec<u8>,
    number: u64,
}

/// The error of a line that cannot be read.
pub(crate) enum LineError {
    Io(io::Error),
    TooLong,
}

impl Lines {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, line: Vec::new(), number: 0 }
    }

    /// Returns the number of the line that was read last, or that could not be read.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the line that was read last.
    pub(crate) fn last(&self) -> &[u8] {
        &self.line
    }

    /// Returns the next line, which ends in one `\n` whatever the file has there; `None` after the
    /// last.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, LineError> {
        self.line.clear();
        self.number += 1;
        // Bounded before it is read: a file without line ends must not fill the memory.
        let bounded = &mut self.bytes.by_ref().take(MAX_LINE as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.line).map_err(LineError::Io)?;
        if read == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if read > MAX_LINE {
            return Err(LineError::TooLong);
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        self.line.push(b'\n');
        let mark = self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK);
        Ok(Some(&self.line[if mark { BYTE_ORDER_MARK.len() } else { 0 }..]))
    }
}
