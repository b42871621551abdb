//! Spans: the addresses that an arena's chunks are cut from, and the memory behind them.

use std::ops::Range;
use std::sync::Arc;

use dmr_core::{AddressRange, DeviceBlock, PhysicalMemory};

use crate::heap::{ChunkId, UNIT};

/// A contiguous range of addresses. Free as a whole, it can leave its arena.
#[derive(Debug)]
pub(crate) struct Span {
    /// Its first chunk.
    pub(crate) first: ChunkId,
    pub(crate) memory: SpanMemory,
}

/// The memory of a span.
#[derive(Debug)]
pub(crate) enum SpanMemory {
    /// A block of upstream: all of the span has memory, which cannot move.
    Block(DeviceBlock),
    /// Pages that the pool maps into reserved addresses.
    Pages(PageMap),
}

/// Reserved addresses, and what is mapped there.
#[derive(Debug)]
pub(crate) struct PageMap {
    pub(crate) addresses: AddressRange,
    /// The address of the first page.
    pub(crate) start: u64,
    /// By page, up to the last that ever had memory.
    states: Vec<PageState>,
}

/// Device memory that may be mapped at several addresses for a while.
pub(crate) type Page = Arc<PhysicalMemory>;

/// A page, and the address that it is mapped at.
pub(crate) struct MappedPage {
    pub(crate) address: u64,
    pub(crate) page: Page,
}

/// The memory that is mapped at the address of a page.
#[derive(Debug, Default)]
pub(crate) enum PageState {
    #[default]
    Empty,
    Mapped(Page),
    /// Still mapped here, though it has moved: work with it may not be complete.
    Leaving(Page),
}

impl Span {
    /// Returns the addresses of what was taken from upstream.
    pub(crate) fn addresses(&self) -> Range<u64> {
        match &self.memory {
            SpanMemory::Block(block) => block.ptr()..block.ptr() + block.bytes() as u64,
            SpanMemory::Pages(map) => map.addresses.base()..map.end(),
        }
    }
}

impl PageMap {
    /// Makes the map of addresses at which nothing is mapped.
    pub(crate) fn new(addresses: AddressRange, page: u64) -> Self {
        let start = addresses.base().next_multiple_of(page);
        Self { addresses, start, states: Vec::new() }
    }

    /// Returns the state of the page at an address that is [contained](Self::contains).
    pub(crate) fn state(&self, address: u64, page: u64) -> Option<&PageState> {
        self.states.get(((address - self.start) / page) as usize)
    }

    /// Sets the state of the page at an address that is contained.
    pub(crate) fn set_state(&mut self, address: u64, page: u64, state: PageState) {
        let index = ((address - self.start) / page) as usize;
        if self.states.len() <= index {
            self.states.resize_with(index + 1, PageState::default);
        }
        self.states[index] = state;
    }

    /// Returns the number of pages of this size that fit into these addresses, as one chunk.
    pub(crate) fn capacity(addresses: &AddressRange, page: u64) -> u64 {
        let start = addresses.base().next_multiple_of(page);
        let bytes = (addresses.base() + addresses.bytes()).saturating_sub(start);
        bytes.min(u64::from(u32::MAX) * UNIT) / page
    }

    /// Returns whether nothing is mapped at any of the addresses.
    pub(crate) fn is_empty(&self) -> bool {
        self.states.iter().all(|state| matches!(state, PageState::Empty))
    }

    /// Returns the number of mapped pages.
    pub(crate) fn mapped(&self) -> usize {
        self.states.iter().filter(|state| matches!(state, PageState::Mapped(_))).count()
    }

    fn end(&self) -> u64 {
        self.addresses.base() + self.addresses.bytes()
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }
}
