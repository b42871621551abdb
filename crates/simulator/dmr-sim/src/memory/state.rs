//! The memory of a machine, which a kernel has while it runs.

use crate::memory::{LateFrees, Memory, MemoryMap, Store};

/// The bytes of a machine's memory, and their owners.
#[derive(Default)]
pub(crate) struct MemoryState {
    pub(crate) store: Store,
    /// The owners of addresses now: what calls return and the hardware enforces.
    pub(crate) present: MemoryMap,
    /// Memory that launches which wait may use although it was freed.
    pub(crate) late_frees: LateFrees,
}

impl MemoryState {
    /// Returns the bytes, for the execution of work.
    pub(crate) fn bytes(&mut self) -> Memory<'_> {
        Memory { store: &mut self.store, mappings: &self.present.mappings }
    }
}
