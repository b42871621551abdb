//! What a pool reports of its blocks, so that a memory checker sees blocks and not only heaps.

use std::fmt::Debug;

use crate::{AllocTag, Generation};

/// Receives reports of heaps (memory that a pool took from upstream) and of the regions inside them. A
/// region outside of every heap is an allocation of the driver.
///
/// Called during the host's call, from any thread: `region_allocated` before the block is handed
/// out, `region_freed` when its memory is free. When that is depends on
/// [`follows_streams`](Self::follows_streams). Implementations must not call back into the resource.
/// The simulated driver and NVTX (for Compute Sanitizer) listen through it.
pub trait MemoryObserver: Debug + Send + Sync {
    /// A pool took `bytes` bytes at `ptr` from upstream. Until regions are allocated inside,
    /// no byte of it may be touched.
    fn heap_created(&self, ptr: u64, bytes: usize);

    /// The pool gives the heap that starts at `ptr` back.
    fn heap_destroyed(&self, ptr: u64);

    /// A block was carved out: `bytes` bytes at `ptr` may be touched.
    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation);

    /// The block at `ptr` is free: none of its bytes may be touched any more.
    fn region_freed(&self, ptr: u64, generation: Generation);

    /// Whether the observer judges work when it is submitted, by the order of its stream, and not
    /// when it runs.
    ///
    /// If so, a region is freed when its block has been given back and no window on it is open,
    /// although the device may still use it, and its memory may at once be a region of a stream that
    /// comes after that use. The pool then orders memory as it does without an observer. Otherwise a
    /// region is freed when all work with the block is known to be done, and the pool hands its
    /// memory out only then.
    fn follows_streams(&self) -> bool {
        false
    }
}
