//! Blocks that could not be deallocated when their buffer was dropped.
//!
//! A destructor cannot return an error. So the process counts the failure and keeps the block with
//! its error: deallocating it can be retried.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_core::{DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError};

static COUNT: AtomicU64 = AtomicU64::new(0);
/// Empty in a forked child, where a thread of the parent may have held the lock.
static KEPT: PerProcess<Mutex<Vec<DropFailure>>> = PerProcess::new(Mutex::default);

/// Returns the number of buffers of this process whose drop failed, including those that were
/// deallocated later.
#[must_use]
pub fn drop_failures() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Removes and returns the failures that are kept, oldest first.
#[must_use = "dropping the failures leaks their memory"]
pub fn take_drop_failures() -> Vec<DropFailure> {
    std::mem::take(&mut kept())
}

/// A block that its resource refused to deallocate when its buffer was dropped. It keeps the
/// resource alive. Dropping it leaks the memory, which the resource's
/// [`usage`](DeviceMemoryResource::usage) goes on counting.
#[must_use = "dropping it leaks its memory: call `retry`"]
pub struct DropFailure {
    refused: Box<DeallocateError>,
    resource: Arc<dyn DeviceMemoryResource>,
}

impl DropFailure {
    /// Returns the error of `deallocate`.
    #[must_use]
    pub fn error(&self) -> &ResourceError {
        &self.refused.error
    }

    /// Returns the block.
    pub fn block(&self) -> &DeviceBlock {
        &self.refused.block
    }

    /// Returns the resource that refused.
    #[must_use]
    pub fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    /// Deallocates the block.
    ///
    /// # Errors
    ///
    /// The failure, with the new error.
    pub fn retry(self) -> Result<(), Self> {
        let Self { refused, resource } = self;
        let outcome = resource.deallocate(refused.block);
        outcome.map(drop).map_err(|refused| Self { refused, resource })
    }
}

impl fmt::Debug for DropFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DropFailure").field(&self.refused).finish()
    }
}

/// `a buffer was dropped, and block g1.5 (64 B, ...) could not be deallocated: ...`.
impl fmt::Display for DropFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a buffer was dropped, and {}", self.refused)
    }
}

pub(crate) fn keep(refused: Box<DeallocateError>, resource: &Arc<dyn DeviceMemoryResource>) {
    if matches!(refused.error, ResourceError::ForkedProcess { .. }) {
        // The memory is the parent's.
        return;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    kept().push(DropFailure { refused, resource: Arc::clone(resource) });
}

fn kept() -> MutexGuard<'static, Vec<DropFailure>> {
    lock(KEPT.get())
}
