//! Writes the project's own CSV format, for logs and traces alike.

use std::io::{self, Write};

use dmr_core::AllocationRecord;
use dmr_core::record::COLUMNS;

/// Writes records as CSV: a header, then one line per record.
///
/// Writes each line in small pieces: give it a [`BufWriter`](io::BufWriter).
#[derive(Debug)]
pub struct RecordWriter<W> {
    write: W,
}

impl<W: Write> RecordWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    ///
    /// What `write` answers.
    pub fn new(mut write: W) -> io::Result<Self> {
        writeln!(write, "{}", COLUMNS.join(","))?;
        Ok(Self { write })
    }

    /// Writes one record.
    ///
    /// # Errors
    ///
    /// What `write` answers; a part of the line may have been written.
    pub fn write(&mut self, record: &AllocationRecord) -> io::Result<()> {
        writeln!(self.write, "{}", record.csv_row())
    }

    /// Flushes what was written.
    ///
    /// # Errors
    ///
    /// What `write` answers.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write.flush()
    }

    /// What it writes to.
    pub const fn get_ref(&self) -> &W {
        &self.write
    }

    /// Gives back what it writes to, without flushing.
    pub fn into_inner(self) -> W {
        self.write
    }
}
