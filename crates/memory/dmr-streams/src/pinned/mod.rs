//! Page-locked host memory: pooled, tracked in the use table, and allocated again when its uses are
//! done.
//!
//! | module | what it contains |
//! | --- | --- |
//! | `resource` | [`PinnedResource`], the pool as a resource |
//! | `memory` | [`PinnedMemory`], a block that is deallocated when it is dropped |
//! | `pool` | blocks, from the allocation until their uses are done |
//! | `segments` | memory from the driver, and back to it |
//! | `heap`, `bins` | segments, cut into chunks; make no driver call |
//! | `orphans` | segments of stream pools that were dropped |

mod bins;
mod heap;
mod memory;
mod orphans;
mod pool;
mod resource;
mod segments;

use std::sync::Arc;

use dmr_core::{AllocTag, ResourceResult, StreamId, Usage};

use crate::StreamPool;

pub use memory::PinnedMemory;
pub use orphans::reap_orphaned_pinned;
pub(crate) use pool::PinnedPool;
pub use resource::PinnedResource;

/// The kind of page-locked memory, for the host. The device accesses both in the same way.
///
/// All of it is mapped and portable: kernels use it at the host's address, on every device of the
/// process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PinnedKind {
    /// Cached by the processor, as ordinary memory is.
    #[default]
    Cached,
    /// Write-combined: the host's writes go past the caches, which makes copies to the device
    /// faster on some machines. Reading it takes the host many times as long.
    WriteCombined,
}

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: in the device's address space, which unified addressing implies.
const DEVICE_MAP: u32 = 2;
/// `CU_MEMHOSTALLOC_WRITECOMBINED`.
const WRITE_COMBINED: u32 = 4;

impl PinnedKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Cached, Self::WriteCombined];

    fn flags(self) -> u32 {
        match self {
            Self::Cached => PORTABLE | DEVICE_MAP,
            Self::WriteCombined => PORTABLE | DEVICE_MAP | WRITE_COMBINED,
        }
    }
}

/// The tag of pinned memory whose purpose is not given.
const PINNED: AllocTag = AllocTag::new("pinned");

impl StreamPool {
    /// Allocates pinned memory of unspecified content from the pool that all pinned memory of these
    /// streams shares: [`PinnedResource`]. Every byte of it has been written.
    ///
    /// # Errors
    ///
    /// As [`PinnedResource`]'s `allocate`.
    pub fn allocate_pinned(
        self: &Arc<Self>,
        bytes: usize,
        home: StreamId,
    ) -> ResourceResult<PinnedMemory> {
        PinnedMemory::allocate(None, self, PinnedKind::Cached, bytes, home, PINNED)
    }

    /// Frees the pinned memory that was dropped and whose uses are done, so that it can be
    /// allocated again; returns its bytes. Polls the uses and does not wait for them.
    ///
    /// Memory counts as done when an event is done that was recorded behind its last use, and
    /// behind what had been submitted to its home stream when it was dropped. If there is none yet,
    /// a poll records one, and a later poll finds it done. On a lost device, all of it counts as
    /// freed.
    ///
    /// # Errors
    ///
    /// The first error; [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing) for memory
    /// whose home stream captures a graph. What could not be freed is still retired: call again.
    pub fn try_reap_pinned(&self) -> ResourceResult<u64> {
        self.poll_pinned().map(|freed| freed.iter().sum())
    }

    /// Waits for the pinned memory that was dropped, unless a launch that uses it is prepared and
    /// not finished, and frees it; returns its bytes.
    ///
    /// # Errors
    ///
    /// As [`try_reap_pinned`](Self::try_reap_pinned).
    pub fn reap_pinned(&self) -> ResourceResult<u64> {
        self.wait_for_pinned().map(|freed| freed.iter().sum())
    }

    /// Returns pinned memory that serves no block to the driver while more than `keep_bytes` bytes
    /// of a kind are reserved, in whole segments; returns the bytes. First frees what is done, as
    /// [`try_reap_pinned`](Self::try_reap_pinned) does. The driver's call, `cuMemFreeHost`, may
    /// wait for other work of the device.
    ///
    /// # Errors
    ///
    /// The first error. All other memory was returned all the same.
    pub fn trim_pinned(&self, keep_bytes: u64) -> ResourceResult<u64> {
        let reaped = self.poll_pinned().map(drop);
        let mut trimmed = 0;
        let mut outcome = reaped;
        for kind in PinnedKind::ALL {
            match self.trim_pinned_kind(kind, keep_bytes) {
                Ok(bytes) => trimmed += bytes,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| trimmed)
    }

    /// Returns the accounting of the pinned memory of these streams.
    #[must_use]
    pub fn pinned_usage(&self) -> Usage {
        let mut sum = Usage::default();
        for usage in PinnedKind::ALL.map(|kind| self.pinned_usage_of(kind)) {
            sum.live += usage.live;
            sum.retired += usage.retired;
            sum.reserved += usage.reserved;
            sum.total_allocated += usage.total_allocated;
            sum.total_freed += usage.total_freed;
        }
        sum
    }
}
