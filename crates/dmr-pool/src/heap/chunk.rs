//! The records of a heap's chunks.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A chunk's record: its index in the table, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChunkId(NonZeroU32);

/// A range of addresses that is free or taken as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) address: u64,
    /// When it became free.
    pub(super) since: u64,
    pub(super) units: u32,
    /// Its neighbours in its segment.
    pub(super) before: Option<ChunkId>,
    pub(super) after: Option<ChunkId>,
    /// Its neighbours in its list, while it is free.
    pub(super) previous: Option<ChunkId>,
    pub(super) next: Option<ChunkId>,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody has this record.
    Spare,
    Free,
    Taken,
    /// A segment of its own, which is never cut: its owner keeps it when it is free.
    Apart,
    /// Addresses that no memory is mapped to.
    Hole,
}

/// The table. Records of chunks that are no more are used again.
#[derive(Debug)]
pub(super) struct Chunks {
    /// The first one stays nobody's.
    records: Vec<Chunk>,
    spare: Vec<ChunkId>,
}

impl ChunkId {
    /// The chunk with this index.
    #[inline]
    pub(crate) fn new(index: u32) -> Option<Self> {
        NonZeroU32::new(index).map(Self)
    }

    /// Its index.
    #[inline]
    pub(crate) const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Chunk {
    /// Whether it is all of its segment.
    #[inline]
    pub(super) const fn is_whole(&self) -> bool {
        self.before.is_none() && self.after.is_none()
    }

    /// The first chunk of a segment, which is all of it.
    pub(super) const fn segment(address: u64, units: u32) -> Self {
        let (before, after, previous, next) = (None, None, None, None);
        Self { address, since: 0, units, before, after, previous, next, state: State::Taken }
    }
}

impl Default for Chunks {
    fn default() -> Self {
        let nobodys = Chunk { state: State::Spare, ..Chunk::segment(0, 0) };
        Self { records: vec![nobodys], spare: Vec::new() }
    }
}

impl Chunks {
    #[inline]
    pub(super) fn add(&mut self, chunk: Chunk) -> ChunkId {
        if let Some(id) = self.spare.pop() {
            self[id] = chunk;
            return id;
        }
        // 2^32 units are a terabyte, and no chunk is smaller than a unit.
        let id = ChunkId(NonZeroU32::new(self.records.len() as u32).unwrap_or(NonZeroU32::MAX));
        self.records.push(chunk);
        id
    }

    #[inline]
    pub(super) fn remove(&mut self, id: ChunkId) {
        self[id].state = State::Spare;
        self.spare.push(id);
    }

    /// All chunks, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let records = (0_u32..).zip(&self.records);
        records
            .filter(|(_, chunk)| chunk.state != State::Spare)
            .filter_map(|(index, chunk)| Some((ChunkId::new(index)?, chunk)))
    }
}

impl Index<ChunkId> for Chunks {
    type Output = Chunk;

    #[inline]
    fn index(&self, id: ChunkId) -> &Chunk {
        &self.records[id.get() as usize]
    }
}

impl IndexMut<ChunkId> for Chunks {
    #[inline]
    fn index_mut(&mut self, id: ChunkId) -> &mut Chunk {
        &mut self.records[id.get() as usize]
    }
}
