//! Addresses without memory, which stand between chunks as chunks do; and the runs of free chunks
//! and holes that a request is placed in by mapping pages into them.
//!
//! Memory is mapped in pages of one size, at multiples of it. A hole begins and ends at such.

use std::ops::Range;

use super::{Chunk, ChunkId, Heap, State, UNIT};

/// Addresses that a request can be placed at: free chunks, and holes that pages are to be mapped
/// into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The chunk that its first address is in.
    first: ChunkId,
    addresses: Range<u64>,
    missing: u64,
    /// The bytes of the run that it is in.
    run: u64,
}

impl Window {
    /// How many pages are missing.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// What is preferred first is least: it takes the fewest pages, and the smallest run.
    pub(crate) fn cost(&self) -> (u64, u64, u64) {
        (self.missing, self.run, self.addresses.start)
    }
}

/// Pages that are free as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreePages {
    chunk: ChunkId,
    /// Addresses of the first and after the last.
    addresses: Range<u64>,
    /// When they became free.
    pub(crate) since: u64,
}

impl FreePages {
    fn count(&self, page: u64) -> u64 {
        (self.addresses.end - self.addresses.start) / page
    }
}

impl Heap {
    /// Adds addresses that no memory is mapped to.
    pub(crate) fn add_hole(&mut self, address: u64, units: u32) -> ChunkId {
        self.chunks.add(Chunk { state: State::Hole, ..Chunk::segment(address, units) })
    }

    /// Takes out addresses that no memory is mapped to, all of those that were added at once;
    /// `false` if there is any.
    pub(crate) fn remove_hole(&mut self, first: ChunkId) -> bool {
        let chunk = &self.chunks[first];
        let is_empty = chunk.state == State::Hole && chunk.is_whole();
        if is_empty {
            self.chunks.remove(first);
        }
        is_empty
    }

    /// The cheapest window for so many units among the chunks from `first` on. `is_open` tells of
    /// the page at an address whether it can be mapped.
    pub(crate) fn window(
        &self,
        first: ChunkId,
        units: u32,
        page: u64,
        is_open: impl Fn(u64) -> bool,
    ) -> Option<Window> {
        let bytes = u64::from(units) * UNIT;
        let (mut best, mut at) = (None::<Window>, Some(first));
        while let Some(id) = at {
            if !self.is_vacant(id) {
                at = self.chunks[id].after;
                continue;
            }
            let run = self.run_from(id);
            at = run.last().and_then(|&(last, _)| self.chunks[last].after);
            let candidates = starts(&run, bytes);
            let windows =
                candidates.filter_map(|start| cut_out(&run, start, bytes, page, &is_open));
            best = best.into_iter().chain(windows).min_by_key(Window::cost);
        }
        best
    }

    /// The window for so many units that begins where a taken chunk ends.
    pub(crate) fn window_after(
        &self,
        id: ChunkId,
        units: u32,
        page: u64,
        is_open: impl Fn(u64) -> bool,
    ) -> Option<Window> {
        let next = self.chunks[id].after.filter(|&next| self.is_vacant(next))?;
        let run = self.run_from(next);
        cut_out(&run, self.chunks[next].address, u64::from(units) * UNIT, page, &is_open)
    }

    /// Takes a window: one chunk, whose holes are to be filled.
    pub(crate) fn claim(&mut self, window: &Window) -> ChunkId {
        self.take_range(window.first, &window.addresses)
    }

    /// Pages that are free as a whole and such: of the smallest chunk that has as many as are
    /// wanted, or else of the one that has most.
    pub(crate) fn find_free_pages(
        &self,
        wanted: u64,
        page: u64,
        such: impl Fn(u64) -> bool,
    ) -> Option<FreePages> {
        let rank = |pages: &FreePages| match pages.count(page) {
            enough if enough >= wanted => (0, enough),
            too_few => (1, u64::MAX - too_few),
        };
        let such = self.free_pages(page).filter(|pages| such(pages.since));
        let mut found = such.min_by_key(rank)?;
        // What is left of the chunk is at the side where neighbours are freed together with it.
        let most = found.addresses.end - found.addresses.start;
        found.addresses.start = found.addresses.end - most.min(wanted.saturating_mul(page));
        Some(found)
    }

    /// When the youngest of the pages became free that are free as a whole.
    pub(crate) fn newest_free_pages(&self, page: u64) -> Option<u64> {
        self.free_pages(page).map(|pages| pages.since).max()
    }

    /// When the youngest chunk became free.
    pub(crate) fn newest_free(&self) -> Option<u64> {
        let free = self.chunks.iter().filter(|(_, chunk)| chunk.state == State::Free);
        free.map(|(_, chunk)| chunk.since).max()
    }

    fn free_pages(&self, page: u64) -> impl Iterator<Item = FreePages> {
        let free = self.chunks.iter().filter(|(_, chunk)| chunk.state == State::Free);
        free.filter_map(move |(id, chunk)| {
            let whole = chunk.address.next_multiple_of(page)..chunk.end() / page * page;
            let any = whole.start < whole.end;
            any.then_some(FreePages { chunk: id, addresses: whole, since: chunk.since })
        })
    }

    /// Takes those: one chunk.
    pub(crate) fn take_pages(&mut self, pages: &FreePages) -> ChunkId {
        self.take_range(pages.chunk, &pages.addresses)
    }

    /// Makes a taken chunk a hole, together with the holes beside it.
    pub(crate) fn release_hole(&mut self, id: ChunkId) {
        let chunk = &mut self.chunks[id];
        (chunk.state, chunk.since) = (State::Hole, 0);
        if let Some(after) = self.chunks[id].after.filter(|&id| self.is_hole(id)) {
            self.absorb(id, after);
        }
        if let Some(before) = self.chunks[id].before.filter(|&id| self.is_hole(id)) {
            self.absorb(before, id);
        }
    }

    /// Takes so many units of the free chunk behind a taken one and puts them to it, if it has them
    /// and became free at a time that is such.
    pub(crate) fn extend(&mut self, id: ChunkId, units: u32, such: impl Fn(u64) -> bool) -> bool {
        let next = self.chunks[id].after.filter(|&next| self.is_free(next));
        let Some(next) = next else { return false };
        let Chunk { units: have, since, .. } = self.chunks[next];
        let fits = have >= units && such(since);
        if fits {
            self.unlist(next);
            if have > units {
                self.split(next, units);
            }
            self.absorb(id, next);
        }
        fits
    }

    /// Cuts a taken chunk after so many units. Answers the rest, which is taken, if there is any.
    pub(crate) fn cut_off(&mut self, id: ChunkId, units: u32) -> Option<ChunkId> {
        (self.chunks[id].units > units).then(|| self.cut(id, units))
    }

    /// Whether nothing is mapped there.
    fn is_hole(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Hole
    }

    fn is_vacant(&self, id: ChunkId) -> bool {
        matches!(self.chunks[id].state, State::Free | State::Hole)
    }

    /// The free chunks and holes from this one on, without a gap.
    fn run_from(&self, first: ChunkId) -> Vec<(ChunkId, Chunk)> {
        let next = |id: &ChunkId| self.chunks[*id].after.filter(|&id| self.is_vacant(id));
        std::iter::successors(Some(first), next).map(|id| (id, self.chunks[id])).collect()
    }

    /// Makes one taken chunk of the addresses, all of which are in free chunks and holes from
    /// `first` on. What those have beside them stays as it was.
    fn take_range(&mut self, first: ChunkId, addresses: &Range<u64>) -> ChunkId {
        let (mut whole, mut at) = (None, Some(first));
        while let Some(mut id) = at {
            let chunk = self.chunks[id];
            if chunk.address >= addresses.end {
                break;
            }
            if chunk.state == State::Free {
                self.unlist(id);
            }
            if chunk.address < addresses.start {
                let rest = self.cut(id, units(addresses.start - chunk.address));
                self.put_aside(id, chunk.state);
                id = rest;
            }
            let end = self.chunks[id].end();
            if end > addresses.end {
                let rest = self.cut(id, units(addresses.end - self.chunks[id].address));
                self.put_aside(rest, chunk.state);
            }
            at = self.chunks[id].after;
            self.chunks[id].state = State::Taken;
            match whole {
                None => whole = Some(id),
                Some(whole) => self.absorb(whole, id),
            }
        }
        whole.unwrap_or(first)
    }

    /// A part that was cut off a chunk in this state.
    fn put_aside(&mut self, id: ChunkId, state: State) {
        match state {
            State::Free => self.list(id),
            other => self.chunks[id].state = other,
        }
    }
}

/// Where a request of so many bytes could begin in a run: where a part of it begins, or so that it
/// ends where a free chunk does.
fn starts(run: &[(ChunkId, Chunk)], bytes: u64) -> impl Iterator<Item = u64> {
    run.iter().flat_map(move |(_, chunk)| {
        let back = chunk.end().checked_sub(bytes).filter(|_| chunk.state == State::Free);
        [Some(chunk.address), back].into_iter().flatten()
    })
}

/// The window that begins at `start`, or at the page that `start` is in if that is a hole.
fn cut_out(
    run: &[(ChunkId, Chunk)],
    start: u64,
    bytes: u64,
    page: u64,
    is_open: &impl Fn(u64) -> bool,
) -> Option<Window> {
    let holds = |address: u64| {
        let at = run.iter().find(|(_, chunk)| chunk.end() > address);
        at.filter(|(_, chunk)| chunk.address <= address)
    };
    let (first, chunk) = holds(start)?;
    let start = if chunk.state == State::Hole { start / page * page } else { start };
    let (_, last) = holds(start + bytes - 1)?;
    let end = start + bytes;
    let end = if last.state == State::Hole { end.next_multiple_of(page) } else { end };
    let mut missing = 0;
    for (_, hole) in run.iter().filter(|(_, chunk)| chunk.state == State::Hole) {
        let mut at = hole.address.max(start);
        while at < hole.end().min(end) {
            if !is_open(at) {
                return None;
            }
            (missing, at) = (missing + 1, at + page);
        }
    }
    let run = run.last()?.1.end() - run.first()?.1.address;
    Some(Window { first: *first, addresses: start..end, missing, run })
}

impl Chunk {
    /// The address after its last.
    fn end(&self) -> u64 {
        self.address + u64::from(self.units) * UNIT
    }
}

fn units(bytes: u64) -> u32 {
    (bytes / UNIT) as u32
}
