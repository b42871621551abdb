//! What lives where: allocations, pools' regions, and what was freed; with the history of each
//! byte, the judge of every access.
//!
//! Checks run at submission. Every edge of the happens-before relation points from an earlier to
//! a later submission (a wait binds the record that was most recent at the call; the host learns
//! only of what was submitted), so the order of submission is one of its linearisations, and a
//! clock at submission knows all that comes before.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Clock;
use crate::history::{Access, Check, History, Origin};
use crate::report::{Report, ReportKind, Site, Verdict};

/// The history of all memory of a universe: devices and pinned host memory, by address.
#[derive(Default)]
pub(crate) struct Shadow {
    history: History,
    allocations: BTreeMap<u64, Allocation>,
    /// What was freed, until its addresses are allocated again.
    freed: BTreeMap<u64, Gone>,
    heaps: BTreeMap<u64, Heap>,
}

/// One live allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) home: Home,
    /// The operation to come after, if it is stream-ordered.
    pub(crate) made: Option<Access>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) tag: Option<Arc<str>>,
}

/// Where an allocation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// `cuMemAlloc` on this device.
    Device(usize),
    /// A memory pool (its index) on this device.
    Pool { device: usize, pool: u32 },
    /// Pinned host memory.
    Host,
}

impl Home {
    pub(crate) fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) | Self::Pool { device, .. } => Some(device),
            Self::Host => None,
        }
    }
}

struct Gone {
    bytes: u64,
    freed_by: Site,
    tag: Option<Arc<str>>,
}

/// Memory that a pool carves up: only its regions may be touched.
#[derive(Default)]
struct Heap {
    bytes: u64,
    regions: BTreeMap<u64, Region>,
    freed: BTreeMap<u64, Gone>,
}

struct Region {
    bytes: u64,
    tag: Option<Arc<str>>,
}

/// Findings as they come; bounded.
#[derive(Default)]
pub(crate) struct Findings(pub(crate) Verdict);

impl Findings {
    pub(crate) fn push(&mut self, report: Report) {
        if self.0.reports.len() < Verdict::MAX_REPORTS {
            self.0.reports.push(report);
        } else {
            self.0.dropped += 1;
        }
    }
}

impl Shadow {
    /// A new allocation. Whatever the addresses' previous owners did is over: the driver saw to
    /// it.
    pub(crate) fn allocate(&mut self, at: u64, allocation: Allocation) {
        let bytes = allocation.bytes;
        self.forget(at, bytes);
        remove_overlapping(&mut self.freed, at, bytes);
        self.allocations.insert(at, allocation);
    }

    /// The allocation that starts at `at`.
    pub(crate) fn allocation(&self, at: u64) -> Option<&Allocation> {
        self.allocations.get(&at)
    }

    /// The allocation that `at` is inside of.
    pub(crate) fn allocation_around(&self, at: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=at).next_back()?;
        (at - start < allocation.bytes).then_some((start, allocation))
    }

    /// Live allocations, by address.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&at, allocation)| (at, allocation))
    }

    /// Names an allocation or region for reports.
    pub(crate) fn name(&mut self, at: u64, tag: Arc<str>) {
        let region = self.heap_around(at).and_then(|start| {
            self.heaps.get_mut(&start).and_then(|heap| heap.regions.get_mut(&at))
        });
        if let Some(region) = region {
            region.tag = Some(tag);
        } else if let Some(allocation) = self.allocations.get_mut(&at) {
            allocation.tag = Some(tag);
        }
    }

    /// Frees the allocation at `at`. With a clock, the free must be ordered after every use;
    /// without, the driver has waited for all of them.
    pub(crate) fn free(
        &mut self,
        at: u64,
        by: Site,
        clock: Option<&Clock>,
        out: &mut Findings,
    ) -> Option<Allocation> {
        let Some(allocation) = self.allocations.remove(&at) else {
            out.push(self.bad_free(at, by));
            return None;
        };
        if let Some(clock) = clock {
            if let Some(made) = allocation.made.as_ref().filter(|made| !clock.covers(made.epoch)) {
                let kind = ReportKind::UseBeforeAllocation;
                out.push(found(kind, Some(made.site()), by.clone(), &allocation, at));
            }
            if let Some((from, to, used)) =
                self.history.first_unordered(at, allocation.bytes, clock)
            {
                let kind = ReportKind::FreeBeforeUse;
                let mut report = found(kind, Some(used.site()), by.clone(), &allocation, from);
                report.bytes = to - from;
                out.push(report);
            }
        }
        self.forget(at, allocation.bytes);
        let gone = Gone { bytes: allocation.bytes, freed_by: by, tag: allocation.tag.clone() };
        remove_overlapping(&mut self.freed, at, allocation.bytes);
        self.freed.insert(at, gone);
        Some(allocation)
    }

    /// The addresses go back to the system: what was freed there is history no more.
    pub(crate) fn forget_freed(&mut self, at: u64, bytes: u64) {
        remove_overlapping(&mut self.freed, at, bytes);
    }

    /// Checks an access of `bytes` bytes at `at` and adds it to the history.
    pub(crate) fn access(&mut self, at: u64, bytes: u64, check: &Check<'_>, out: &mut Findings) {
        if bytes == 0 {
            return;
        }
        let Some(end) = self.check_bounds(at, bytes, check, out) else { return };
        let device = self.allocation_around(at).and_then(|(_, found)| found.home.device());
        let tag = self.tag_of(at);
        // The program fills pinned memory unseen.
        let known = device.is_none();
        for (kind, first, from, to) in self.history.access(at, end, check, known) {
            let (tag, second, bytes) = (tag.clone(), check.access.site(), to - from);
            out.push(Report { kind, first, second, device, address: from, bytes, tag });
        }
    }

    /// `bytes` bytes at `at` now belong to a pool; nothing may be touched outside of regions.
    pub(crate) fn heap_created(&mut self, at: u64, bytes: u64) {
        remove_overlapping(&mut self.heaps, at, bytes);
        self.heaps.insert(at, Heap { bytes, ..Heap::default() });
    }

    /// The pool gives the memory back.
    pub(crate) fn heap_destroyed(&mut self, at: u64) {
        self.heaps.remove(&at);
    }

    /// A region may be touched from now on. Its history stays; its content is undefined.
    pub(crate) fn region_allocated(&mut self, at: u64, bytes: u64, tag: Option<Arc<str>>) {
        let Some(heap) = self.heap_around(at).and_then(|start| self.heaps.get_mut(&start)) else {
            return;
        };
        remove_overlapping(&mut heap.freed, at, bytes);
        heap.regions.insert(at, Region { bytes, tag });
        self.history.undefine(at, bytes);
    }

    /// A region may not be touched any more.
    pub(crate) fn region_freed(&mut self, at: u64, by: Site) {
        let Some(heap) = self.heap_around(at).and_then(|start| self.heaps.get_mut(&start)) else {
            return;
        };
        if let Some(Region { bytes, tag }) = heap.regions.remove(&at) {
            heap.freed.insert(at, Gone { bytes, freed_by: by, tag });
        }
    }

    /// Whether the range lies inside one live allocation (and region); reports if not, and
    /// answers where the part that does ends.
    fn check_bounds(
        &self,
        at: u64,
        bytes: u64,
        check: &Check<'_>,
        out: &mut Findings,
    ) -> Option<u64> {
        let second = check.access.site();
        let Some((start, allocation)) = self.allocation_around(at) else {
            out.push(no_owner(&self.freed, at, bytes, second, device_of_address(at)));
            return None;
        };
        let device = allocation.home.device();
        let denied = |devices: &[usize]| device.is_some_and(|device| !devices.contains(&device));
        if check.devices.is_some_and(denied) {
            out.push(found(ReportKind::NoPeerAccess, None, second, allocation, at));
            return None;
        }
        let mut owner_end = start + allocation.bytes;
        let mut tag = allocation.tag.clone();
        if let Some(heap) = self.heap_around(at).and_then(|start| self.heaps.get(&start)) {
            match heap.regions.range(..=at).next_back() {
                Some((&start, region)) if at - start < region.bytes => {
                    owner_end = start + region.bytes;
                    tag = region.tag.clone();
                }
                _ => {
                    out.push(no_owner(&heap.freed, at, bytes, second, device));
                    return None;
                }
            }
        }
        if let Some(made) = allocation.made.as_ref().filter(|m| !check.clock.covers(m.epoch)) {
            let kind = ReportKind::UseBeforeAllocation;
            let mut report = found(kind, Some(made.site()), second.clone(), allocation, at);
            report.bytes = bytes;
            out.push(report);
        }
        let end = at.saturating_add(bytes);
        if end > owner_end {
            let (kind, first) = (ReportKind::OutOfBounds, None);
            let (address, bytes) = (owner_end, end - owner_end);
            out.push(Report { kind, first, second, device, address, bytes, tag });
        }
        Some(end.min(owner_end))
    }

    fn bad_free(&self, at: u64, by: Site) -> Report {
        let gone = self.freed.get(&at);
        Report {
            kind: if gone.is_some() { ReportKind::DoubleFree } else { ReportKind::UnknownFree },
            first: gone.map(|gone| gone.freed_by.clone()),
            second: by,
            device: device_of_address(at),
            address: at,
            bytes: gone.map_or(0, |gone| gone.bytes),
            tag: gone.and_then(|gone| gone.tag.clone()),
        }
    }

    fn heap_around(&self, at: u64) -> Option<u64> {
        let (&start, heap) = self.heaps.range(..=at).next_back()?;
        (at - start < heap.bytes).then_some(start)
    }

    fn tag_of(&self, at: u64) -> Option<Arc<str>> {
        if let Some(heap) = self.heap_around(at).and_then(|start| self.heaps.get(&start)) {
            return heap.regions.range(..=at).next_back().and_then(|(_, r)| r.tag.clone());
        }
        self.allocation_around(at).and_then(|(_, allocation)| allocation.tag.clone())
    }

    fn forget(&mut self, at: u64, bytes: u64) {
        self.history.forget(at, bytes);
        remove_overlapping(&mut self.heaps, at, bytes);
    }
}

/// A report about an allocation, from `at` to its end.
fn found(
    kind: ReportKind,
    first: Option<Site>,
    second: Site,
    allocation: &Allocation,
    address: u64,
) -> Report {
    let (device, tag) = (allocation.home.device(), allocation.tag.clone());
    Report { kind, first, second, device, address, bytes: allocation.bytes, tag }
}

/// An access where nothing lives: after a free, or where nothing ever was.
fn no_owner(
    freed: &BTreeMap<u64, Gone>,
    at: u64,
    bytes: u64,
    second: Site,
    device: Option<usize>,
) -> Report {
    let last = freed.range(..=at).next_back();
    let gone = last.filter(|(start, gone)| at - **start < gone.bytes).map(|(_, gone)| gone);
    Report {
        kind: if gone.is_some() { ReportKind::UseAfterFree } else { ReportKind::OutOfBounds },
        first: gone.map(|gone| gone.freed_by.clone()),
        second,
        device,
        address: at,
        bytes,
        tag: gone.and_then(|gone| gone.tag.clone()),
    }
}

fn device_of_address(at: u64) -> Option<usize> {
    crate::address::device_of(at)
}

/// Things that cover a range of addresses from their key on.
trait Extent {
    fn bytes(&self) -> u64;
}
impl Extent for Gone {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}
impl Extent for Heap {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn remove_overlapping<T: Extent>(map: &mut BTreeMap<u64, T>, at: u64, bytes: u64) {
    let before = map.range(..at).next_back();
    let first = before.filter(|(s, t)| **s + t.bytes() > at).map_or(at, |(&start, _)| start);
    while let Some((&start, _)) = map.range(first..at + bytes).next() {
        map.remove(&start);
    }
}
