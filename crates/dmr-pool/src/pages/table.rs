//! What is mapped where: the addresses of an arena, page by page.

use std::sync::Arc;

use dmr_core::{AddressRange, PhysicalMemory};

use crate::arena::State;
use crate::heap::{ChunkId, UNIT, Window};

/// A page: device memory, which may be mapped at several addresses for a while.
pub(super) type Page = Arc<PhysicalMemory>;

/// A range of addresses that is reserved for an arena.
#[derive(Debug)]
pub(crate) struct Range {
    addresses: AddressRange,
    /// The address of its first page.
    start: u64,
    /// Its first chunk.
    first: ChunkId,
    /// What is mapped at its pages, up to the last that ever had memory.
    slots: Vec<Slot>,
}

/// What is mapped at the address of a page.
#[derive(Debug, Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    Mapped(Page),
    /// Still mapped here, though it has moved: work with it may not be complete.
    Leaving(Page),
}

impl Range {
    /// Returns all of its addresses.
    pub(crate) fn addresses(&self) -> &AddressRange {
        &self.addresses
    }

    /// Returns the number of pages of this size that fit into these addresses, as one chunk.
    pub(super) fn room(addresses: &AddressRange, page: u64) -> u64 {
        let start = addresses.base().next_multiple_of(page);
        let bytes = (addresses.base() + addresses.bytes()).saturating_sub(start);
        bytes.min(u64::from(u32::MAX) * UNIT) / page
    }
}

impl State {
    /// Adds addresses with nothing mapped in them.
    pub(super) fn add_range(&mut self, addresses: AddressRange, page: u64) {
        let start = addresses.base().next_multiple_of(page);
        let units = Range::room(&addresses, page) * page / UNIT;
        let first = self.heap.add_hole(start, units as u32);
        self.ranges.push(Range { addresses, start, first, slots: Vec::new() });
    }

    /// Removes a range of addresses in which nothing is mapped.
    pub(super) fn remove_range(&mut self) -> Option<AddressRange> {
        let Self { heap, ranges, .. } = self;
        let is_empty = |range: &Range| {
            let has_none = range.slots.iter().all(|slot| matches!(slot, Slot::Empty));
            has_none && heap.remove_hole(range.first)
        };
        let at = ranges.iter().position(is_empty)?;
        Some(ranges.swap_remove(at).addresses)
    }

    /// Finds the cheapest window for `units`.
    pub(super) fn find_window(&self, units: u32, page: u64) -> Option<Window> {
        self.heap.find_window(units, page, |addresses| self.has_leaving(addresses))
    }

    /// Finds the window for `units` that begins where an acquired chunk ends.
    pub(super) fn window_after(&self, chunk: ChunkId, units: u32, page: u64) -> Option<Window> {
        self.heap.window_after(chunk, units, page, |addresses| self.has_leaving(addresses))
    }

    /// Cuts an acquired chunk into what is mapped and what is not: passes the mapped parts to `give`,
    /// still acquired, and makes holes of the others.
    pub(super) fn divide(
        &mut self,
        chunk: ChunkId,
        page: u64,
        mut give: impl FnMut(&mut Self, ChunkId),
    ) {
        let mut rest = Some(chunk);
        while let Some(chunk) = rest.take() {
            let (start, units) = self.heap.range(chunk);
            let end = start + u64::from(units) * UNIT;
            let is_mapped = self.is_mapped(start, page);
            let mut to = start;
            while to < end && self.is_mapped(to, page) == is_mapped {
                to = (to + 1).next_multiple_of(page);
            }
            if to < end {
                rest = Some(self.heap.cut(chunk, ((to - start) / UNIT) as u32));
            }
            if is_mapped {
                give(self, chunk);
            } else {
                self.heap.release_hole(chunk);
            }
        }
    }

    /// Returns the addresses of the pages of a chunk at which nothing is mapped.
    pub(super) fn unmapped(&self, chunk: ChunkId, page: u64) -> Vec<u64> {
        let (start, units) = self.heap.range(chunk);
        let pages = start / page * page..start + u64::from(units) * UNIT;
        let pages = pages.step_by(page as usize);
        pages.filter(|&address| !self.is_mapped(address, page)).collect()
    }

    /// Returns the pages of a chunk that consists of whole pages, with their addresses.
    pub(super) fn pages_of(&self, chunk: ChunkId, page: u64) -> Vec<(u64, Page)> {
        let (start, units) = self.heap.range(chunk);
        let pages = (start..start + u64::from(units) * UNIT).step_by(page as usize);
        let mapped = |address| match self.slot(address, page) {
            Some(Slot::Mapped(memory)) => Some((address, Arc::clone(memory))),
            _ => None,
        };
        pages.filter_map(mapped).collect()
    }

    /// Sets what is mapped at an address.
    pub(super) fn set_slot(&mut self, address: u64, page: u64, slot: Slot) {
        let Some(range) = self.ranges.iter_mut().find(|range| range.holds(address)) else { return };
        let index = ((address - range.start) / page) as usize;
        if range.slots.len() <= index {
            range.slots.resize_with(index + 1, Slot::default);
        }
        let is_leaving = matches!(slot, Slot::Leaving(_));
        let before = std::mem::replace(&mut range.slots[index], slot);
        match (matches!(before, Slot::Leaving(_)), is_leaving) {
            (false, true) => drop(self.leaving.insert(address)),
            (true, false) => drop(self.leaving.remove(&address)),
            _ => {}
        }
    }

    /// Returns the page that is leaving an address.
    pub(super) fn leaving_page(&self, address: u64, page: u64) -> Option<Page> {
        match self.slot(address, page) {
            Some(Slot::Leaving(memory)) => Some(Arc::clone(memory)),
            _ => None,
        }
    }

    /// Returns the number of mapped pages.
    pub(crate) fn mapped_pages(&self) -> usize {
        let slots = self.ranges.iter().flat_map(|range| &range.slots);
        slots.filter(|slot| matches!(slot, Slot::Mapped(_))).count()
    }

    fn is_mapped(&self, address: u64, page: u64) -> bool {
        matches!(self.slot(address, page), Some(Slot::Mapped(_)))
    }

    fn has_leaving(&self, addresses: std::ops::Range<u64>) -> bool {
        self.leaving.range(addresses).next().is_some()
    }

    fn slot(&self, address: u64, page: u64) -> Option<&Slot> {
        let range = self.ranges.iter().find(|range| range.holds(address))?;
        range.slots.get(((address - range.start) / page) as usize)
    }
}

impl Range {
    fn holds(&self, address: u64) -> bool {
        let end = self.addresses.base() + self.addresses.bytes();
        (self.start..end).contains(&address)
    }
}
