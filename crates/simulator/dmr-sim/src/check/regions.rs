//! Memory of pools: heaps, the regions in them, and heaps inside of regions, where one pool
//! is the upstream of another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::access::{AddressRange, Site};
use crate::check::{Freed, Report, ReportKind};

/// Heaps that do not overlap, by address.
#[derive(Default)]
pub(crate) struct Heaps(BTreeMap<u64, Heap>);

/// Memory that a pool sub-allocates: only its regions may be accessed.
struct Heap {
    bytes: u64,
    regions: BTreeMap<u64, Region>,
    freed: Freed,
}

/// A block that a pool has allocated.
struct Region {
    block: LibraryBlock,
    made_by: Site,
    /// The heaps of pools whose upstream has allocated this region.
    heaps: Heaps,
}

/// A block of a library: a region of a pool, or an allocation that the library has named.
#[derive(Clone, Debug)]
pub(crate) struct LibraryBlock {
    pub(crate) range: AddressRange,
    /// Its number in messages; 0 if it has none.
    pub(crate) number: u64,
    /// The declaration that was in force for the thread that has allocated it; 0 if none was.
    pub(crate) during: u64,
    pub(crate) tag: Option<Arc<str>>,
}

/// The state of an address, by the innermost heap that contains it.
pub(crate) enum AddressState<'a> {
    /// In no heap: the address belongs to the allocation.
    NoHeap,
    /// In a region, up to this address.
    Region { end: u64, tag: Option<&'a Arc<str>> },
    /// In no region: with the region that was freed there.
    NoRegion(&'a Freed),
}

impl Heaps {
    /// Adds a heap: memory from upstream, or from a region of another pool.
    pub(crate) fn create(&mut self, at: u64, bytes: u64) {
        let bytes = bytes.min(u64::MAX - at);
        let holds = |start: u64, region: &Region| at + bytes <= start + region.bytes();
        if let Some(level) = self.level(at, &holds) {
            level.remove_range(AddressRange::new(at, bytes));
            let regions = BTreeMap::new();
            let freed = Freed::default();
            level.0.insert(at, Heap { bytes, regions, freed });
        }
    }

    /// Removes the innermost heap that starts at `at`.
    pub(crate) fn destroy(&mut self, at: u64) {
        if let Some(level) = self.level(at, &|_, region| region.heaps.has_heap_at(at)) {
            level.0.remove(&at);
        }
    }

    /// Removes heaps that overlap the range.
    pub(crate) fn remove_range(&mut self, range: AddressRange) {
        while let Some((&start, heap)) = self.0.range(..range.end()).next_back()
            && start + heap.bytes > range.start()
        {
            self.0.remove(&start);
        }
    }

    /// Adds a region. Returns a finding, and adds nothing, if it is outside of its heap or overlaps
    /// another region.
    pub(crate) fn allocate(
        &mut self,
        block: LibraryBlock,
        by: Site,
        device: Option<usize>,
    ) -> Option<Report> {
        let at = block.range.start();
        let bytes = block.range.len();
        let tag = block.tag.clone();
        let bad = |first, by| {
            let found = Report::new(ReportKind::BadRegion, by).after(first).tagged(tag);
            Some(found.about(device, block.range))
        };
        let Some((start, heap)) = self.innermost(at) else { return bad(None, by) };
        if bytes > heap.bytes - (at - start) {
            return bad(None, by);
        }
        let last = heap.regions.range(..at + bytes.max(1)).next_back();
        let taken = last.filter(|(start, region)| **start + region.bytes().max(1) > at);
        if let Some((_, region)) = taken {
            return bad(Some(region.made_by.clone()), by);
        }
        heap.freed.remove_range(block.range);
        heap.regions.insert(at, Region { block, made_by: by, heaps: Heaps::default() });
        None
    }

    /// Frees a region, and returns its bytes and its name.
    ///
    /// # Errors
    ///
    /// A finding, if there is no such region.
    pub(crate) fn free(
        &mut self,
        at: u64,
        by: Site,
        device: Option<usize>,
    ) -> Result<(u64, Option<Arc<str>>), Box<Report>> {
        let Some((_, heap)) = self.innermost(at) else {
            return Err(Box::new(Freed::default().bad_free(at, by, device)));
        };
        match heap.regions.remove(&at) {
            Some(Region { block: LibraryBlock { range, tag, .. }, .. }) => {
                heap.freed.add(range, by, tag.clone());
                Ok((range.len(), tag))
            }
            None => Err(Box::new(heap.freed.bad_free(at, by, device))),
        }
    }

    /// Names the innermost region that starts at `at`, if there is one.
    pub(crate) fn name(&mut self, at: u64, tag: &Arc<str>) -> bool {
        let region = self.innermost(at).and_then(|(_, heap)| heap.regions.get_mut(&at));
        region.map(|region| region.block.tag = Some(tag.clone())).is_some()
    }

    /// Returns the state of the byte at `at`.
    pub(crate) fn owner(&self, at: u64) -> AddressState<'_> {
        let Some((_, heap)) = around(&self.0, at) else { return AddressState::NoHeap };
        let Some((start, region)) = around(&heap.regions, at) else {
            return AddressState::NoRegion(&heap.freed);
        };
        match region.heaps.owner(at) {
            AddressState::NoHeap => {
                AddressState::Region { end: start + region.bytes(), tag: region.block.tag.as_ref() }
            }
            inner => inner,
        }
    }

    /// Calls `visit` with a leak for each region without heaps inside.
    pub(crate) fn each_block(&self, visit: &mut dyn FnMut(Report)) {
        for heap in self.0.values() {
            for region in heap.regions.values() {
                if !region.heaps.0.is_empty() {
                    region.heaps.each_block(visit);
                    continue;
                }
                let tag = region.block.tag.clone();
                visit(Report::leak(region.block.range, region.made_by.clone()).tagged(tag));
            }
        }
    }

    /// Returns the innermost region that contains `at`.
    pub(crate) fn region_around(&self, at: u64) -> Option<LibraryBlock> {
        let (_, heap) = around(&self.0, at)?;
        let (_, region) = around(&heap.regions, at)?;
        region.heaps.region_around(at).or_else(|| Some(region.block.clone()))
    }

    /// Returns the innermost heap that contains `at`, and its start.
    fn innermost(&mut self, at: u64) -> Option<(u64, &mut Heap)> {
        let level = self.level(at, &|_, region| around(&region.heaps.0, at).is_some())?;
        let (start, _) = around(&level.0, at)?;
        level.0.get_mut(&start).map(|heap| (start, heap))
    }

    /// Returns the heaps inside of the innermost region that contains `at` and that `enter` accepts
    /// (by its start and itself); these heaps, if there is none.
    fn level(&mut self, at: u64, enter: &dyn Fn(u64, &Region) -> bool) -> Option<&mut Self> {
        let inner = around(&self.0, at).and_then(|(heap, found)| {
            let (start, region) = around(&found.regions, at)?;
            enter(start, region).then_some((heap, start))
        });
        let Some((heap, region)) = inner else { return Some(self) };
        let region = self.0.get_mut(&heap)?.regions.get_mut(&region)?;
        region.heaps.level(at, enter)
    }

    fn has_heap_at(&self, at: u64) -> bool {
        self.0.contains_key(&at)
            || around(&self.0, at)
                .and_then(|(_, heap)| around(&heap.regions, at))
                .is_some_and(|(_, region)| region.heaps.has_heap_at(at))
    }
}

/// A value that covers a range of addresses from its key on.
trait Extent {
    fn bytes(&self) -> u64;
}

impl Extent for Heap {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Extent for Region {
    fn bytes(&self) -> u64 {
        self.block.range.len()
    }
}

/// Returns the value that covers `at`, and its start.
fn around<T: Extent>(map: &BTreeMap<u64, T>, at: u64) -> Option<(u64, &T)> {
    let (&start, found) = map.range(..=at).next_back()?;
    (at - start < found.bytes()).then_some((start, found))
}
