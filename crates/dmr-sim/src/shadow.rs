//! Allocations, regions of pools and freed memory by address, with the history of each byte: the checks of
//! every access.
//!
//! Checks run at submission. Every edge of the happens-before relation points from an earlier to
//! a later submission (a wait binds the record that was most recent at the call; the host finds
//! complete only submitted work), so the order of submission is one of its linearisations, and a
//! clock at submission has all operations that come before.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::address::{device_of, is_virtual};
use crate::freed::Freed;
use crate::history::{Access, Before, Check, History, Origin};
use crate::mapping::{Mapping, Mappings, Reach, Rights};
use crate::regions::{AddressState, Heaps};
use crate::report::{Report, ReportKind, Site, Verdict};
use crate::words::Words;

/// The history of all memory of a universe: devices and pinned host memory, by address (of mapped
/// memory, by its physical address).
#[derive(Default)]
pub(crate) struct Shadow {
    history: History,
    allocations: BTreeMap<u64, Allocation>,
    /// Freed memory, until its addresses are allocated again.
    freed: Freed,
    heaps: Heaps,
    pub(crate) mappings: Mappings,
    pub(crate) pool_access: PoolAccess,
    /// Words that streams write and wait for.
    pub(crate) words: Words,
}

/// One live allocation.
#[derive(Clone)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) home: Home,
    /// The operation that uses must come after, if the allocation is stream-ordered.
    pub(crate) made: Option<Access>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) tag: Option<Arc<str>>,
}

/// The origin of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// `cuMemAlloc` on this device.
    Device(usize),
    /// A memory pool (its index) on this device.
    Pool { device: usize, pool: u32 },
    /// Pinned host memory.
    Host,
}

/// The rights of other devices to the memory of the driver's pools: by pool and device.
#[derive(Default)]
pub(crate) struct PoolAccess(BTreeMap<(u32, usize), Rights>);

impl PoolAccess {
    /// Returns the right of `device` to the memory of a pool of another device.
    pub(crate) fn rights(&self, pool: u32, device: usize) -> Rights {
        self.0.get(&(pool, device)).copied().unwrap_or(Rights::None)
    }

    pub(crate) fn set(&mut self, pool: u32, device: usize, rights: Rights) {
        self.0.insert((pool, device), rights);
    }
}

impl Home {
    pub(crate) fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) | Self::Pool { device, .. } => Some(device),
            Self::Host => None,
        }
    }
}

/// The findings so far; bounded.
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
    /// Adds an allocation. All uses by previous owners of the addresses are complete: the driver has waited
    /// for them.
    pub(crate) fn allocate(&mut self, at: u64, allocation: Allocation) {
        let bytes = allocation.bytes;
        self.forget(at, bytes);
        self.freed.carve(at, bytes);
        self.allocations.insert(at, allocation);
    }

    /// Returns the allocation that starts at `at`.
    pub(crate) fn allocation(&self, at: u64) -> Option<&Allocation> {
        self.allocations.get(&at)
    }

    /// Returns the allocation that contains `at`.
    pub(crate) fn allocation_around(&self, at: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=at).next_back()?;
        (at - start < allocation.bytes).then_some((start, allocation))
    }

    /// Returns whether a live allocation has a byte of the range.
    pub(crate) fn overlaps(&self, at: u64, bytes: u64) -> bool {
        let last = self.allocations.range(..at.saturating_add(bytes)).next_back();
        last.is_some_and(|(start, allocation)| start + allocation.bytes > at)
    }

    /// Returns how many of `bytes` bytes at `at` the hardware can access: up to the end of the allocation or of
    /// the mappings there.
    pub(crate) fn reachable(&self, at: u64, bytes: u64, by: Reach<'_>, writes: bool) -> u64 {
        if is_virtual(at) {
            return self.mappings.reachable(at, bytes, by, writes);
        }
        self.allocation_around(at)
            .filter(|(_, allocation)| self.can_reach(allocation, by, writes))
            .map_or(0, |(start, allocation)| bytes.min(allocation.bytes - (at - start)))
    }

    /// Returns the live allocations, by address.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (u64, &Allocation)> {
        self.allocations.iter().map(|(&at, allocation)| (at, allocation))
    }

    /// Names an allocation or region for reports.
    pub(crate) fn name(&mut self, at: u64, tag: Arc<str>) {
        if !self.heaps.name(at, &tag)
            && let Some(allocation) = self.allocations.get_mut(&at)
        {
            allocation.tag = Some(tag);
        }
    }

    /// Frees the allocation at `at`, which must be ordered after every use: `clock` has the operations that come
    /// before the free.
    pub(crate) fn free(
        &mut self,
        at: u64,
        by: Site,
        before: Before<'_>,
        out: &mut Findings,
    ) -> Option<Allocation> {
        let Some(allocation) = self.allocations.remove(&at) else {
            out.push(self.bad_free(at, by));
            return None;
        };
        if let Some(made) = allocation.made.as_ref().filter(|made| !before.covers(made.epoch)) {
            let kind = ReportKind::UseBeforeAllocation;
            out.push(found(kind, Some(made.site()), by.clone(), &allocation, at));
        }
        if let Some((from, to, used)) = self.history.first_unordered(at, allocation.bytes, before) {
            let kind = ReportKind::FreeBeforeUse;
            let mut report = found(kind, Some(used.site()), by.clone(), &allocation, from);
            report.bytes = to - from;
            out.push(report);
        }
        self.forget(at, allocation.bytes);
        self.freed.add(at, allocation.bytes, by, allocation.tag.clone());
        Some(allocation)
    }

    /// Reports a free of `at`, which is no block.
    pub(crate) fn bad_free(&self, at: u64, by: Site) -> Report {
        self.freed.bad_free(at, by, self.device_at(at))
    }

    /// Removes freed memory whose addresses are returned to the system.
    pub(crate) fn forget_freed(&mut self, at: u64, bytes: u64) {
        self.freed.carve(at, bytes);
    }

    /// Checks an access of `bytes` bytes at `at`, and adds it to the history if it `happens`.
    pub(crate) fn access(
        &mut self,
        at: u64,
        bytes: u64,
        check: &Check<'_>,
        happens: bool,
        out: &mut Findings,
    ) {
        if bytes == 0 {
            return;
        }
        let Some((end, tag)) = self.check_bounds(at, bytes, check, out) else { return };
        if !happens {
            return;
        }
        let device = self.device_at(at);
        // The program can write pinned memory without a call.
        let known = device.is_none();
        let mut reported: SmallVec<[ReportKind; 2]> = SmallVec::new();
        for piece in self.mappings.pieces(at, end - at) {
            let from = piece.physical;
            for (kind, first, from, to) in
                self.history.access(from, from + piece.bytes, check, known)
            {
                // One operation is one mistake, in however many pieces its memory is.
                if reported.contains(&kind) {
                    continue;
                }
                reported.push(kind);
                let (tag, second, bytes) = (tag.clone(), check.access.site(), to - from);
                let address = piece.at + (from - piece.physical);
                out.push(Report { kind, first, second, device, address, bytes, tag });
            }
            if check.writes && !check.access.word {
                self.words.overwritten(piece.physical, piece.bytes, check);
            }
        }
        self.mappings.note(at, end - at, check.access, check.writes);
    }

    /// Adds a mapping at reserved addresses.
    pub(crate) fn map(&mut self, at: u64, mapping: Mapping) {
        self.freed.carve(at, mapping.bytes);
        self.mappings.insert(at, mapping);
    }

    /// Removes the mapping at `at`; a report of a later access names the operation.
    pub(crate) fn unmap(&mut self, at: u64, by: Site) -> Option<Mapping> {
        let mapping = self.mappings.remove(at)?;
        self.freed.add(at, mapping.bytes, by, None);
        Some(mapping)
    }

    /// Removes the history of physical memory, whose new owner need not be ordered after it.
    pub(crate) fn renew(&mut self, physical: u64, bytes: u64) {
        self.history.forget(physical, bytes);
        self.words.forget(physical, bytes);
    }

    /// Removes reserved addresses, with the freed mappings there.
    pub(crate) fn unreserve(&mut self, at: u64, bytes: u64) {
        self.freed.carve(at, bytes);
        self.heaps.remove(at, bytes);
    }

    /// Returns the device that the memory is on, if it is on one.
    pub(crate) fn device_at(&self, at: u64) -> Option<usize> {
        if is_virtual(at) {
            return self.mappings.around(at).map(|(_, mapping)| mapping.device);
        }
        device_of(at)
    }

    /// Adds a heap of a pool: `bytes` bytes at `at`, which may be accessed only in regions.
    pub(crate) fn heap_created(&mut self, at: u64, bytes: u64) {
        self.heaps.create(at, bytes);
    }

    /// Removes a heap.
    pub(crate) fn heap_destroyed(&mut self, at: u64) {
        self.heaps.destroy(at);
    }

    /// Adds a region, which may be accessed from now on. Its history stays; its content is undefined, except in host
    /// memory, which the program can write without a call.
    pub(crate) fn region_allocated(
        &mut self,
        at: u64,
        bytes: u64,
        tag: Option<Arc<str>>,
        by: Site,
        out: &mut Findings,
    ) {
        match self.heaps.allocate(at, bytes, tag, by, self.device_at(at)) {
            Some(finding) => out.push(finding),
            None if !is_virtual(at) && self.device_at(at).is_none() => {}
            None => {
                for piece in self.mappings.pieces(at, bytes) {
                    self.history.undefine(piece.physical, piece.bytes);
                }
            }
        }
    }

    /// Removes a region, which may not be accessed any more. In host memory the region must be ordered after every
    /// use, because the host may write it from now on without a call: `clock` has the operations that come before.
    pub(crate) fn region_freed(
        &mut self,
        at: u64,
        by: Site,
        before: Before<'_>,
        out: &mut Findings,
    ) {
        let device = self.device_at(at);
        let (bytes, tag) = match self.heaps.free(at, by.clone(), device) {
            Ok(freed) => freed,
            Err(finding) => return out.push(*finding),
        };
        if is_virtual(at) || device.is_some() {
            return;
        }
        if let Some((from, to, used)) = self.history.first_unordered(at, bytes, before) {
            let (kind, first) = (ReportKind::FreeBeforeUse, Some(used.site()));
            let (address, bytes) = (from, to - from);
            out.push(Report { kind, first, second: by, device, address, bytes, tag });
        }
    }

    /// Checks that the range is inside one live allocation (and region), and reports if it is not. Returns the
    /// end of the part that is, and the owner's name.
    fn check_bounds(
        &self,
        at: u64,
        bytes: u64,
        check: &Check<'_>,
        out: &mut Findings,
    ) -> Option<(u64, Option<Arc<str>>)> {
        let second = check.access.site();
        if is_virtual(at) {
            return self.check_mapped(at, bytes, check, out);
        }
        let Some((start, allocation)) = self.allocation_around(at) else {
            out.push(self.freed.bad_use(at, bytes, second, device_of(at)));
            return None;
        };
        let device = allocation.home.device();
        if !self.can_reach(allocation, check.reach, check.writes) {
            out.push(found(ReportKind::NoPeerAccess, None, second, allocation, at));
            return None;
        }
        let (owner_end, tag) = match self.heaps.owner(at) {
            AddressState::NoHeap => (start + allocation.bytes, allocation.tag.as_ref()),
            AddressState::Region { end, tag } => (end.min(start + allocation.bytes), tag),
            AddressState::NoRegion(freed) => {
                out.push(freed.bad_use(at, bytes, second, device));
                return None;
            }
        };
        if let Some(made) = allocation.made.as_ref().filter(|m| !check.before.covers(m.epoch)) {
            let kind = ReportKind::UseBeforeAllocation;
            let mut report = found(kind, Some(made.site()), second.clone(), allocation, at);
            (report.bytes, report.tag) = (bytes, tag.cloned());
            out.push(report);
        }
        let (end, tag) = (at.saturating_add(bytes), tag.cloned());
        if end > owner_end {
            let (kind, first, tag) = (ReportKind::OutOfBounds, None, tag.clone());
            let (address, bytes) = (owner_end, end - owner_end);
            out.push(Report { kind, first, second, device, address, bytes, tag });
        }
        Some((end.min(owner_end), tag))
    }

    /// Checks a range of virtual addresses, which may have several mappings, each with the needed
    /// rights. Returns the end of the accessible part, and the owner's name.
    fn check_mapped(
        &self,
        at: u64,
        bytes: u64,
        check: &Check<'_>,
        out: &mut Findings,
    ) -> Option<(u64, Option<Arc<str>>)> {
        let mapped_end = at + self.mappings.reachable(at, bytes, check.reach, check.writes);
        let end = at.saturating_add(bytes);
        if mapped_end == at {
            out.push(self.out_of_reach(at, bytes, check));
            return None;
        }
        let (owner_end, tag) = match self.heaps.owner(at) {
            AddressState::NoHeap => (u64::MAX, None),
            AddressState::Region { end, tag } => (end, tag.cloned()),
            AddressState::NoRegion(freed) => {
                out.push(freed.bad_use(at, bytes, check.access.site(), self.device_at(at)));
                return None;
            }
        };
        if end > owner_end {
            let (kind, first, second) = (ReportKind::OutOfBounds, None, check.access.site());
            let (address, bytes, device) = (owner_end, end - owner_end, self.device_at(at));
            out.push(Report { kind, first, second, device, address, bytes, tag: tag.clone() });
        } else if end > mapped_end {
            out.push(self.out_of_reach(mapped_end, end - mapped_end, check));
        }
        Some((end.min(owner_end).min(mapped_end), tag))
    }

    /// Reports an access of virtual addresses that are not mapped, or without the right to them.
    fn out_of_reach(&self, at: u64, bytes: u64, check: &Check<'_>) -> Report {
        let second = check.access.site();
        match self.mappings.around(at) {
            None => self.freed.bad_use(at, bytes, second, None),
            Some((_, mapping)) => Report {
                kind: ReportKind::NoAccess,
                first: Some(mapping.origin.site(None)),
                second,
                device: Some(mapping.device),
                address: at,
                bytes,
                tag: None,
            },
        }
    }

    /// Returns whether the work can access the allocation: memory of `cuMemAlloc` by the peer access of its
    /// context, memory of a pool by the pool's own, and all memory if it is a copy.
    fn can_reach(&self, allocation: &Allocation, by: Reach<'_>, writes: bool) -> bool {
        let Some(devices) = by.peers else { return true };
        match allocation.home {
            Home::Host => true,
            Home::Device(device) => devices.contains(&device),
            Home::Pool { device, .. } if device == by.device => true,
            Home::Pool { pool, .. } => {
                self.pool_access.rights(pool, by.device) >= Rights::needed(writes)
            }
        }
    }

    fn forget(&mut self, at: u64, bytes: u64) {
        self.history.forget(at, bytes);
        self.words.forget(at, bytes);
        self.heaps.remove(at, bytes);
    }
}

/// Makes a report about an allocation, from `at` to its end.
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
