//! The heaps and regions that were announced to the tool. A region is a block.

use std::collections::BTreeMap;

use dmr_core::{Access, BlockUse, Generation};

use crate::abi::{AssignDesc, Handle, REF_POINTER, access};

/// Heaps and regions by address.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    heaps: BTreeMap<u64, Heap>,
    regions: BTreeMap<u64, Region>,
}

#[derive(Debug)]
struct Heap {
    bytes: usize,
    handle: Handle,
}

// SAFETY: a tool's handle, which any thread may pass to the tool; nothing is read through it.
unsafe impl Send for Heap {}

#[derive(Clone, Copy, Debug)]
struct Region {
    generation: Generation,
    is_in_heap: bool,
}

/// The place of a new region.
pub(crate) enum Surroundings {
    /// In a heap that the tool has accepted.
    Heap(Handle),
    /// In a heap that the tool has refused: it accepts no region there.
    RefusedHeap,
    /// In no heap: an allocation of the driver, which needs no announcement.
    Driver,
}

impl Regions {
    /// Adds a heap. The allocation of the heap is no block any more: launches use the
    /// blocks inside.
    pub(crate) fn add_heap(&mut self, ptr: u64, bytes: usize, handle: Handle) {
        if self.regions.get(&ptr).is_some_and(|region| !region.is_in_heap) {
            self.regions.remove(&ptr);
        }
        self.heaps.insert(ptr, Heap { bytes, handle });
    }

    /// Removes a heap with its regions. Returns its handle if the tool had accepted it.
    pub(crate) fn remove_heap(&mut self, ptr: u64) -> Option<Handle> {
        let heap = self.heaps.remove(&ptr)?;
        let end = ptr.saturating_add(heap.bytes as u64);
        let inside: Vec<_> = self.regions.range(ptr..end).map(|(&region, _)| region).collect();
        for region in inside {
            self.regions.remove(&region);
        }
        (!heap.handle.is_null()).then_some(heap.handle)
    }

    pub(crate) fn surroundings(&self, ptr: u64) -> Surroundings {
        match self.heaps.range(..=ptr).next_back() {
            Some((&base, heap)) if ptr - base < heap.bytes as u64 => match heap.handle.is_null() {
                true => Surroundings::RefusedHeap,
                false => Surroundings::Heap(heap.handle),
            },
            _ => Surroundings::Driver,
        }
    }

    pub(crate) fn add(&mut self, ptr: u64, generation: Generation, is_in_heap: bool) {
        self.regions.insert(ptr, Region { generation, is_in_heap });
    }

    /// Removes a region. Returns whether the tool has it registered in a heap.
    pub(crate) fn remove(&mut self, ptr: u64, generation: Generation) -> bool {
        match self.regions.get(&ptr) {
            Some(&known) if known.generation == generation => {
                self.regions.remove(&ptr);
                known.is_in_heap
            }
            _ => false,
        }
    }

    /// Returns the access that a launch with these uses has to each announced region. Uses of other
    /// memory are left out.
    ///
    /// A use is found by its generation: a part that an adaptor returns has the generation of the
    /// whole, and another address.
    pub(crate) fn assigned(&self, uses: &[BlockUse]) -> Vec<AssignDesc> {
        let flags = |region: &Region| {
            let of_region = uses.iter().filter(|it| it.block.generation() == region.generation);
            match of_region.map(|it| it.access).reduce(Access::and) {
                None => access::NONE,
                Some(Access::Read) => access::READ,
                // A kernel may read back what it has written, and an atomic operation does both.
                Some(Access::Write | Access::ReadWrite) => {
                    access::READ | access::WRITE | access::ATOMIC
                }
            }
        };
        let assign = |(&ptr, region): (&u64, &Region)| AssignDesc {
            flags: flags(region),
            ref_type: REF_POINTER,
            region: ptr,
        };
        self.regions.iter().map(assign).collect()
    }
}
