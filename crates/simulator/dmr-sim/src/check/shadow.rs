//! Allocations, regions of pools and freed memory by address, with the history of each byte: the
//! checks of every access.
//!
//! Checks run at submission. Every edge of the happens-before relation points from an earlier to
//! a later submission (a wait binds the record that was most recent at the call; the host finds
//! complete only submitted work), so the order of submission is one of its linearisations, and a
//! clock at submission has all operations that come before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::access::byte_set::ByteSet;
use crate::check::declared::OwnedBlock;
use crate::check::findings::Findings;
use crate::check::freed::Freed;
use crate::check::history::{AccessKind, Before, Check, History};
use crate::check::regions::{AddressState, Heaps};
use crate::check::report::{Report, ReportKind, Site};
use crate::check::words::Words;
use crate::machine::leaks::leak;
use crate::memory::address::{ALIGNMENT, device_of, is_virtual};
use crate::memory::mapping::Mapping;
use crate::memory::memory_map::{Allocation, MemoryMap};

/// The history of all memory of a universe: devices and pinned host memory, by address (of mapped
/// memory, by its physical address).
#[derive(Default)]
pub(crate) struct Shadow {
    history: History,
    /// The owners of addresses, after the last operation that was checked.
    pub(crate) map: MemoryMap,
    /// Freed memory, until its addresses are allocated again.
    freed: Freed,
    heaps: Heaps,
    /// Blocks of a library that are no regions, by their first byte.
    blocks: BTreeMap<u64, OwnedBlock>,
    /// Words that streams write and wait for.
    pub(crate) words: Words,
}

impl Shadow {
    /// Adds an allocation. All uses by previous owners of the addresses are complete: the driver
    /// has waited for them.
    pub(crate) fn allocate(&mut self, at: u64, allocation: Allocation) {
        let bytes = allocation.bytes;
        self.forget(at, bytes);
        self.freed.carve(at, bytes);
        self.map.insert(at, allocation);
    }

    /// Names an allocation or region for reports.
    pub(crate) fn name(&mut self, at: u64, tag: Arc<str>) {
        if !self.heaps.name(at, &tag) {
            self.map.name(at, tag);
        }
    }

    /// Adds a block of a library that is no region of a pool. It ends when its memory is freed or
    /// unmapped.
    pub(crate) fn block_allocated(&mut self, block: OwnedBlock) {
        if let Some(tag) = &block.tag {
            self.map.name(block.start, tag.clone());
        }
        self.blocks.insert(block.start, block);
    }

    /// Removes a block of a library whose memory is not freed.
    pub(crate) fn block_given_away(&mut self, at: u64) {
        self.blocks.remove(&at);
    }

    /// Returns the block of a library that contains `at`: the innermost region, or a block that is
    /// none.
    pub(crate) fn block_around(&self, at: u64) -> Option<OwnedBlock> {
        self.heaps.region_around(at).or_else(|| {
            let (_, block) = self.blocks.range(..=at).next_back()?;
            (at < block.end).then(|| block.clone())
        })
    }

    /// Calls `visit` with a leak for each block of a library that is a region, or that is in mapped
    /// memory. A block that is an allocation is reported as that.
    pub(crate) fn each_block(&self, visit: &mut dyn FnMut(Report)) {
        let mut regions = BTreeSet::new();
        self.heaps.each_block(&mut |leak| {
            let at = leak.address;
            let is_allocated = self.map.allocation_around(at).is_some();
            if is_allocated || self.map.mappings.around(at).is_some() {
                regions.insert(at);
                visit(leak);
            }
        });
        for block in self.blocks.values() {
            let Some((_, mapping)) = self.map.mappings.around(block.start) else { continue };
            if regions.range(block.start..block.end).next().is_none() {
                let made_by = mapping.origin.site(None);
                let bytes = block.end - block.start;
                visit(Report { tag: block.tag.clone(), ..leak(block.start, bytes, made_by) });
            }
        }
    }

    /// Returns the extent of the allocation, or of the mapping, that contains `at`.
    pub(crate) fn extent_around(&self, at: u64) -> (u64, u64) {
        let mapped = self.map.mappings.around(at).map(|(start, mapping)| (start, mapping.bytes));
        let found = self.map.allocation_around(at).map(|(start, it)| (start, it.bytes)).or(mapped);
        found.map_or((at, at), |(start, bytes)| (start, start + bytes))
    }

    /// Frees the allocation at `at`, which must be ordered after every use: `clock` has the
    /// operations that come before the free.
    pub(crate) fn free(&mut self, at: u64, by: Site, before: Before<'_>, out: &mut Findings) {
        let Some(allocation) = self.map.remove(at) else {
            return out.push(self.bad_free(at, by));
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
    }

    /// Reports a free of `at`, which is no block.
    pub(crate) fn bad_free(&self, at: u64, by: Site) -> Report {
        self.freed.bad_free(at, by, self.map.device_at(at))
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
        self.compare(at, end, check, out);
        let device = self.map.device_at(at);
        // The program can write pinned memory without a call.
        let known = device.is_none();
        let mut reported: SmallVec<[ReportKind; 2]> = SmallVec::new();
        for piece in self.map.mappings.pieces(at, end - at) {
            let from = piece.physical;
            for (kind, first, from, to) in
                self.history.access(from, from + piece.bytes, check, known)
            {
                // One operation is one mistake, in however many pieces its memory is.
                if reported.contains(&kind) {
                    continue;
                }
                reported.push(kind);
                let address = piece.at + (from - piece.physical);
                let found = Report::new(kind, check.access.site()).after(first);
                out.push(found.about(device, address, to - from).tagged(tag.clone()));
            }
            if check.writes && check.access.kind != AccessKind::Word {
                self.words.overwritten(piece.physical, piece.bytes, check);
            }
        }
        self.map.mappings.note(at, end - at, check.access, check.writes);
    }

    /// Returns how many of `bytes` recorded bytes at `at` are of one block: they are checked as one
    /// access. The rest belongs to the next block, unless one access crosses the end of this one,
    /// or nothing is live behind it.
    pub(crate) fn part(&self, at: u64, bytes: u64, straddled: &ByteSet) -> u64 {
        let end = at + bytes;
        let block_end = match self.heaps.owner(at) {
            AddressState::Region { end, .. } => Some(end),
            AddressState::NoRegion(_) => None,
            AddressState::NoHeap if is_virtual(at) => {
                self.map.mappings.around(at).map(|(start, mapping)| start + mapping.bytes)
            }
            AddressState::NoHeap => {
                let around = self.map.allocation_around(at);
                around.map(|(start, allocation)| start + allocation.bytes)
            }
        };
        let next = match block_end {
            Some(next) if next < end && self.is_block(next) => next,
            Some(_) => return bytes,
            None if is_virtual(at) => return bytes,
            None => match self.map.next_start(at) {
                Some(next) if next < end => next,
                _ => return bytes,
            },
        };
        let crosses = next.is_multiple_of(ALIGNMENT) && straddled.contains(next / ALIGNMENT);
        // Mappings side by side are one memory, until a region ends.
        let is_joined = is_virtual(at) && matches!(self.heaps.owner(at), AddressState::NoHeap);
        if crosses && !is_joined { bytes } else { next - at }
    }

    /// Returns whether the byte belongs to a block: a region, a mapping, or an allocation.
    fn is_block(&self, at: u64) -> bool {
        match self.heaps.owner(at) {
            AddressState::Region { .. } => true,
            AddressState::NoRegion(_) => false,
            AddressState::NoHeap if is_virtual(at) => self.map.mappings.around(at).is_some(),
            AddressState::NoHeap => self.map.allocation_around(at).is_some(),
        }
    }

    /// Adds a mapping at reserved addresses.
    pub(crate) fn map(&mut self, at: u64, mapping: Mapping) {
        self.freed.carve(at, mapping.bytes);
        self.map.mappings.insert(at, mapping);
    }

    /// Removes the mapping at `at`; a report of a later access names the operation.
    pub(crate) fn unmap(&mut self, at: u64, by: Site) {
        if let Some(mapping) = self.map.mappings.remove(at) {
            self.forget_blocks(at, mapping.bytes);
            self.freed.add(at, mapping.bytes, by, None);
        }
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

    /// Adds a heap of a pool: `bytes` bytes at `at`, which may be accessed only in regions.
    pub(crate) fn heap_created(&mut self, at: u64, bytes: u64) {
        self.heaps.create(at, bytes);
    }

    /// Removes a heap.
    pub(crate) fn heap_destroyed(&mut self, at: u64) {
        self.heaps.destroy(at);
    }

    /// Adds a region, which may be accessed from now on. Its history stays; its content is
    /// undefined.
    pub(crate) fn region_allocated(&mut self, owned: OwnedBlock, by: Site, out: &mut Findings) {
        let at = owned.start;
        let bytes = owned.end - owned.start;
        match self.heaps.allocate(owned, by, self.map.device_at(at)) {
            Some(finding) => out.push(finding),
            None => self.undefine(at, bytes, None),
        }
    }

    /// Marks bytes as not written, or as stored with a value that nothing has written, except in
    /// host memory, which the program can write without a call. Their history stays.
    pub(crate) fn undefine(&mut self, at: u64, bytes: u64, store: Option<&Site>) {
        if !is_virtual(at) && self.map.device_at(at).is_none() {
            return;
        }
        for piece in self.map.mappings.pieces(at, bytes) {
            self.history.undefine(piece.physical, piece.bytes, store);
        }
    }

    /// Removes a region, which may not be accessed any more. In host memory the region must be
    /// ordered after every use, because the host may write it from now on without a call: `clock`
    /// has the operations that come before.
    pub(crate) fn region_freed(
        &mut self,
        at: u64,
        by: Site,
        before: Before<'_>,
        out: &mut Findings,
    ) {
        let device = self.map.device_at(at);
        let (bytes, tag) = match self.heaps.free(at, by.clone(), device) {
            Ok(freed) => freed,
            Err(finding) => return out.push(*finding),
        };
        if is_virtual(at) || device.is_some() {
            return;
        }
        if let Some((from, to, used)) = self.history.first_unordered(at, bytes, before) {
            let found = Report::new(ReportKind::FreeBeforeUse, by).after(Some(used.site()));
            out.push(found.about(device, from, to - from).tagged(tag));
        }
    }

    /// Checks that the range is inside one live allocation (and region), and reports if it is not.
    /// Returns the end of the part that is, and the owner's name.
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
        let Some((start, allocation)) = self.map.allocation_around(at) else {
            out.push(self.freed.bad_use(at, bytes, second, device_of(at)));
            return None;
        };
        let device = allocation.home.device();
        if !self.map.can_reach(allocation.home, check.reach, check.writes) {
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
            report.bytes = bytes;
            report.tag = tag.cloned();
            out.push(report);
        }
        let end = at.saturating_add(bytes);
        let tag = tag.cloned();
        if end > owner_end {
            let found = Report::new(ReportKind::OutOfBounds, second).tagged(tag.clone());
            out.push(found.about(device, owner_end, end - owner_end));
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
        let mapped_end = at + self.map.mappings.reachable(at, bytes, check.reach, check.writes);
        let end = at.saturating_add(bytes);
        if mapped_end == at {
            out.push(self.out_of_reach(at, bytes, check));
            return None;
        }
        let (owner_end, tag) = match self.heaps.owner(at) {
            AddressState::NoHeap => (u64::MAX, None),
            AddressState::Region { end, tag } => (end, tag.cloned()),
            AddressState::NoRegion(freed) => {
                out.push(freed.bad_use(at, bytes, check.access.site(), self.map.device_at(at)));
                return None;
            }
        };
        if end > owner_end {
            let found = Report::new(ReportKind::OutOfBounds, check.access.site());
            let found = found.about(self.map.device_at(at), owner_end, end - owner_end);
            out.push(found.tagged(tag.clone()));
        } else if end > mapped_end {
            out.push(self.out_of_reach(mapped_end, end - mapped_end, check));
        }
        Some((end.min(owner_end).min(mapped_end), tag))
    }

    /// Reports an access of virtual addresses that are not mapped, or without the right to them.
    fn out_of_reach(&self, at: u64, bytes: u64, check: &Check<'_>) -> Report {
        let second = check.access.site();
        match self.map.mappings.around(at) {
            None => self.freed.bad_use(at, bytes, second, None),
            Some((_, mapping)) => Report::new(ReportKind::NoAccess, second)
                .after(Some(mapping.origin.site(None)))
                .about(Some(mapping.device), at, bytes),
        }
    }

    fn forget(&mut self, at: u64, bytes: u64) {
        self.history.forget(at, bytes);
        self.words.forget(at, bytes);
        self.heaps.remove(at, bytes);
        self.forget_blocks(at, bytes);
    }

    fn forget_blocks(&mut self, at: u64, bytes: u64) {
        while let Some((&start, _)) = self.blocks.range(at..at.saturating_add(bytes)).next() {
            self.blocks.remove(&start);
        }
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
    Report::new(kind, second)
        .after(first)
        .about(allocation.home.device(), address, allocation.bytes)
        .tagged(allocation.tag.clone())
}
