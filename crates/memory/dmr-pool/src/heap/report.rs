//! Reports of a heap's chunks.

use std::ops::Range;

use super::chunk::State;
use super::{ChunkId, Heap, UNIT};

/// The description of a chunk in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkReport {
    pub(crate) chunk: ChunkId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: RegionState,
}

/// Neighbours that are free or pending, without a gap.
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
            Some(ChunkReport { chunk: id, address: chunk.address, bytes, state })
        })
    }

    /// Returns the runs whose first chunk has a record from index `from` to index `to`. Chunks on
    /// shelves are in none: [`flush`](Self::flush) them before.
    pub(crate) fn idle_runs(&self, from: usize, to: usize) -> impl Iterator<Item = IdleRun> {
        let is_idle = |id: ChunkId| matches!(self.chunks[id].state, State::Free | State::Pending);
        let firsts = self
            .chunks
            .batch(from, to, 1)
            .filter(move |&(id, chunk)| is_idle(id) && !chunk.before.is_some_and(is_idle));
        firsts.map(move |(_, first)| {
            let mut last = first;
            while let Some(after) = last.after.filter(|&id| is_idle(id)) {
                last = &self.chunks[after];
            }
            let end = last.address + u64::from(last.units) * UNIT;
            let is_whole = first.before.is_none() && last.after.is_none();
            IdleRun { addresses: first.address..end, is_whole }
        })
    }

    /// Returns the number of records, in use or not.
    pub(crate) fn records(&self) -> usize {
        self.chunks.records()
    }
}
