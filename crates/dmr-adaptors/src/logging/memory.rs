//! A sink that keeps its records in memory.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use dmr_core::AllocationRecord;
use dmr_core::process::PerProcess;
use dmr_core::sync::lock;

use super::{LogRecord, LoggingSink, SinkError};

/// Keeps records in memory: all of them, or the first so many.
pub struct InMemorySink {
    /// In a forked child another thread may have held the lock: there it begins anew.
    kept: PerProcess<Mutex<Vec<LogRecord>>>,
    bound: Option<usize>,
}

impl InMemorySink {
    /// Keeps every record: about a hundred bytes each.
    #[must_use]
    pub const fn new() -> Self {
        Self { kept: PerProcess::new(Mutex::default), bound: None }
    }

    /// Keeps the first `bound` records and refuses the others as [`SinkError::Full`], so that
    /// they count as dropped.
    #[must_use]
    pub const fn bounded(bound: usize) -> Self {
        Self { kept: PerProcess::new(Mutex::default), bound: Some(bound) }
    }

    /// What it keeps, in time order, numbered from 0.
    #[must_use]
    pub fn records(&self) -> Vec<AllocationRecord> {
        // Threads take the lock in another order than they read the clock.
        let mut kept = self.kept().clone();
        kept.sort_by_key(|record| record.time_ns);
        kept.iter().zip(0..).map(|(record, order)| record.to_row(order)).collect()
    }

    /// How many records it keeps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept().len()
    }

    /// Whether it keeps none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets what it keeps: there is room again.
    pub fn clear(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<LogRecord>> {
        lock(self.kept.get())
    }
}

impl Default for InMemorySink {
    fn default() -> Self {
        Self::new()
    }
}

impl LoggingSink for InMemorySink {
    fn record(&self, record: &LogRecord) -> Result<(), SinkError> {
        let mut kept = self.kept();
        if self.bound.is_some_and(|bound| kept.len() >= bound) {
            return Err(SinkError::Full);
        }
        kept.push(record.clone());
        Ok(())
    }

    fn flush(&self) -> Result<(), SinkError> {
        Ok(())
    }
}

impl fmt::Debug for InMemorySink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bound {
            None => write!(f, "InMemorySink({} records)", self.len()),
            Some(bound) => write!(f, "InMemorySink({} of {bound} records)", self.len()),
        }
    }
}
