//! What could not be given back when it was dropped: counted, and kept for whoever asks.
//!
//! A destructor has nobody to answer an error to. So the process keeps the block with its error:
//! nothing is lost, and giving it back can be tried again.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::process::PerProcess;
use dmr_core::{DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError};

static COUNT: AtomicU64 = AtomicU64::new(0);
/// In a forked child another thread may have held the lock: there it begins anew.
static KEPT: PerProcess<Mutex<Vec<DropFailure>>> = PerProcess::new(Mutex::default);

/// How many buffers of this process were refused when they were dropped, those that were given
/// back later included.
#[must_use]
pub fn drop_failures() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Takes what has been kept so far, oldest first.
#[must_use = "dropping the failures leaks their memory"]
pub fn take_drop_failures() -> Vec<DropFailure> {
    std::mem::take(&mut kept())
}

/// A block whose buffer is gone, and that its resource did not take back. It keeps the resource
/// alive. Dropping it leaks the memory, visibly in the resource's
/// [`usage`](DeviceMemoryResource::usage).
#[must_use = "dropping it leaks its memory: `retry`"]
pub struct DropFailure {
    refused: Box<DeallocateError>,
    resource: Arc<dyn DeviceMemoryResource>,
}

impl DropFailure {
    /// Why it was refused.
    #[must_use]
    pub fn error(&self) -> &ResourceError {
        &self.refused.error
    }

    /// The block.
    pub fn block(&self) -> &DeviceBlock {
        &self.refused.block
    }

    /// Who refused.
    #[must_use]
    pub fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    /// Gives it back again.
    ///
    /// # Errors
    ///
    /// The failure, with the latest error.
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

pub(crate) fn keep(refused: Box<DeallocateError>, resource: &Arc<dyn DeviceMemoryResource>) {
    if matches!(refused.error, ResourceError::ForkedProcess { .. }) {
        // The memory is the parent's.
        return;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    kept().push(DropFailure { refused, resource: Arc::clone(resource) });
}

fn kept() -> MutexGuard<'static, Vec<DropFailure>> {
    KEPT.get().lock().unwrap_or_else(PoisonError::into_inner)
}
