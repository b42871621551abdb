//! A log file that is written on a thread of its own.

use std::fmt;
use std::io;
use std::path::Path;

use super::file::LogFile;
use super::{BackgroundConfig, BackgroundSink, LogRecord, LoggingSink, SinkError, WhenFull};

/// Writes records to a CSV file, on a background thread.
///
/// A [`BackgroundSink`] around a file: what is said there of threads, order and forks holds here.
/// `dmr replay` and `dmr_trace` read the file, plain or gzip.
///
/// A row is in the hands of the operating system once [`flush`](LoggingSink::flush) has returned,
/// the last owner has dropped the sink or the process has ended normally, and otherwise about a
/// second after it was recorded ([`flush_interval`](BackgroundConfig::flush_interval)). A process
/// that aborts or is killed loses rows younger than that, and may leave half a row at the end. Of a
/// gzip file everything up to the last of these moments can be read: each ends a gzip
/// member. Nothing is synchronised to the disk: a power cut can cost more.
///
/// If the file cannot be written, up to a mebibyte of rows is kept and tried again; further rows
/// are lost, and the next flush says how many and why.
pub struct CsvSink(BackgroundSink<LogFile>);

/// How a [`CsvSink`] writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct CsvSinkConfig {
    /// Whether the file is compressed.
    pub gzip: bool,
    /// Which columns it has.
    pub format: LogFormat,
    /// How records get to the background thread.
    pub background: BackgroundConfig,
}

impl CsvSinkConfig {
    /// The project's own columns, not compressed.
    pub const fn new() -> Self {
        Self { gzip: false, format: LogFormat::Dmr, background: BackgroundConfig::new() }
    }

    /// Sets [`gzip`](Self::gzip).
    pub const fn with_gzip(mut self, gzip: bool) -> Self {
        self.gzip = gzip;
        self
    }

    /// Sets [`format`](Self::format).
    pub const fn with_format(mut self, format: LogFormat) -> Self {
        self.format = format;
        self
    }

    /// Sets [`BackgroundConfig::ring_records`].
    pub const fn with_ring_records(mut self, records: usize) -> Self {
        self.background = self.background.with_ring_records(records);
        self
    }

    /// Sets [`BackgroundConfig::when_full`].
    pub const fn with_when_full(mut self, when_full: WhenFull) -> Self {
        self.background = self.background.with_when_full(when_full);
        self
    }

    /// Sets [`background`](Self::background).
    pub const fn with_background(mut self, background: BackgroundConfig) -> Self {
        self.background = background;
        self
    }
}

/// The columns of a log file, and how they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogFormat {
    /// Everything that is known of a call: [`COLUMNS`](dmr_core::record::COLUMNS).
    #[default]
    Dmr,
    /// The log of RMM's logging adaptor, `Thread,Time,Action,Pointer,Size,Stream`, for its replay
    /// program. Times are of the day, in UTC, to the microsecond. It has no rows for reaps, growth in
    /// place, nor frees that failed.
    Rmm,
}

impl CsvSink {
    /// A log in the project's own format. A file that is there is replaced.
    ///
    /// # Errors
    ///
    /// The file cannot be created or written, or the thread cannot be started.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::with_config(path, CsvSinkConfig::new())
    }

    /// [`create`](Self::create), as configured.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn with_config(path: impl AsRef<Path>, config: CsvSinkConfig) -> io::Result<Self> {
        let file = LogFile::create(path.as_ref(), config.format, config.gzip)?;
        BackgroundSink::new(file, config.background).map(Self)
    }

    /// How many records were taken and could not be written, so far. The next
    /// [`flush`](LoggingSink::flush) says why.
    #[must_use]
    pub fn lost_records(&self) -> u64 {
        self.0.lost_records()
    }
}

impl LoggingSink for CsvSink {
    #[inline]
    fn record(&self, record: &LogRecord) -> Result<(), SinkError> {
        self.0.record(record)
    }

    fn flush(&self) -> Result<(), SinkError> {
        self.0.flush()
    }
}

impl fmt::Debug for CsvSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CsvSink({:?})", self.0.get_ref())
    }
}
