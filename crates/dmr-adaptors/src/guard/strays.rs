//! Blocks that nobody was handed and that the inner resource did not take back.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr_core::{DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult};

/// Whole blocks whose poison failed: of no allocation, and live for the inner resource only.
#[derive(Debug, Default)]
pub(super) struct Strays(Mutex<Vec<DeviceBlock>>);

impl Strays {
    /// Gives a block back, or keeps it for [`give_back`](Self::give_back).
    pub(super) fn take(&self, whole: DeviceBlock, inner: &impl DeviceMemoryResource) {
        if let Err(refused) = inner.deallocate(whole) {
            self.blocks().push(refused.block);
        }
    }

    /// Tries all of them again.
    ///
    /// # Errors
    ///
    /// The last refusal; whatever was refused is kept.
    pub(super) fn give_back(&self, inner: &impl DeviceMemoryResource) -> ResourceResult<()> {
        // Not with the lock: the inner resource may call the driver.
        let blocks = std::mem::take(&mut *self.blocks());
        let mut outcome = Ok(());
        for whole in blocks {
            if let Err(refused) = inner.deallocate(whole) {
                let DeallocateError { error, block, .. } = *refused;
                self.blocks().push(block);
                outcome = Err(error);
            }
        }
        outcome
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<DeviceBlock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
