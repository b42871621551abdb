//! The spans of an arena: what its chunks are cut from, and what is mapped where.

use std::ops::Range;
use std::sync::Arc;

use dmr_core::{AddressRange, DeviceBlock};

use super::State;
use crate::heap::{ChunkId, UNIT, Window};
use crate::span::{MappedPage, Page, PageMap, PageState, Span, SpanMemory};

impl State {
    /// Adds a block of upstream. Returns its chunk, free since `since`.
    pub(crate) fn add_block(
        &mut self,
        block: DeviceBlock,
        alignment: u64,
        is_dedicated: bool,
        since: u64,
    ) -> ChunkId {
        let address = block.ptr().next_multiple_of(alignment);
        let bytes = (block.bytes() as u64).saturating_sub(address - block.ptr());
        let units = u32::try_from((bytes - bytes % alignment) / UNIT).unwrap_or(u32::MAX);
        let first = self.heap.add_segment(address, units, is_dedicated, since);
        self.spans.push(Span { first, memory: SpanMemory::Block(block) });
        first
    }

    /// Adds addresses with nothing mapped there.
    pub(crate) fn add_addresses(&mut self, addresses: AddressRange) {
        let units = PageMap::capacity(&addresses, self.page) * self.page / UNIT;
        let map = PageMap::new(addresses, self.page);
        let first = self.heap.add_hole(map.start, units as u32);
        self.spans.push(Span { first, memory: SpanMemory::Pages(map) });
    }

    /// Removes a span that `predicate` accepts and that is a free chunk or a hole as a whole.
    pub(crate) fn remove_span(
        &mut self,
        predicate: impl Fn(&SpanMemory) -> bool,
    ) -> Option<SpanMemory> {
        let Self { heap, spans, .. } = self;
        let is_removed = |span: &Span| predicate(&span.memory) && heap.remove_span(span.first);
        let at = spans.iter().position(is_removed)?;
        Some(spans.swap_remove(at).memory)
    }

    /// Returns the number of blocks of upstream and of mapped pages.
    pub(crate) fn segments(&self) -> usize {
        let count = |span: &Span| match &span.memory {
            SpanMemory::Block(_) => 1,
            SpanMemory::Pages(map) => map.mapped(),
        };
        self.spans.iter().map(count).sum()
    }

    /// Finds the cheapest window for `units`.
    pub(crate) fn find_window(&self, units: u32) -> Option<Window> {
        self.heap.find_window(units, self.page, |addresses| self.has_leaving(addresses))
    }

    /// Finds the window for `units` that begins where an acquired chunk ends.
    pub(crate) fn window_after(&self, chunk: ChunkId, units: u32) -> Option<Window> {
        self.heap.window_after(chunk, units, self.page, |addresses| self.has_leaving(addresses))
    }

    /// Cuts an acquired chunk into what is mapped and what is not: passes the mapped parts to
    /// `release`, still acquired, and makes holes of the others.
    pub(crate) fn divide(&mut self, chunk: ChunkId, release: impl Fn(&mut Self, ChunkId)) {
        let mut rest = Some(chunk);
        while let Some(chunk) = rest.take() {
            let Range { start, end } = self.heap.addresses(chunk);
            let is_mapped = self.mapped_at(start).is_some();
            let mut to = start;
            while to < end && self.mapped_at(to).is_some() == is_mapped {
                to = (to + 1).next_multiple_of(self.page);
            }
            if to < end {
                rest = Some(self.heap.cut(chunk, ((to - start) / UNIT) as u32));
            }
            if is_mapped {
                release(self, chunk);
            } else {
                self.heap.release_hole(chunk);
            }
        }
    }

    /// Returns the addresses of the pages of a chunk at which nothing is mapped.
    pub(crate) fn unmapped(&self, chunk: ChunkId) -> Vec<u64> {
        let Range { start, end } = self.heap.addresses(chunk);
        let pages = (start / self.page * self.page..end).step_by(self.page as usize);
        pages.filter(|&address| self.mapped_at(address).is_none()).collect()
    }

    /// Returns the pages of a chunk that consists of whole pages.
    pub(crate) fn pages_of(&self, chunk: ChunkId) -> Vec<MappedPage> {
        let pages = self.heap.addresses(chunk).step_by(self.page as usize);
        let mapped =
            |address| Some(MappedPage { address, page: Arc::clone(self.mapped_at(address)?) });
        pages.filter_map(mapped).collect()
    }

    /// Returns the addresses of the pages that a chunk covers as a whole.
    pub(crate) fn whole_pages(&self, chunk: ChunkId) -> Range<u64> {
        let Range { start, end } = self.heap.addresses(chunk);
        let start = start.next_multiple_of(self.page);
        let end = end / self.page * self.page;
        start..end.max(start)
    }

    /// Sets what is mapped at an address.
    pub(crate) fn set_page_state(&mut self, address: u64, state: PageState) {
        let page = self.page;
        let Some(map) = self.spans.iter_mut().find_map(|span| match &mut span.memory {
            SpanMemory::Pages(map) if map.contains(address) => Some(map),
            _ => None,
        }) else {
            return;
        };
        match state {
            PageState::Leaving(_) => self.leaving.insert(address),
            _ => self.leaving.remove(&address),
        };
        map.set_state(address, page, state);
    }

    /// Returns the page that is leaving an address.
    pub(crate) fn leaving_page(&self, address: u64) -> Option<Page> {
        match self.page_state(address) {
            Some(PageState::Leaving(page)) => Some(Arc::clone(page)),
            _ => None,
        }
    }

    fn mapped_at(&self, address: u64) -> Option<&Page> {
        match self.page_state(address) {
            Some(PageState::Mapped(page)) => Some(page),
            _ => None,
        }
    }

    fn has_leaving(&self, addresses: Range<u64>) -> bool {
        self.leaving.range(addresses).next().is_some()
    }

    fn page_state(&self, address: u64) -> Option<&PageState> {
        self.spans.iter().find_map(|span| match &span.memory {
            SpanMemory::Pages(map) if map.contains(address) => map.state(address, self.page),
            _ => None,
        })
    }
}
