//! Reports of a heap's chunks.

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

    /// Returns the number of records, in use or not.
    pub(crate) fn records(&self) -> usize {
        self.chunks.records()
    }
}
