//! Reports of a heap's chunks.

use std::ops::{ControlFlow, Range};

use super::chunk::{Chunk, State};
use super::{ChunkId, Heap, UNIT};

/// The description of a chunk in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkReport {
    pub(crate) chunk: ChunkId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: RegionState,
    /// It is the first of its span.
    pub(crate) is_first: bool,
}

/// Neighbours that are free, on a shelf or pending, without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdleRun {
    pub(crate) addresses: Range<u64>,
    /// Its whole span is idle.
    pub(crate) is_whole: bool,
}

impl IdleRun {
    pub(crate) fn bytes(&self) -> u64 {
        self.addresses.end - self.addresses.start
    }

    /// Returns the bytes of whole pages of this size in it.
    pub(crate) fn whole_pages(&self, page: u64) -> u64 {
        let Range { start, end } = self.addresses;
        (end / page * page).saturating_sub(start.next_multiple_of(page))
    }
}

/// The state of a chunk of a pool's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegionState {
    /// A block.
    InUse,
    /// Free.
    Cached,
    /// Deallocated, and perhaps still used by other streams.
    Pending,
}

impl Heap {
    /// Describes the chunks in the records from index `from` to index `to`, in no particular order:
    /// one of each `step` records. Holes are left out.
    pub(crate) fn reports(
        &self,
        from: usize,
        to: usize,
        step: usize,
    ) -> impl Iterator<Item = ChunkReport> {
        self.chunks.batch(from, to, step).filter_map(|(id, chunk)| {
            let state = match chunk.state {
                State::Unused | State::Hole => return None,
                State::Free => RegionState::Cached,
                State::Pending => RegionState::Pending,
                State::Acquired if self.quick.contains(chunk.units, id) => RegionState::Cached,
                State::Acquired => RegionState::InUse,
            };
            let bytes = u64::from(chunk.units) * UNIT;
            let is_first = chunk.before.is_none();
            Some(ChunkReport { chunk: id, address: chunk.address, bytes, state, is_first })
        })
    }

    /// Calls `act` for the runs that have a chunk on a shelf and no pending one before it, and for
    /// the other free chunks of at least `least` units. Breaks if there are more than `most` of
    /// those.
    pub(crate) fn visit_free_runs(
        &self,
        least: u32,
        most: usize,
        mut act: impl FnMut(IdleRun),
    ) -> ControlFlow<()> {
        let mut visited = ControlFlow::Continue(());
        let mut left = most;
        self.free.visit(&self.chunks, least..=u32::MAX, |id| {
            let Some(fewer) = left.checked_sub(1) else {
                visited = ControlFlow::Break(());
                return visited;
            };
            left = fewer;
            let Chunk { before, after, .. } = self.chunks[id];
            if ![before, after].into_iter().flatten().any(|id| self.is_unmerged(id)) {
                act(self.run_from(id));
            }
            ControlFlow::Continue(())
        });
        visited?;
        self.quick.iter().filter_map(|id| self.run_at(id)).for_each(act);
        visited
    }

    /// Returns the run of a pending chunk, or of one on a shelf; `None` unless it is the first of
    /// these in its run.
    pub(crate) fn run_at(&self, unmerged: ChunkId) -> Option<IdleRun> {
        let before = self.chunks[unmerged].before;
        let free = before.filter(|&id| self.is_free(id));
        let other = free.map_or(before, |id| self.chunks[id].before);
        match other.is_some_and(|id| self.is_unmerged(id)) {
            true => None,
            false => Some(self.run_from(free.unwrap_or(unmerged))),
        }
    }

    /// Returns the run that begins with this chunk.
    fn run_from(&self, first: ChunkId) -> IdleRun {
        let mut last = first;
        while let Some(after) = self.chunks[last].after.filter(|&id| self.is_idle(id)) {
            last = after;
        }
        let is_whole = self.chunks[first].before.is_none() && self.chunks[last].after.is_none();
        IdleRun { addresses: self.chunks[first].address..self.chunks[last].end(), is_whole }
    }

    /// Returns whether a chunk is free, pending or on a shelf.
    fn is_idle(&self, id: ChunkId) -> bool {
        self.is_free(id) || self.is_unmerged(id)
    }

    /// Returns whether a chunk is idle, and not merged with free neighbours.
    fn is_unmerged(&self, id: ChunkId) -> bool {
        match self.chunks[id].state {
            State::Pending => true,
            State::Acquired => self.quick.contains(self.chunks[id].units, id),
            _ => false,
        }
    }

    /// Returns the number of records, in use or not.
    pub(crate) fn records(&self) -> usize {
        self.chunks.records()
    }
}
