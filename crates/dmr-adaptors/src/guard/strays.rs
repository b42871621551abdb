//! Blocks that no caller got, and whose deallocation upstream failed.

use std::sync::{Mutex, MutexGuard};

use dmr_core::sync::lock;
use dmr_core::{DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult};

/// Whole blocks that could not be filled. They are live for the upstream resource only.
#[derive(Debug, Default)]
pub(super) struct Strays(Mutex<Vec<DeviceBlock>>);

impl Strays {
    /// Deallocates a block upstream, or keeps it for [`deallocate`](Self::deallocate).
    pub(super) fn add(&self, whole: DeviceBlock, upstream: &impl DeviceMemoryResource) {
        if let Err(refused) = upstream.deallocate(whole) {
            self.blocks().push(refused.block);
        }
    }

    /// Tries to deallocate all blocks.
    ///
    /// # Errors
    ///
    /// The last error; the blocks that were refused are kept.
    pub(super) fn deallocate(&self, upstream: &impl DeviceMemoryResource) -> ResourceResult<()> {
        // Without the lock: the upstream resource may call the driver.
        let blocks = std::mem::take(&mut *self.blocks());
        let mut outcome = Ok(());
        for whole in blocks {
            if let Err(refused) = upstream.deallocate(whole) {
                let DeallocateError { error, block, .. } = *refused;
                self.blocks().push(block);
                outcome = Err(error);
            }
        }
        outcome
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<DeviceBlock>> {
        lock(&self.0)
    }
}
