//! What is mapped where: the addresses of an arena, page by page.

use std::sync::Arc;

use dmr_core::{AddressRange, PhysicalMemory};

use crate::arena::State;
use crate::heap::{ChunkId, UNIT, Window};

/// A page: device memory, which may be mapped at several addresses for a while.
pub(super) type Page = Arc<PhysicalMemory>;

/// Addresses that were set aside for an arena.
#[derive(Debug)]
pub(crate) struct Range {
    addresses: AddressRange,
    /// The first page's.
    start: u64,
    /// Its first chunk.
    first: ChunkId,
    /// As far as any was ever mapped.
    slots: Vec<Slot>,
}

/// A page's place.
#[derive(Debug, Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    Mapped(Page),
    /// Mapped here still, and elsewhere or nowhere else already: work may not be done with it.
    Leaving(Page),
}

impl Range {
    /// All of its addresses.
    pub(crate) fn addresses(&self) -> &AddressRange {
        &self.addresses
    }

    /// How many pages of this size can be mapped into these addresses, as one chunk.
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

    /// Takes addresses out that nothing is mapped in.
    pub(super) fn remove_range(&mut self) -> Option<AddressRange> {
        let Self { heap, ranges, .. } = self;
        let is_empty = |range: &Range| {
            let has_none = range.slots.iter().all(|slot| matches!(slot, Slot::Empty));
            has_none && heap.remove_hole(range.first)
        };
        let at = ranges.iter().position(is_empty)?;
        Some(ranges.swap_remove(at).addresses)
    }

    /// The cheapest place for so many units.
    pub(super) fn find_window(&self, units: u32, page: u64) -> Option<Window> {
        let is_open = |address| self.is_open(address, page);
        let of_range = |range: &Range| self.heap.window(range.first, units, page, is_open);
        self.ranges.iter().filter_map(of_range).min_by_key(Window::cost)
    }

    /// The place for so many units that begins where a taken chunk ends.
    pub(super) fn window_after(&self, chunk: ChunkId, units: u32, page: u64) -> Option<Window> {
        self.heap.window_after(chunk, units, page, |address| self.is_open(address, page))
    }

    /// Makes holes of a taken chunk where nothing is mapped; what is mapped is given to `give`,
    /// still taken.
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

    /// The addresses of the pages of a chunk that nothing is mapped to.
    pub(super) fn unmapped(&self, chunk: ChunkId, page: u64) -> Vec<u64> {
        let (start, units) = self.heap.range(chunk);
        let pages = start / page * page..start + u64::from(units) * UNIT;
        let pages = pages.step_by(page as usize);
        pages.filter(|&address| !self.is_mapped(address, page)).collect()
    }

    /// The pages of a chunk that is all of them, with their addresses.
    pub(super) fn pages_of(&self, chunk: ChunkId, page: u64) -> Vec<(u64, Page)> {
        let (start, units) = self.heap.range(chunk);
        let pages = (start..start + u64::from(units) * UNIT).step_by(page as usize);
        let mapped = |address| match self.slot(address, page) {
            Some(Slot::Mapped(memory)) => Some((address, Arc::clone(memory))),
            _ => None,
        };
        pages.filter_map(mapped).collect()
    }

    /// Notes what is mapped at an address.
    pub(super) fn set_slot(&mut self, address: u64, page: u64, slot: Slot) {
        let Some(range) = self.ranges.iter_mut().find(|range| range.holds(address)) else { return };
        let index = ((address - range.start) / page) as usize;
        if range.slots.len() <= index {
            range.slots.resize_with(index + 1, Slot::default);
        }
        range.slots[index] = slot;
    }

    /// The page that is leaving an address.
    pub(super) fn leaving(&self, address: u64, page: u64) -> Option<Page> {
        match self.slot(address, page) {
            Some(Slot::Leaving(memory)) => Some(Arc::clone(memory)),
            _ => None,
        }
    }

    /// All pages that are mapped.
    pub(crate) fn mapped_pages(&self) -> usize {
        let slots = self.ranges.iter().flat_map(|range| &range.slots);
        slots.filter(|slot| matches!(slot, Slot::Mapped(_))).count()
    }

    fn is_mapped(&self, address: u64, page: u64) -> bool {
        matches!(self.slot(address, page), Some(Slot::Mapped(_)))
    }

    fn is_open(&self, address: u64, page: u64) -> bool {
        matches!(self.slot(address, page), None | Some(Slot::Empty))
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
