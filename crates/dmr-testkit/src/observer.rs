//! Tells a simulated machine what a pool carves up.

use dmr_core::{AllocTag, Generation, MemoryObserver};
use dmr_sim::Universe;

/// An observer to whom heaps and regions are those of a simulated machine: an access outside of a
/// region, and a region that is not in its heap, or that two blocks have, is a finding there.
#[derive(Clone, Debug)]
pub struct SimObserver(Universe);

impl SimObserver {
    /// Tells this machine.
    pub fn new(universe: &Universe) -> Self {
        Self(universe.clone())
    }
}

impl MemoryObserver for SimObserver {
    fn heap_created(&self, ptr: u64, bytes: usize) {
        self.0.heap_created(ptr, bytes);
    }

    fn heap_destroyed(&self, ptr: u64) {
        self.0.heap_destroyed(ptr);
    }

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, _: Generation) {
        self.0.region_allocated(ptr, bytes, tag.name());
    }

    fn region_freed(&self, ptr: u64, _: Generation) {
        self.0.region_freed(ptr);
    }
}
