//! The adaptors around a resource, one alone or all of them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;

use dmr_adaptors::budget::BudgetLayer;
use dmr_adaptors::logging::{
    BackgroundConfig, CsvSink, LoggingLayer, LoggingResource, LoggingSink, WhenFull,
};
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_adaptors::{ResourceBuilder, ResourceLayer};
use dmr_core::DeviceMemoryResource;
use tempfile::TempDir;

use super::Stack;
use crate::BenchError;

/// The names that can follow the `+` of a stack's name. `all` is what the runtime's builder makes:
/// a budget next to the backend, a log around it, statistics outermost.
pub const LAYERS: [&str; 4] = ["budget", "logging", "statistics", "all"];

/// Rows that wait for the log's writer, of each thread. It is the sink's default; more of them
/// are dropped, so that a measurement that is too long shows in the count and not in the times.
pub const LOG_RING: usize = 8192;

/// The log of a stack, in a folder that is removed with it.
pub struct Log {
    sink: Arc<CsvSink>,
    dropped: Box<dyn Fn() -> u64 + Send + Sync>,
    path: PathBuf,
    /// Dropped after the sink, which writes to it.
    _folder: TempDir,
}

impl Log {
    fn create() -> Result<(Arc<CsvSink>, TempDir, PathBuf), BenchError> {
        let folder = tempfile::tempdir().map_err(BenchError::new)?;
        let path = folder.path().join("log.csv");
        let config =
            BackgroundConfig::new().with_queue_records(LOG_RING).with_when_full(WhenFull::Drop);
        let sink = CsvSink::with_config(&path, config).map_err(BenchError::new)?;
        Ok((Arc::new(sink), folder, path))
    }

    /// Waits until all rows are in the file.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn flush(&self) -> Result<(), BenchError> {
        self.sink.flush().map_err(BenchError::new)
    }

    /// Flushes the log and returns the number of rows in the file.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn rows(&self) -> Result<u64, BenchError> {
        self.flush()?;
        let mut file = BufReader::new(File::open(&self.path).map_err(BenchError::new)?);
        let mut lines = 0;
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = file.read(&mut bytes).map_err(BenchError::new)?;
            if read == 0 {
                // One line is the header.
                return Ok(u64::saturating_sub(lines, 1));
            }
            lines += bytes[..read].iter().filter(|&&byte| byte == b'\n').count() as u64;
        }
    }

    /// Returns the number of rows that were lost: a ring was full, or the file could not be
    /// written.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        (self.dropped)() + self.sink.lost_records()
    }
}

/// `base` with this layer, or without any.
pub(super) fn wrap<R: DeviceMemoryResource + 'static>(
    base: R,
    layer: Option<&str>,
) -> Result<Stack, BenchError> {
    // Never refuses anything: what is measured is that it counts.
    let budget = BudgetLayer::new(u64::MAX / 2);
    let statistics = StatisticsLayer::new();
    let base = ResourceBuilder::new(base);
    match layer {
        None => Ok(Stack::of(base.build_shared(), None)),
        Some("budget") => Ok(Stack::of(base.layer(budget).build_shared(), None)),
        Some("statistics") => Ok(Stack::of(base.layer(statistics).build_shared(), None)),
        Some("logging") => {
            let (logging, log) = logged(base.build())?;
            Ok(Stack::of(logging, Some(log)))
        }
        Some(_) => {
            let (logging, log) = logged(base.layer(budget).build())?;
            Ok(Stack::of(ResourceBuilder::new(logging).layer(statistics).build_shared(), Some(log)))
        }
    }
}

/// Shares the adaptor with the function that returns its number of dropped records.
fn logged<R: DeviceMemoryResource + 'static>(
    inner: R,
) -> Result<(Arc<LoggingResource<R>>, Log), BenchError> {
    let (sink, folder, path) = Log::create()?;
    let logging = Arc::new(LoggingLayer::new(Arc::<CsvSink>::clone(&sink)).layer(inner));
    let asked = Arc::clone(&logging);
    let dropped = Box::new(move || asked.dropped_records());
    Ok((logging, Log { sink, dropped, path, _folder: folder }))
}
