//! A sink that keeps its records in memory.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use dmr_core::AllocationRecord;
use dmr_core::process::PerProcess;
use dmr_core::sync::lock;

use super::{LoggingSink, SinkError};

/// Keeps records in memory: all of them, or the first up to a bound.
pub struct InMemorySink {
    /// In a forked child another thread may have held the lock: a child starts with an empty sink.
    kept: PerProcess<Mutex<Vec<AllocationRecord>>>,
    bound: Option<usize>,
}

impl InMemorySink {
    /// Returns a sink that keeps every record, about a hundred bytes each.
    #[must_use]
    pub const fn new() -> Self {
        Self { kept: PerProcess::new(Mutex::default), bound: None }
    }

    /// Returns a sink that keeps the first `bound` records and refuses the others as
    /// [`SinkError::Full`], so that they count as dropped.
    #[must_use]
    pub const fn bounded(bound: usize) -> Self {
        Self { kept: PerProcess::new(Mutex::default), bound: Some(bound) }
    }

    /// Returns the records, sorted by `order`.
    #[must_use]
    pub fn records(&self) -> Vec<AllocationRecord> {
        let mut kept = self.kept().clone();
        kept.sort_by_key(|record| record.order);
        kept
    }

    /// Returns how many records it keeps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept().len()
    }

    /// Returns whether it keeps none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all records: there is room again.
    pub fn clear(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, Vec<AllocationRecord>> {
        lock(self.kept.get())
    }
}

impl Default for InMemorySink {
    fn default() -> Self {
        Self::new()
    }
}

impl LoggingSink for InMemorySink {
    fn record(&self, record: &AllocationRecord) -> Result<(), SinkError> {
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
