//! A chunk on its way between its arena and a block.

use dmr_core::{BlockId, StreamId};
use dmr_streams::uses::{Dependencies, FreeSlot};

use crate::heap::{AcquiredChunk, ChunkId};

/// The location of a chunk: its arena, and its index there. Stored in the block's use slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLocation {
    pub(crate) arena: usize,
    pub(crate) chunk: ChunkId,
}

impl ChunkLocation {
    #[inline]
    pub(crate) fn to_payload(self) -> u64 {
        (self.arena as u64) << u32::BITS | u64::from(self.chunk.get())
    }

    #[inline]
    pub(crate) fn from_payload(payload: u64) -> Option<Self> {
        let chunk = ChunkId::new(payload as u32)?;
        Some(Self { arena: (payload >> u32::BITS) as usize, chunk })
    }
}

/// A chunk for a block, and the use slot of the block.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) chunk: AcquiredChunk,
    pub(crate) slot: FreeSlot,
}

/// A block that was deallocated while a window was open.
#[derive(Clone, Copy)]
pub(crate) struct RetiredChunk {
    pub(crate) id: BlockId,
    pub(crate) payload: u64,
    pub(crate) bytes: u64,
}

/// A chunk that no block has any more, on its way into its arena.
pub(crate) struct FreedChunk {
    pub(crate) location: ChunkLocation,
    /// The home stream of the block.
    pub(crate) home: StreamId,
    /// The uses on other streams that `home` is not known to be ordered after.
    pub(crate) after: Dependencies,
    /// The use slot of the block; `None` if the chunk has not become one.
    pub(crate) slot: Option<FreeSlot>,
    /// Bytes to count as deallocated: none if the block was retired before.
    pub(crate) deallocated: u64,
    /// Bytes to count as freed.
    pub(crate) freed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_the_use_table_holds_any_chunk_of_any_arena() {
        for arena in [0, 1, StreamId::MAX_SLOTS - 1] {
            for chunk in [1, 1 << 20, u32::MAX].map(|index| ChunkId::new(index).unwrap()) {
                let location = ChunkLocation { arena, chunk };
                assert_eq!(ChunkLocation::from_payload(location.to_payload()), Some(location));
            }
        }
    }
}
