//! The observer that announces heaps and blocks to the tool.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use dmr_core::{AllocTag, Generation, MemoryObserver};

use crate::regions::Surroundings;
use crate::tool::{Tool, tool};

/// The largest length of a region's name, in bytes.
const MAX_NAME: usize = 49;

/// Returns an observer that announces heaps and blocks to the attached tool, or `None` where no
/// tool with NVTX's memory extension is attached.
///
/// All observers of a process share one list of heaps and regions. A region outside of every heap
/// is an allocation of the driver, which the tool detects itself: the observer only names it and
/// includes it in [`restricted`](crate::restricted). In a forked child an observer does nothing.
///
/// The heaps must be memory of `cuMemAlloc`. Compute Sanitizer 2025.3.1 refuses others, reports
/// each refusal as an error, and then detects no block inside.
#[must_use]
pub fn memory_observer() -> Option<Arc<dyn MemoryObserver>> {
    tool().map(|tool| Arc::new(NvtxObserver { tool }) as _)
}

struct NvtxObserver {
    tool: &'static Tool,
}

impl MemoryObserver for NvtxObserver {
    fn heap_created(&self, ptr: u64, bytes: usize) {
        if self.tool.is_attached() {
            let mut regions = self.tool.regions();
            let handle = self.tool.register_heap(ptr, bytes);
            regions.add_heap(ptr, bytes, handle);
        }
    }

    fn heap_destroyed(&self, ptr: u64) {
        if self.tool.is_attached() {
            let mut regions = self.tool.regions();
            if let Some(heap) = regions.remove_heap(ptr) {
                self.tool.unregister_heap(heap);
            }
        }
    }

    fn region_allocated(&self, ptr: u64, bytes: usize, tag: AllocTag, generation: Generation) {
        if !self.tool.is_attached() {
            return;
        }
        let mut regions = self.tool.regions();
        let is_in_heap = match regions.surroundings(ptr) {
            Surroundings::Heap(heap) => {
                self.tool.register_region(heap, ptr, bytes);
                true
            }
            Surroundings::Driver => false,
            Surroundings::RefusedHeap => return,
        };
        regions.add(ptr, generation, is_in_heap);
        if let Some(name) = region_name(tag) {
            self.tool.name_region(ptr, &name);
        }
    }

    fn region_freed(&self, ptr: u64, generation: Generation) {
        if self.tool.is_attached() {
            let mut regions = self.tool.regions();
            if regions.remove(ptr, generation) {
                self.tool.unregister_region(ptr);
            }
        }
    }
}

impl fmt::Debug for NvtxObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvtx")
    }
}

/// Returns the name of a region with this tag; `None` for an empty tag. Compute Sanitizer counts a
/// name as an error if it is empty, longer than 49 bytes, or not printable ASCII.
fn region_name(tag: AllocTag) -> Option<CString> {
    let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c as u8 } else { b'?' };
    let name: Vec<u8> = tag.name().chars().take(MAX_NAME).map(printable).collect();
    if name.is_empty() { None } else { CString::new(name).ok() }
}
