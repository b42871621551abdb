//! Heaps: what recordings describe beside events, so that memory that was allocated before is
//! visible.

use std::sync::{Arc, Weak};

use dmr_core::process::PerProcess;
use dmr_core::{AllocTag, StreamId, panics};

use crate::sources::Sources;

/// The state of a part of a heap, as in a recording.
pub use dmr_recording::RegionState as HeapState;

/// A part of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapPart {
    /// The address of its first byte.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its state.
    pub state: HeapState,
    /// The stream whose memory it is.
    pub stream: StreamId,
    /// The tag of its block.
    pub tag: AllocTag,
    /// It is the first part of memory that its resource has from upstream as a whole, and returns
    /// so.
    pub is_first: bool,
}

/// A heap, all of its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// CUDA device ordinal.
    pub device: usize,
    /// Bytes that are reserved from the driver.
    pub reserved: u64,
    /// Its parts, by address.
    pub parts: Vec<HeapPart>,
}

/// A resource that can describe its heap, such as a pool.
pub trait HeapSource: Send + Sync {
    /// Returns the heap. Called by threads that are in no call of the resource, and by one whose
    /// allocation is refused. If it panics, its heap is left out.
    fn heap(&self) -> Heap;
}

static SOURCES: PerProcess<Sources<dyn HeapSource>> = PerProcess::new(Sources::default);

/// Registers a heap: each recording describes it, as long as it lives.
pub fn register_heap(source: Weak<dyn HeapSource>) {
    SOURCES.get().register(source);
}

/// Returns the heaps of all sources.
pub(crate) fn heaps() -> Vec<Heap> {
    // Its last owner may be dropped here, too.
    let heap = |source: Arc<dyn HeapSource>| panics::catch(move || source.heap());
    SOURCES.get().live().into_iter().filter_map(heap).collect()
}
