//! Allocations, regions of pools and freed memory by address, with the history of each byte: the
//! checks of every access.
//!
//! Checks run at submission. Every edge of the happens-before relation points from an earlier to
//! a later submission (a wait binds the record that was most recent at the call; the host finds
//! complete only submitted work), so the order of submission is one of its linearisations, and a
//! clock at submission has all operations that come before. A finding therefore does not depend on
//! the order in which the scheduler executes the work.
//!
//! An access first has to be inside of one live block that the device can reach; what is left of it
//! is compared with the declaration of its launch, and then with the history of its bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::access::{AccessKind, AddressRange, Site};
use crate::check::{
    AddressState, Before, Check, Finding, Findings, Freed, Heaps, History, LibraryBlock, Report,
    ReportKind, Words,
};
use crate::kernel::ByteSet;
use crate::memory::{
    Allocation, Mapping, MemoryMap,
    address::{ALIGNMENT, device_of, is_virtual},
};

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
    blocks: BTreeMap<u64, LibraryBlock>,
    /// Words that streams write and wait for.
    pub(crate) words: Words,
}

impl Shadow {
    /// Adds an allocation. All uses by previous owners of the addresses are complete: the driver
    /// has waited for them.
    pub(crate) fn allocate(&mut self, at: u64, allocation: Allocation) {
        let range = AddressRange::new(at, allocation.bytes);
        self.clear(range);
        self.freed.remove_range(range);
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
    pub(crate) fn block_allocated(&mut self, block: LibraryBlock) {
        let at = block.range.start();
        if let Some(tag) = &block.tag {
            self.map.name(at, tag.clone());
        }
        self.blocks.insert(at, block);
    }

    /// Removes a block of a library whose memory is not freed.
    pub(crate) fn block_given_away(&mut self, at: u64) {
        self.blocks.remove(&at);
    }

    /// Returns the block of a library that contains `at`: the innermost region, or a block that is
    /// none.
    pub(crate) fn block_around(&self, at: u64) -> Option<LibraryBlock> {
        self.heaps.region_around(at).or_else(|| {
            let (_, block) = self.blocks.range(..=at).next_back()?;
            (at < block.range.end()).then(|| block.clone())
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
            let at = block.range.start();
            let Some((_, mapping)) = self.map.mappings.around(at) else { continue };
            if regions.range(at..block.range.end()).next().is_none() {
                let made_by = mapping.origin.site(None);
                visit(Report::leak(block.range, made_by).tagged(block.tag.clone()));
            }
        }
    }

    /// Returns the extent of the allocation, or of the mapping, that contains `at`.
    pub(crate) fn extent_around(&self, at: u64) -> AddressRange {
        let allocated = self.map.allocation_around(at);
        let allocated = allocated.map(|(start, it)| AddressRange::new(start, it.bytes));
        let mapped = || self.map.mappings.around(at);
        let mapped = || mapped().map(|(start, it)| AddressRange::new(start, it.bytes));
        allocated.or_else(mapped).unwrap_or(AddressRange::new(at, 0))
    }

    /// Frees the allocation at `at`, which must be ordered after every use: `clock` has the
    /// operations that come before the free.
    pub(crate) fn free(&mut self, at: u64, by: Site, before: Before<'_>, out: &mut Findings) {
        let Some(allocation) = self.map.remove(at) else {
            return out.push(self.bad_free(at, by));
        };
        let range = AddressRange::new(at, allocation.bytes);
        if let Some(made) = allocation.made.as_ref().filter(|made| !before.covers(made.epoch)) {
            let kind = ReportKind::UseBeforeAllocation;
            let report = Report::new(kind, by.clone()).after(Some(made.site()));
            out.push(report.about_allocation(&allocation, range));
        }
        if let Some((bytes, used)) = self.history.first_unordered(range, before) {
            let kind = ReportKind::FreeBeforeUse;
            let report = Report::new(kind, by.clone()).after(Some(used.site()));
            out.push(report.about_allocation(&allocation, bytes));
        }
        self.clear(range);
        self.freed.add(range, by, allocation.tag.clone());
    }

    /// Reports a free of `at`, which is no block.
    pub(crate) fn bad_free(&self, at: u64, by: Site) -> Report {
        self.freed.bad_free(at, by, self.map.device_at(at))
    }

    /// Removes freed memory whose addresses are returned to the system.
    pub(crate) fn clear_freed(&mut self, range: AddressRange) {
        self.freed.remove_range(range);
    }

    /// Checks an access of the bytes, and adds it to the history if it `happens`.
    pub(crate) fn access(
        &mut self,
        range: AddressRange,
        check: &Check<'_>,
        happens: bool,
        out: &mut Findings,
    ) {
        if range.is_empty() {
            return;
        }
        let Some((range, tag)) = self.check_bounds(range, check, out) else { return };
        if !happens {
            return;
        }
        self.compare(range, check, out);
        let at = range.start();
        let device = self.map.device_at(at);
        // The program can write pinned memory without a call.
        let known = device.is_none();
        let mut reported: SmallVec<[ReportKind; 2]> = SmallVec::new();
        for piece in self.map.mappings.pieces(at, range.len()) {
            let physical = AddressRange::new(piece.physical, piece.bytes);
            for Finding { kind, first, bytes } in self.history.access(physical, check, known) {
                // One operation is one mistake, in however many pieces its memory is.
                if reported.contains(&kind) {
                    continue;
                }
                reported.push(kind);
                let address = piece.at + (bytes.start() - piece.physical);
                let found = Report::new(kind, check.access.site()).after(first);
                let bytes = AddressRange::new(address, bytes.len());
                out.push(found.about(device, bytes).tagged(tag.clone()));
            }
            if check.access.kind.writes() && check.access.kind != AccessKind::WordWrite {
                self.words.overwritten(physical, check.access.epoch(), check.before.clock);
            }
        }
        self.map.mappings.record_use(range, check.access);
    }

    /// Returns the length of the prefix of the range that lies in one allocation and is checked as
    /// one access. A recording joins bytes that lie side by side, so what ends one allocation and
    /// begins the next is cut apart here, unless one access of the kernel crosses the border or
    /// nothing is live behind it.
    pub(crate) fn prefix_in_one_block(&self, range: AddressRange, crossed: &ByteSet) -> u64 {
        let at = range.start();
        let bytes = range.len();
        let end = range.end();
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
        let crosses = next.is_multiple_of(ALIGNMENT) && crossed.contains(next / ALIGNMENT);
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
        self.freed.remove_range(AddressRange::new(at, mapping.bytes));
        self.map.mappings.insert(at, mapping);
    }

    /// Removes the mapping at `at`; a report of a later access names the operation.
    pub(crate) fn unmap(&mut self, at: u64, by: Site) {
        if let Some(mapping) = self.map.mappings.remove(at) {
            let range = AddressRange::new(at, mapping.bytes);
            self.remove_blocks(range);
            self.freed.add(range, by, None);
        }
    }

    /// Removes the history of physical memory, whose new owner need not be ordered after it.
    pub(crate) fn clear_physical(&mut self, range: AddressRange) {
        self.history.clear(range);
        self.words.clear(range);
    }

    /// Removes reserved addresses, with the freed mappings there.
    pub(crate) fn unreserve(&mut self, range: AddressRange) {
        self.freed.remove_range(range);
        self.heaps.remove_range(range);
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
    pub(crate) fn region_allocated(&mut self, block: LibraryBlock, by: Site, out: &mut Findings) {
        let range = block.range;
        match self.heaps.allocate(block, by, self.map.device_at(range.start())) {
            Some(finding) => out.push(finding),
            None => self.undefine(range, None),
        }
    }

    /// Marks bytes as not written, or as stored with a value that nothing has written, except in
    /// host memory, which the program can write without a call. Their history stays.
    pub(crate) fn undefine(&mut self, range: AddressRange, store: Option<&Site>) {
        let at = range.start();
        if !is_virtual(at) && self.map.device_at(at).is_none() {
            return;
        }
        for piece in self.map.mappings.pieces(at, range.len()) {
            self.history.undefine(AddressRange::new(piece.physical, piece.bytes), store);
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
        let range = AddressRange::new(at, bytes);
        if let Some((bytes, used)) = self.history.first_unordered(range, before) {
            let found = Report::new(ReportKind::FreeBeforeUse, by).after(Some(used.site()));
            out.push(found.about(device, bytes).tagged(tag));
        }
    }

    /// Checks that the range is inside one live allocation (and region), and reports if it is not.
    /// Returns the part that is, and the owner's name.
    fn check_bounds(
        &self,
        range: AddressRange,
        check: &Check<'_>,
        out: &mut Findings,
    ) -> Option<(AddressRange, Option<Arc<str>>)> {
        let at = range.start();
        let second = check.access.site();
        if is_virtual(at) {
            return self.check_mapped(range, check, out);
        }
        let Some((start, allocation)) = self.map.allocation_around(at) else {
            out.push(self.freed.bad_use(range, second, device_of(at)));
            return None;
        };
        let device = allocation.home.device();
        if !self.map.can_reach(allocation.home, check.reach, check.access.kind.writes()) {
            let report = Report::new(ReportKind::NoPeerAccess, second);
            out.push(report.about_allocation(allocation, AddressRange::new(at, allocation.bytes)));
            return None;
        }
        let (owner_end, tag) = match self.heaps.owner(at) {
            AddressState::NoHeap => (start + allocation.bytes, allocation.tag.as_ref()),
            AddressState::Region { end, tag } => (end.min(start + allocation.bytes), tag),
            AddressState::NoRegion(freed) => {
                out.push(freed.bad_use(range, second, device));
                return None;
            }
        };
        if let Some(made) = allocation.made.as_ref().filter(|m| !check.before.covers(m.epoch)) {
            let report = Report::new(ReportKind::UseBeforeAllocation, second.clone());
            let report = report.after(Some(made.site())).about(device, range);
            out.push(report.tagged(tag.cloned()));
        }
        let end = range.end();
        let tag = tag.cloned();
        if end > owner_end {
            let found = Report::new(ReportKind::OutOfBounds, second).tagged(tag.clone());
            out.push(found.about(device, AddressRange::between(owner_end, end)));
        }
        Some((AddressRange::between(at, end.min(owner_end)), tag))
    }

    /// Checks a range of virtual addresses, which may have several mappings, each with the needed
    /// rights. Returns the accessible part, and the owner's name.
    fn check_mapped(
        &self,
        range: AddressRange,
        check: &Check<'_>,
        out: &mut Findings,
    ) -> Option<(AddressRange, Option<Arc<str>>)> {
        let at = range.start();
        let end = range.end();
        let mapped =
            self.map.mappings.reachable(at, range.len(), check.reach, check.access.kind.writes());
        let mapped_end = at + mapped;
        if mapped_end == at {
            out.push(self.out_of_reach(range, check));
            return None;
        }
        let (owner_end, tag) = match self.heaps.owner(at) {
            AddressState::NoHeap => (u64::MAX, None),
            AddressState::Region { end, tag } => (end, tag.cloned()),
            AddressState::NoRegion(freed) => {
                out.push(freed.bad_use(range, check.access.site(), self.map.device_at(at)));
                return None;
            }
        };
        if end > owner_end {
            let found = Report::new(ReportKind::OutOfBounds, check.access.site());
            let outside = AddressRange::between(owner_end, end);
            out.push(found.about(self.map.device_at(at), outside).tagged(tag.clone()));
        } else if end > mapped_end {
            out.push(self.out_of_reach(AddressRange::between(mapped_end, end), check));
        }
        Some((AddressRange::between(at, end.min(owner_end).min(mapped_end)), tag))
    }

    /// Reports an access of virtual addresses that are not mapped, or without the right to them.
    fn out_of_reach(&self, range: AddressRange, check: &Check<'_>) -> Report {
        let second = check.access.site();
        match self.map.mappings.around(range.start()) {
            None => self.freed.bad_use(range, second, None),
            Some((_, mapping)) => Report::new(ReportKind::NoAccess, second)
                .after(Some(mapping.origin.site(None)))
                .about(Some(mapping.device), range),
        }
    }

    fn clear(&mut self, range: AddressRange) {
        self.history.clear(range);
        self.words.clear(range);
        self.heaps.remove_range(range);
        self.remove_blocks(range);
    }

    fn remove_blocks(&mut self, range: AddressRange) {
        while let Some((&start, _)) = self.blocks.range(range.start()..range.end()).next() {
            self.blocks.remove(&start);
        }
    }
}

impl Report {
    /// Sets the memory that the finding is about: bytes of an allocation.
    fn about_allocation(self, allocation: &Allocation, bytes: AddressRange) -> Self {
        self.about(allocation.home.device(), bytes).tagged(allocation.tag.clone())
    }
}
