//! Reports of a pool to a memory checker, which then checks blocks and not only heaps.

use std::fmt::Debug;

use crate::{AllocTag, Generation};

/// Receives reports of heaps (memory that a pool has reserved from upstream) and of the regions inside them.
/// A region outside of every heap is an allocation of the driver.
///
/// Methods are called during calls of the resource, from any thread: `region_allocated` before the block is
/// returned, `region_freed` when its memory is free, which depends on
/// [`follows_streams`](Self::follows_streams). Implementations must not call the resource. The simulated
/// driver and NVTX (for Compute Sanitizer) have implementations.
pub trait MemoryObserver: Debug + Send + Sync {
    /// Reports that a pool has reserved `bytes` bytes at `ptr` from upstream. No byte may be accessed that
    /// is in no region.
    fn heap_created(&self, ptr: u64, bytes: usize);

    /// Reports that the pool returns the heap at `ptr` to upstream.
    fn heap_destroyed(&self, ptr: u64);

    /// Reports a new block: `bytes` bytes at `ptr` may be accessed.
    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation);

    /// Reports that the block at `ptr` is free: its bytes may not be accessed any more.
    fn region_freed(&self, ptr: u64, generation: Generation);

    /// Returns whether the observer checks work when it is submitted, by the order of its stream, and not
    /// when it runs.
    ///
    /// If so, a region is freed when its block is deallocated and no window on it is open. The device may
    /// still use it, and the pool may at once allocate its memory on a stream that comes after that use, as
    /// it does without an observer. If not, a region is freed when all work with the
    /// block is known to be done, and only then does the pool allocate its memory again.
    fn follows_streams(&self) -> bool {
        false
    }
}
