//! A log file: rows in one of the formats, plain or gzip, written whole or not at all.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::record::COLUMNS;
use dmr_core::sync::lock;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{LogFormat, LogRecord, LoggingSink, SinkError, rmm};

/// A file that records are written to, on the thread that brings them.
pub(super) struct LogFile {
    path: PathBuf,
    format: LogFormat,
    rows: Mutex<Rows>,
}

/// What is on its way into the file.
struct Rows {
    /// The number of the next row.
    next: u64,
    /// Whole rows; the first `written` bytes of them are in `output` already.
    text: String,
    written: usize,
    output: Output,
}

/// So many bytes of rows are written at once.
const BATCH: usize = 64 << 10;
/// So many are kept while the file cannot be written; after that, rows are refused.
const KEPT: usize = 1 << 20;

impl LogFile {
    pub(super) fn create(path: &Path, format: LogFormat, gzip: bool) -> io::Result<Self> {
        let file = Arc::new(File::create(path)?);
        let output = if gzip { Output::gzip(file) } else { Output::Plain(file) };
        let mut text = match format {
            LogFormat::Dmr => COLUMNS.join(","),
            LogFormat::Rmm => rmm::HEADER.to_owned(),
        };
        text.push('\n');
        let mut rows = Rows { next: 0, text, written: 0, output };
        // A file without rows is a log already.
        rows.flush()?;
        Ok(Self { path: path.to_owned(), format, rows: Mutex::new(rows) })
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        lock(&self.rows)
    }
}

impl LoggingSink for LogFile {
    fn record(&self, record: &LogRecord) -> Result<(), SinkError> {
        let mut rows = self.rows();
        if rows.text.len() >= BATCH {
            let written = rows.write();
            if rows.text.len() >= KEPT {
                written?;
            }
        }
        let (start, order) = (rows.text.len(), rows.next);
        let formatted = match self.format {
            LogFormat::Dmr => writeln!(rows.text, "{}", record.to_row(order).csv_row()),
            LogFormat::Rmm => rmm::write_row(&mut rows.text, record),
        };
        // Writing to a string never fails; if it did, half a row would not be left behind.
        formatted.map_err(|error| {
            rows.text.truncate(start);
            SinkError::other(error)
        })?;
        rows.next += 1;
        Ok(())
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(self.rows().flush()?)
    }
}

impl fmt::Debug for LogFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.path)
    }
}

impl Rows {
    /// After an error, the next call goes on where this one stopped.
    fn write(&mut self) -> io::Result<()> {
        while self.written < self.text.len() {
            match self.output.write(&self.text.as_bytes()[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.text.clear();
        self.written = 0;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write()?;
        self.output.end_member()
    }
}

/// Bytes on their way to the operating system.
enum Output {
    Plain(Arc<File>),
    Gzip { encoder: GzEncoder<Arc<File>>, is_empty: bool },
}

impl Output {
    fn gzip(file: Arc<File>) -> Self {
        Self::Gzip { encoder: GzEncoder::new(file, Compression::fast()), is_empty: true }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Gzip { encoder, is_empty } => {
                let written = encoder.write(bytes)?;
                *is_empty = false;
                Ok(written)
            }
        }
    }

    /// A gzip file is whole where a member of it ends. After an error, the next call goes on.
    fn end_member(&mut self) -> io::Result<()> {
        if let Self::Gzip { encoder, is_empty: false } = self {
            encoder.try_finish()?;
            let file = Arc::clone(encoder.get_ref());
            *self = Self::gzip(file);
        }
        Ok(())
    }
}
