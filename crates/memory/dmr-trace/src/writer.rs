//! Writes traces: in the project's own CSV format, or as RMM's log.

use std::fmt;
use std::io::{self, Write};

use dmr_core::AllocationRecord;
use dmr_core::record::{COLUMNS, RecordAction};

/// The columns of a trace, and how they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceFormat {
    /// Everything that a record holds: [`COLUMNS`].
    #[default]
    Dmr,
    /// The log of RMM's logging adaptor, `Thread,Time,Action,Pointer,Size,Stream`, for its replay
    /// program. Times are of the day, in UTC, to the microsecond. It has no rows for reaps, growth
    /// in place, and frees that failed, and no column that a reader could sort by.
    Rmm,
}

/// Writes records: a header, then one line per record.
///
/// Writes each line in small pieces: give it a [`BufWriter`](io::BufWriter).
#[derive(Debug)]
pub struct RecordWriter<W> {
    write: W,
    format: TraceFormat,
}

impl<W: Write> RecordWriter<W> {
    /// Writes the header of the project's own format.
    ///
    /// # Errors
    ///
    /// The error of `write`.
    pub fn new(write: W) -> io::Result<Self> {
        Self::with_format(write, TraceFormat::Dmr)
    }

    /// Writes the header of `format`.
    ///
    /// # Errors
    ///
    /// The error of `write`.
    pub fn with_format(mut write: W, format: TraceFormat) -> io::Result<Self> {
        match format {
            TraceFormat::Dmr => writeln!(write, "{}", COLUMNS.join(","))?,
            TraceFormat::Rmm => writeln!(write, "Thread,Time,Action,Pointer,Size,Stream")?,
        }
        Ok(Self { write, format })
    }

    /// Writes one record, if the format has a row for it.
    ///
    /// # Errors
    ///
    /// The error of `write`; a part of the line may have been written.
    pub fn write(&mut self, record: &AllocationRecord) -> io::Result<()> {
        match self.format {
            TraceFormat::Dmr => writeln!(self.write, "{}", record.csv_row()),
            TraceFormat::Rmm => self.write_rmm(record),
        }
    }

    /// Pointers and streams are hexadecimal. A pointer that is null is `(nil)`; a stream that is
    /// null is `0`, because RMM's reader takes only a number there.
    fn write_rmm(&mut self, record: &AllocationRecord) -> io::Result<()> {
        let action = match (record.action, &record.failure) {
            (RecordAction::Allocate, None) => "allocate",
            (RecordAction::Allocate, Some(_)) => "allocate failure",
            (RecordAction::Deallocate, None) => "free",
            _ => return Ok(()),
        };
        write!(self.write, "{},{},{action},", record.thread, TimeOfDay(record.time_ns))?;
        match record.ptr {
            0 => write!(self.write, "(nil)")?,
            ptr => write!(self.write, "{ptr:#x}")?,
        }
        match record.stream {
            0 => writeln!(self.write, ",{},0", record.bytes),
            stream => writeln!(self.write, ",{},{stream:#x}", record.bytes),
        }
    }

    /// Flushes what was written.
    ///
    /// # Errors
    ///
    /// The error of `write`.
    pub fn flush(&mut self) -> io::Result<()> {
        self.write.flush()
    }

    /// Returns what it writes to.
    pub const fn get_ref(&self) -> &W {
        &self.write
    }

    /// Returns what it writes to, without flushing.
    pub fn into_inner(self) -> W {
        self.write
    }
}

/// A time as `hours:minutes:seconds.microseconds` of the day, in UTC.
struct TimeOfDay(u64);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1000;
        let seconds = micros / 1_000_000;
        let hours = seconds / 3600 % 24;
        let minutes = seconds / 60 % 60;
        write!(f, "{hours:02}:{minutes:02}:{:02}.{:06}", seconds % 60, micros % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_day_to_the_microsecond() {
        let day = 86_400_000_000_000;
        assert_eq!(TimeOfDay(20_000 * day).to_string(), "00:00:00.000000");
        assert_eq!(TimeOfDay(20_001 * day - 1).to_string(), "23:59:59.999999");
        assert_eq!(TimeOfDay(day + 3_661_000_042_000).to_string(), "01:01:01.000042");
    }
}
