//! Reports of a pool to a memory checker, which then checks blocks and not only heaps.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{AllocTag, Generation, panics};

/// Receives reports of heaps (memory that a pool has reserved from upstream) and of the regions
/// inside them. A region outside of every heap is an allocation of the driver.
///
/// Methods are called during calls of the resource, from any thread: `region_allocated` before the
/// block is returned, `region_freed` when its memory is free, which depends on
/// [`follows_streams`](Self::follows_streams). Implementations must not call the resource. A panic
/// costs the report and nothing else: the resource catches and counts it. The simulated driver and
/// NVTX (for Compute Sanitizer) have implementations.
pub trait MemoryObserver: Debug + Send + Sync {
    /// Reports that a pool has reserved `bytes` bytes at `ptr` from upstream. No byte may be
    /// accessed that is in no region.
    fn heap_created(&self, ptr: u64, bytes: usize);

    /// Reports that the pool returns the heap at `ptr` to upstream.
    fn heap_destroyed(&self, ptr: u64);

    /// Reports a new block: `bytes` bytes at `ptr` may be accessed.
    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation);

    /// Reports that the block at `ptr` is free: its bytes may not be accessed any more.
    fn region_freed(&self, ptr: u64, generation: Generation);

    /// Returns whether the observer checks work when it is submitted, by the order of its stream,
    /// and not when it runs.
    ///
    /// If so, a region is freed when its block is deallocated and no window on it is open. The
    /// device may still use it, and the pool may at once allocate its memory on a stream that comes
    /// after that use, as it does without an observer. If not, a region is freed when all work with
    /// the block is known to be done, and only then does the pool allocate its memory again.
    fn follows_streams(&self) -> bool {
        false
    }
}

/// An observer whose panics are caught and counted, for a resource that reports to it between two
/// steps of a change.
#[derive(Debug)]
pub struct CaughtObserver {
    observer: Arc<dyn MemoryObserver>,
    panics: AtomicU64,
}

impl CaughtObserver {
    /// Wraps an observer.
    #[must_use]
    pub fn new(observer: Arc<dyn MemoryObserver>) -> Self {
        Self { observer, panics: AtomicU64::new(0) }
    }

    /// Returns how often the observer has panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    fn report(&self, report: impl FnOnce(&dyn MemoryObserver)) {
        if panics::catch(|| report(&*self.observer)).is_none() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl MemoryObserver for CaughtObserver {
    fn heap_created(&self, ptr: u64, bytes: usize) {
        self.report(|observer| observer.heap_created(ptr, bytes));
    }

    fn heap_destroyed(&self, ptr: u64) {
        self.report(|observer| observer.heap_destroyed(ptr));
    }

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation) {
        self.report(|observer| observer.region_allocated(ptr, bytes, tag, generation));
    }

    fn region_freed(&self, ptr: u64, generation: Generation) {
        self.report(|observer| observer.region_freed(ptr, generation));
    }

    fn follows_streams(&self) -> bool {
        self.observer.follows_streams()
    }
}
