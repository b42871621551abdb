//! Told what a pool carves up, so that a memory checker sees blocks and not only heaps.

use std::fmt::Debug;

use crate::{AllocTag, Generation};

/// Is told of heaps (memory that a pool took from upstream) and of the regions inside them.
///
/// Called at the moment of the host call, from any thread: `region_allocated` before the block is
/// handed out, `region_freed` when a retired block is really free for reuse (not when
/// `deallocate` is called: device work may still touch it). Implementations must not call back
/// into the resource. The simulated driver and NVTX (for Compute Sanitizer) listen through it.
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
}
