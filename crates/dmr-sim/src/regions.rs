//! What pools carve up: heaps, the regions in them, and heaps inside of regions, where one pool
//! feeds on another.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::freed::Freed;
use crate::report::{Report, ReportKind, Site};

/// Heaps that do not overlap, by address.
#[derive(Default)]
pub(crate) struct Heaps(BTreeMap<u64, Heap>);

/// Memory that a pool carves up: only its regions may be touched.
struct Heap {
    bytes: u64,
    regions: BTreeMap<u64, Region>,
    freed: Freed,
}

/// A block that a pool has handed out.
struct Region {
    bytes: u64,
    tag: Option<Arc<str>>,
    made_by: Site,
    /// Of a pool that takes its memory from this one.
    heaps: Heaps,
}

/// Who owns an address, by the innermost heap around it.
pub(crate) enum Owner<'a> {
    /// No pool: it is the allocation's.
    NoHeap,
    /// A region, up to here.
    Region { end: u64, tag: Option<&'a Arc<str>> },
    /// Nobody: what was freed there.
    Nobody(&'a Freed),
}

impl Heaps {
    /// A pool took the range: from upstream, or from a region of another pool.
    pub(crate) fn create(&mut self, at: u64, bytes: u64) {
        let bytes = bytes.min(u64::MAX - at);
        let holds = |start: u64, region: &Region| at + bytes <= start + region.bytes;
        if let Some(level) = self.level(at, &holds) {
            level.remove(at, bytes);
            let (regions, freed) = (BTreeMap::new(), Freed::default());
            level.0.insert(at, Heap { bytes, regions, freed });
        }
    }

    /// The innermost heap that starts at `at` is given back.
    pub(crate) fn destroy(&mut self, at: u64) {
        if let Some(level) = self.level(at, &|_, region| region.heaps.has_heap_at(at)) {
            level.0.remove(&at);
        }
    }

    /// Forgets heaps that overlap the range.
    pub(crate) fn remove(&mut self, at: u64, bytes: u64) {
        let end = at.saturating_add(bytes);
        while let Some((&start, heap)) = self.0.range(..end).next_back()
            && start + heap.bytes > at
        {
            self.0.remove(&start);
        }
    }

    /// A pool hands out a region. One outside of its heap, or that is handed out already, is
    /// answered as a finding, and is no region.
    pub(crate) fn allocate(
        &mut self,
        at: u64,
        bytes: u64,
        tag: Option<Arc<str>>,
        by: Site,
        device: Option<usize>,
    ) -> Option<Report> {
        let bad = |first, tag, by| {
            let kind = ReportKind::BadRegion;
            Some(Report { kind, first, second: by, device, address: at, bytes, tag })
        };
        let Some((start, heap)) = self.innermost(at) else { return bad(None, tag, by) };
        if bytes > heap.bytes - (at - start) {
            return bad(None, tag, by);
        }
        let last = heap.regions.range(..at + bytes.max(1)).next_back();
        let taken = last.filter(|(start, region)| **start + region.bytes.max(1) > at);
        if let Some((_, region)) = taken {
            return bad(Some(region.made_by.clone()), tag, by);
        }
        heap.freed.carve(at, bytes);
        heap.regions.insert(at, Region { bytes, tag, made_by: by, heaps: Heaps::default() });
        None
    }

    /// A pool's region is free again. A free of what is no region is answered as a finding.
    pub(crate) fn free(&mut self, at: u64, by: Site, device: Option<usize>) -> Option<Report> {
        let Some((_, heap)) = self.innermost(at) else {
            return Some(Freed::default().bad_free(at, by, device));
        };
        match heap.regions.remove(&at) {
            Some(Region { bytes, tag, .. }) => {
                heap.freed.add(at, bytes, by, tag);
                None
            }
            None => Some(heap.freed.bad_free(at, by, device)),
        }
    }

    /// Names the innermost region that starts at `at`, if there is one.
    pub(crate) fn name(&mut self, at: u64, tag: &Arc<str>) -> bool {
        let region = self.innermost(at).and_then(|(_, heap)| heap.regions.get_mut(&at));
        region.map(|region| region.tag = Some(tag.clone())).is_some()
    }

    /// Who owns the byte at `at`.
    pub(crate) fn owner(&self, at: u64) -> Owner<'_> {
        let Some((_, heap)) = around(&self.0, at) else { return Owner::NoHeap };
        let Some((start, region)) = around(&heap.regions, at) else {
            return Owner::Nobody(&heap.freed);
        };
        match region.heaps.owner(at) {
            Owner::NoHeap => Owner::Region { end: start + region.bytes, tag: region.tag.as_ref() },
            inner => inner,
        }
    }

    /// The innermost heap around `at`, and where it starts.
    fn innermost(&mut self, at: u64) -> Option<(u64, &mut Heap)> {
        let level = self.level(at, &|_, region| around(&region.heaps.0, at).is_some())?;
        let (start, _) = around(&level.0, at)?;
        level.0.get_mut(&start).map(|heap| (start, heap))
    }

    /// The heaps inside of the innermost region around `at` that may be entered, by its start and
    /// itself; these heaps, if there is none.
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

/// Covers a range of addresses from its key on.
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
        self.bytes
    }
}

/// What covers `at`, and where it starts.
fn around<T: Extent>(map: &BTreeMap<u64, T>, at: u64) -> Option<(u64, &T)> {
    let (&start, found) = map.range(..=at).next_back()?;
    (at - start < found.bytes()).then_some((start, found))
}
