//! A log file, plain or gzip, that is written on a thread of its own.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use dmr_core::AllocationRecord;
use dmr_core::record::COLUMNS;
use dmr_core::sync::lock;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{BackgroundConfig, BackgroundSink, LoggingSink, SinkError};

/// Writes records to a CSV file, on a writer thread. A file whose name ends in `.gz` is compressed.
///
/// The documentation of [`BackgroundSink`] says which threads work and what holds in a forked
/// child. The rows of different threads are not in the order of their calls; readers (`dmr replay`,
/// `dmr sort`, `dmr_trace`) sort them by the column `order`.
///
/// A row is handed to the operating system before [`flush`](LoggingSink::flush) returns, before the
/// last owner has dropped the sink and before the process ends normally, and otherwise about a
/// second after it was recorded ([`flush_interval`](BackgroundConfig::flush_interval)). A process
/// that aborts or is killed loses younger rows, and may leave half a row at the end. A gzip file
/// can be read up to the last of these moments, because each ends a gzip member. Nothing is
/// synchronised to the disk: a power cut can cost more.
///
/// If the file cannot be written, up to a mebibyte of rows is kept and tried again; further rows
/// are lost, and the next flush returns how many and why.
pub type CsvSink = BackgroundSink<CsvFile>;

impl CsvSink {
    /// Creates a file behind the default queues. An existing file is replaced.
    ///
    /// # Errors
    ///
    /// The file cannot be created or written, or the thread cannot be started.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::with_config(path, BackgroundConfig::new())
    }

    /// Creates a file behind these queues. An existing file is replaced.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn with_config(path: impl AsRef<Path>, config: BackgroundConfig) -> io::Result<Self> {
        Self::new(CsvFile::create(path.as_ref())?, config)
    }
}

/// The file of a [`CsvSink`].
pub struct CsvFile {
    path: PathBuf,
    rows: Mutex<Rows>,
}

/// Rows on their way into the file.
struct Rows {
    file: File,
    gzip: bool,
    /// Rows that are still text.
    text: String,
    /// Whole rows, compressed or not; the first `written` bytes of them are in the file.
    bytes: Vec<u8>,
    written: usize,
}

/// Rows are written when they have this many bytes.
const BATCH: usize = 64 << 10;
/// While the file cannot be written, this many bytes are kept; after that, rows are refused.
const KEPT: usize = 1 << 20;

impl CsvFile {
    fn create(path: &Path) -> io::Result<Self> {
        let gzip = path.extension().is_some_and(|extension| extension == "gz");
        let file = File::create(path)?;
        let text = COLUMNS.join(",") + "\n";
        let mut rows = Rows { file, gzip, text, bytes: Vec::new(), written: 0 };
        // A file without rows is a log already.
        rows.write()?;
        Ok(Self { path: path.to_owned(), rows: Mutex::new(rows) })
    }
}

impl LoggingSink for CsvFile {
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
        let mut rows = lock(&self.rows);
        if rows.text.len() >= BATCH || rows.bytes.len() >= KEPT {
            let written = rows.write();
            if rows.bytes.len() >= KEPT {
                written?;
            }
        }
        writeln!(rows.text, "{}", record.csv_row()).map_err(SinkError::other)
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(lock(&self.rows).write()?)
    }
}

impl fmt::Debug for CsvFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.path)
    }
}

impl Rows {
    /// Writes all rows. After an error, the next call goes on where this one stopped.
    fn write(&mut self) -> io::Result<()> {
        self.encode()?;
        while self.written < self.bytes.len() {
            match self.file.write(&self.bytes[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(())
    }

    /// Moves the text to the bytes, as a gzip member of its own where the file is compressed.
    fn encode(&mut self) -> io::Result<()> {
        if !self.gzip {
            self.bytes.extend_from_slice(self.text.as_bytes());
        } else if !self.text.is_empty() {
            let mut member = GzEncoder::new(&mut self.bytes, Compression::fast());
            member.write_all(self.text.as_bytes())?;
            member.finish()?;
        }
        self.text.clear();
        Ok(())
    }
}
