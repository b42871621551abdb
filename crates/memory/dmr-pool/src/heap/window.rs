//! Windows: addresses for a request in a run of free chunks and of holes that pages are mapped
//! into.
//!
//! Only runs with holes are read one by one. A run without holes is a free chunk.

use std::ops::Range;

use super::{ChunkId, Heap, State, UNIT};

/// Addresses for a request: in free chunks, and in holes that pages are to be mapped into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The chunk that contains its first address.
    first: ChunkId,
    addresses: Range<u64>,
    missing: u64,
    /// The bytes of the run that contains it.
    run: u64,
}

impl Window {
    /// Returns the number of pages that are missing.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns the key that orders windows: by missing pages, then by the size of the run, then by
    /// address.
    pub(super) fn cost(&self) -> (u64, u64, u64) {
        (self.missing, self.run, self.addresses.start)
    }
}

/// A free chunk or a hole in a run.
#[derive(Clone, Copy, Debug)]
struct Part {
    chunk: ChunkId,
    start: u64,
    end: u64,
    is_hole: bool,
    /// Pages of holes before it in its run.
    missing_before: u64,
}

/// Free chunks and holes without a gap.
#[derive(Debug, Default)]
struct Run {
    parts: Vec<Part>,
}

/// A search for a window.
struct Search<F> {
    bytes: u64,
    page: u64,
    /// Returns whether a range has addresses that cannot be mapped now.
    is_blocked: F,
}

impl Heap {
    /// Finds the cheapest window for `units`. `is_blocked` returns whether a range of addresses has
    /// pages that cannot be mapped now.
    pub(crate) fn find_window(
        &self,
        units: u32,
        page: u64,
        is_blocked: impl Fn(Range<u64>) -> bool,
    ) -> Option<Window> {
        let search = Search { bytes: u64::from(units) * UNIT, page, is_blocked };
        if let Some(id) = self.find(units) {
            let chunk = &self.chunks[id];
            let addresses = chunk.address..chunk.address + search.bytes;
            let run = chunk.end() - chunk.address;
            return Some(Window { first: id, addresses, missing: 0, run });
        }
        // No free chunk is large enough, so a window has a hole in it: the runs of holes are all
        // runs that matter.
        let mut best = None::<Window>;
        let mut run = Run::default();
        for hole in self.holes() {
            let Some(first) = self.first_of_run(hole) else { continue };
            self.read_run(first, u64::MAX, page, &mut run);
            let windows = run.starts(search.bytes).filter_map(|start| run.window(start, &search));
            best = best.into_iter().chain(windows).min_by_key(Window::cost);
        }
        best
    }

    /// Finds the window for `units` that begins where an acquired chunk ends.
    pub(crate) fn window_after(
        &self,
        id: ChunkId,
        units: u32,
        page: u64,
        is_blocked: impl Fn(Range<u64>) -> bool,
    ) -> Option<Window> {
        let next = self.chunks[id].after.filter(|&next| self.is_vacant(next))?;
        let search = Search { bytes: u64::from(units) * UNIT, page, is_blocked };
        let mut run = Run::default();
        let start = self.chunks[next].address;
        self.read_run(next, start + search.bytes, page, &mut run);
        run.window(start, &search)
    }

    /// Acquires a window, as one chunk, whose holes are to be filled.
    pub(crate) fn claim(&mut self, window: &Window) -> ChunkId {
        self.acquire_range(window.first, &window.addresses)
    }

    fn is_vacant(&self, id: ChunkId) -> bool {
        matches!(self.chunks[id].state, State::Free | State::Hole)
    }

    /// Returns the first chunk of the run of a hole; `None` unless it is the first hole of the run.
    fn first_of_run(&self, hole: ChunkId) -> Option<ChunkId> {
        let mut first = hole;
        while let Some(before) = self.chunks[first].before.filter(|&before| self.is_vacant(before))
        {
            if self.is_hole(before) {
                return None;
            }
            first = before;
        }
        Some(first)
    }

    /// Reads the run that begins with a chunk, up to the part that contains the address before
    /// `end`.
    fn read_run(&self, first: ChunkId, end: u64, page: u64, run: &mut Run) {
        run.parts.clear();
        let mut at = Some(first);
        let mut missing_before = 0;
        while let Some(id) = at.filter(|&id| self.is_vacant(id)) {
            let chunk = &self.chunks[id];
            if chunk.address >= end {
                break;
            }
            let start = chunk.address;
            let end = chunk.end();
            let is_hole = chunk.state == State::Hole;
            run.parts.push(Part { chunk: id, start, end, is_hole, missing_before });
            missing_before += if is_hole { (end - start) / page } else { 0 };
            at = chunk.after;
        }
    }
}

impl Run {
    /// Returns the addresses at which a request could begin: where a part of the run begins, or so
    /// that the request ends where a free chunk ends.
    fn starts(&self, bytes: u64) -> impl Iterator<Item = u64> {
        self.parts.iter().flat_map(move |part| {
            let back = part.end.checked_sub(bytes).filter(|_| !part.is_hole);
            [Some(part.start), back].into_iter().flatten()
        })
    }

    /// Returns the part that contains an address.
    fn part_at(&self, address: u64) -> Option<&Part> {
        let at = self.parts.partition_point(|part| part.end <= address);
        self.parts.get(at).filter(|part| part.start <= address)
    }

    /// Returns the window that begins at `start`, or at the beginning of its page if `start` is in
    /// a hole.
    fn window(&self, start: u64, search: &Search<impl Fn(Range<u64>) -> bool>) -> Option<Window> {
        let &Search { bytes, page, ref is_blocked } = search;
        let first = self.part_at(start)?;
        let start = if first.is_hole { start / page * page } else { start };
        let last = self.part_at(start + bytes - 1)?;
        let end = start + bytes;
        let end = if last.is_hole { end.next_multiple_of(page) } else { end };
        let missing = last.missing_up_to(end, page) - first.missing_up_to(start, page);
        if missing > 0 && is_blocked(start..end) {
            return None;
        }
        let run = self.parts.last()?.end - self.parts.first()?.start;
        Some(Window { first: first.chunk, addresses: start..end, missing, run })
    }
}

impl Part {
    /// Returns the number of pages of holes in the run before an address of this part, or before
    /// its end.
    fn missing_up_to(&self, address: u64, page: u64) -> u64 {
        self.missing_before + if self.is_hole { (address - self.start) / page } else { 0 }
    }
}
