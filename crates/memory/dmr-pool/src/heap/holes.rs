//! Holes, which are chunks of addresses without memory, and whole pages in free chunks.
//!
//! Memory is mapped in pages of one size, at multiples of that size. A hole begins and ends at such
//! a multiple.

use std::ops::{ControlFlow, Range, RangeInclusive};

use super::chunk::Links;
use super::{Chunk, ChunkId, Heap, State, UNIT};

/// Pages that are free as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreePages {
    chunk: ChunkId,
    /// From the first page to the end of the last.
    addresses: Range<u64>,
    /// The number at which the last of them became free.
    pub(crate) since: u64,
}

impl FreePages {
    #[cfg(test)]
    pub(super) fn chunk(&self) -> ChunkId {
        self.chunk
    }

    fn count(&self, page: u64) -> u64 {
        (self.addresses.end - self.addresses.start) / page
    }
}

impl Heap {
    /// Adds a span of addresses without memory.
    pub(crate) fn add_hole(&mut self, address: u64, units: u32) -> ChunkId {
        let id = self.chunks.add(Chunk::span(address, units));
        self.list_hole(id);
        id
    }

    /// Finds free pages whose free number `matches` accepts: `wanted` pages of the smallest chunk
    /// that has that many, or else those of the chunk that has most.
    pub(crate) fn find_free_pages(
        &self,
        wanted: u64,
        page: u64,
        matches: impl Fn(u64) -> bool,
    ) -> Option<FreePages> {
        let enough = wanted.saturating_mul(page);
        let mut best = None::<FreePages>;
        self.visit_free_pages(enough..=u64::MAX, page, |pages| {
            let count = pages.count(page);
            if count >= wanted
                && best.as_ref().is_none_or(|best| count < best.count(page))
                && matches(pages.since)
            {
                best = Some(pages);
            }
            // Chunks that follow are not much smaller.
            let ends =
                |best: &FreePages| best.count(page) == wanted || count > 2 * best.count(page) + 2;
            if best.as_ref().is_some_and(ends) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        if best.is_none() && wanted > 1 {
            // A chunk that has one page less may have room for one more.
            self.visit_free_pages(page..=enough.saturating_add(page), page, |pages| {
                let count = pages.count(page);
                if best.as_ref().is_none_or(|best| count > best.count(page)) && matches(pages.since)
                {
                    best = Some(pages);
                }
                ControlFlow::Continue(())
            });
        }
        let mut found = best?;
        // What is left of the chunk is at the side where neighbours are freed together with it.
        let most = found.addresses.end - found.addresses.start;
        found.addresses.start = found.addresses.end - most.min(wanted.saturating_mul(page));
        Some(found)
    }

    /// Returns the number of pages that are free as a whole.
    pub(crate) fn count_free_pages(&self, page: u64) -> u64 {
        let mut count = 0;
        self.visit_free_pages(page..=u64::MAX, page, |pages| {
            count += pages.count(page);
            ControlFlow::Continue(())
        });
        count
    }

    /// Returns the number at which the last of the whole free pages became free.
    pub(crate) fn newest_free_pages(&self, page: u64) -> Option<u64> {
        let mut newest = None;
        self.visit_free_pages(page..=u64::MAX, page, |pages| {
            newest = newest.max(Some(pages.since));
            ControlFlow::Continue(())
        });
        newest
    }

    /// Returns the latest number at which any chunk became free or pending; `None` if no chunk is
    /// free or pending now.
    pub(crate) fn newest_free(&self) -> Option<u64> {
        (self.free_units > 0 || self.pending.last().is_some()).then_some(self.newest)
    }

    /// Calls `act` for the whole pages of each free chunk of about this size that has any, until it
    /// breaks. No chunk is much smaller than the one before it.
    fn visit_free_pages(
        &self,
        bytes: RangeInclusive<u64>,
        page: u64,
        mut act: impl FnMut(FreePages) -> ControlFlow<()>,
    ) {
        let units = |bytes| u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        let sizes = units(*bytes.start())..=units(*bytes.end());
        self.free.visit(&self.chunks, sizes, |id| {
            let chunk = &self.chunks[id];
            let addresses = chunk.address.next_multiple_of(page)..chunk.end() / page * page;
            if addresses.start >= addresses.end {
                return ControlFlow::Continue(());
            }
            act(FreePages { chunk: id, addresses, since: chunk.since })
        });
    }

    /// Acquires free pages, as one chunk.
    pub(crate) fn acquire_pages(&mut self, pages: &FreePages) -> ChunkId {
        self.acquire_range(pages.chunk, &pages.addresses)
    }

    /// Makes an acquired chunk a hole, joined with the holes beside it.
    pub(crate) fn release_hole(&mut self, id: ChunkId) {
        self.chunks[id].since = 0;
        if let Some(after) = self.chunks[id].after.filter(|&id| self.is_hole(id)) {
            self.unlist_hole(after);
            self.absorb(id, after);
        }
        let before = self.chunks[id].before.filter(|&id| self.is_hole(id));
        match before {
            Some(before) => self.absorb(before, id),
            None => self.list_hole(id),
        }
    }

    /// Adds `units` of the free chunk behind an acquired one to it, if the free chunk has that many
    /// and `matches` accepts its free number. Returns whether it has.
    pub(crate) fn extend(
        &mut self,
        id: ChunkId,
        units: u32,
        matches: impl Fn(u64) -> bool,
    ) -> bool {
        let next = self.chunks[id].after.filter(|&next| self.is_free(next));
        let Some(next) = next else { return false };
        let Chunk { units: available, since, .. } = self.chunks[next];
        let fits = available >= units && matches(since);
        if fits {
            self.unlist(next);
            if available > units {
                self.split(next, units);
            }
            self.absorb(id, next);
        }
        fits
    }

    /// Cuts an acquired chunk after `units`. Returns the rest, which is acquired, if there is any.
    pub(crate) fn cut_off(&mut self, id: ChunkId, units: u32) -> Option<ChunkId> {
        (self.chunks[id].units > units).then(|| self.cut(id, units))
    }

    /// Returns whether a chunk is a hole.
    pub(super) fn is_hole(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Hole
    }

    /// Returns all holes.
    pub(super) fn holes(&self) -> impl Iterator<Item = ChunkId> {
        std::iter::successors(self.holes, |&id| self.chunks[id].links.next)
    }

    /// Acquires a range of addresses as one chunk. All of them are in free chunks and holes from
    /// `first` on; the parts of these outside of the range stay free, or holes.
    pub(super) fn acquire_range(&mut self, first: ChunkId, addresses: &Range<u64>) -> ChunkId {
        let mut whole = None;
        let mut at = Some(first);
        while let Some(mut id) = at {
            let chunk = self.chunks[id];
            if chunk.address >= addresses.end {
                break;
            }
            if chunk.state == State::Hole {
                self.unlist_hole(id);
            } else {
                self.unlist(id);
            }
            self.chunks[id].state = State::Acquired;
            if chunk.address < addresses.start {
                let rest = self.cut(id, units(addresses.start - chunk.address));
                self.restore_state(id, chunk.state);
                id = rest;
            }
            if self.chunks[id].end() > addresses.end {
                let rest = self.cut(id, units(addresses.end - self.chunks[id].address));
                self.restore_state(rest, chunk.state);
            }
            at = self.chunks[id].after;
            match whole {
                None => whole = Some(id),
                Some(whole) => self.absorb(whole, id),
            }
        }
        whole.unwrap_or(first)
    }

    /// Returns an acquired chunk to the state of the chunk that it was cut off.
    fn restore_state(&mut self, id: ChunkId, state: State) {
        if state == State::Hole {
            self.list_hole(id);
        } else {
            self.list(id);
        }
    }

    fn list_hole(&mut self, id: ChunkId) {
        let next = self.holes.replace(id);
        if let Some(next) = next {
            self.chunks[next].links.previous = Some(id);
        }
        let chunk = &mut self.chunks[id];
        chunk.state = State::Hole;
        chunk.links = Links { next, ..Links::default() };
    }

    pub(super) fn unlist_hole(&mut self, id: ChunkId) {
        let Links { previous, next, .. } = self.chunks[id].links;
        if let Some(next) = next {
            self.chunks[next].links.previous = previous;
        }
        match previous {
            Some(previous) => self.chunks[previous].links.next = next,
            None => self.holes = next,
        }
    }
}

fn units(bytes: u64) -> u32 {
    (bytes / UNIT) as u32
}
