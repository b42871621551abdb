//! The records of a heap's chunks.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use dmr_core::AllocTag;
use dmr_streams::uses::FreeSlot;

/// The index of a chunk's record in the table, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChunkId(NonZeroU32);

/// A range of addresses that is in one state as a whole. A record is one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Chunk {
    pub(super) address: u64,
    /// The sequence number of its stream's work when it became free.
    pub(super) since: u64,
    pub(super) units: u32,
    /// The chunk that ends where this one begins, in the same span.
    pub(super) before: Option<ChunkId>,
    /// The chunk that begins where this one ends, in the same span.
    pub(super) after: Option<ChunkId>,
    pub(super) links: Links,
    /// The index of its entry in the pending queue, while it is pending.
    pub(super) entry: u32,
    pub(super) state: State,
    /// It has a span of its own, which is never cut: it serves requests of about its size.
    pub(super) is_dedicated: bool,
}

/// The links of a chunk in the bins that its state puts it into, or in the list of holes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    /// The previous chunk of its size; `None` for the first, which is in the tree.
    pub(super) previous: Option<ChunkId>,
    /// The next chunk of its size.
    pub(super) next: Option<ChunkId>,
    /// Subtrees of smaller and of larger sizes, if it is in the tree.
    pub(super) children: [Option<ChunkId>; 2],
}

impl Links {
    /// Returns whether a chunk with these links is the only one of its size, and a leaf of the
    /// tree.
    #[inline(always)]
    pub(super) fn is_alone(&self) -> bool {
        let Self { previous, next, children: [small, large] } = *self;
        [previous, next, small, large] == [None; 4]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The record is not in use.
    Unused,
    /// In the bins of free chunks.
    Free,
    /// In a block, on a shelf, the recent chunk, or held by a call.
    Acquired,
    /// In the bins of pending chunks: freed, still used by the device.
    Pending,
    /// Addresses without memory.
    Hole,
}

/// The part of a chunk that outlives its block, for the next block. It stays with the record:
/// chunks that are merged and cut again get the same ids, and so the same use slots.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The use slot for the next block; `None` while there is a block, while the chunk is warm, and
    /// before the first block.
    pub(crate) slot: Option<FreeSlot>,
    /// The tag of the last block.
    pub(crate) tag: AllocTag,
}

/// The table. Records of removed chunks are reused.
#[derive(Debug)]
pub(super) struct Chunks {
    /// In rows, which are never moved: for half a million records that would take milliseconds.
    rows: Vec<Row>,
    /// The number of records that were ever in use, and the first, which never is.
    len: u32,
    /// The last record that was removed. Each has the one that was removed before it as its `next`.
    unused: Option<ChunkId>,
}

/// Records of a row.
const ROW: usize = 1024;

#[derive(Debug)]
struct Row {
    chunks: Box<[Chunk; ROW]>,
    kept: Box<[Kept; ROW]>,
}

impl ChunkId {
    pub(super) const FIRST: Self = Self(NonZeroU32::MIN);

    /// Returns the chunk with this index; `None` for zero.
    #[inline]
    pub(crate) fn new(index: u32) -> Option<Self> {
        NonZeroU32::new(index).map(Self)
    }

    /// Returns its index.
    #[inline]
    pub(crate) const fn get(self) -> u32 {
        self.0.get()
    }
}

impl Chunk {
    /// Returns whether it is all of its span.
    #[inline]
    pub(super) const fn is_whole(&self) -> bool {
        self.before.is_none() && self.after.is_none()
    }

    /// Returns the first chunk of a span, which is all of it, acquired.
    pub(super) const fn span(address: u64, units: u32) -> Self {
        Self {
            address,
            since: 0,
            units,
            before: None,
            after: None,
            links: Links { previous: None, next: None, children: [None; 2] },
            entry: 0,
            state: State::Acquired,
            is_dedicated: false,
        }
    }

    /// Returns the address behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.address + u64::from(self.units) * super::UNIT
    }
}

impl Default for Chunks {
    fn default() -> Self {
        Self { rows: Vec::new(), len: 1, unused: None }
    }
}

impl Chunks {
    #[inline]
    pub(super) fn add(&mut self, chunk: Chunk) -> ChunkId {
        let id = self.add_record();
        self[id] = chunk;
        id
    }

    /// Returns a record that is not in use.
    #[inline]
    pub(super) fn add_record(&mut self) -> ChunkId {
        match self.unused {
            Some(id) => {
                self.unused = self[id].links.next;
                id
            }
            None => self.make_record(),
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, id: ChunkId) {
        let next = self.unused.replace(id);
        let chunk = &mut self[id];
        chunk.state = State::Unused;
        chunk.links.next = next;
    }

    /// Returns the chunks in the records from index `from` to index `to`, in no particular order:
    /// one of each `step` records.
    pub(super) fn batch(
        &self,
        from: usize,
        to: usize,
        step: usize,
    ) -> impl Iterator<Item = (ChunkId, &Chunk)> {
        let end = to.min(self.len as usize);
        let indexes = (from.max(1)..end).step_by(step).map(move |index| {
            // Not always the first one: programs have patterns.
            let scattered = (index as u32).wrapping_mul(0x9e37_79b9) >> 8;
            (index + scattered as usize % step).min(end - 1)
        });
        let ids = indexes.filter_map(|index| ChunkId::new(index as u32));
        let chunks = ids.map(|id| (id, &self[id]));
        chunks.filter(|(_, chunk)| chunk.state != State::Unused)
    }

    /// Returns what a chunk keeps for its next block.
    #[inline]
    pub(super) fn kept(&self, id: ChunkId) -> &Kept {
        let index = id.get() as usize;
        &self.rows[index / ROW].kept[index % ROW]
    }

    /// Returns what a chunk keeps for its next block.
    #[inline]
    pub(super) fn kept_mut(&mut self, id: ChunkId) -> &mut Kept {
        let index = id.get() as usize;
        &mut self.rows[index / ROW].kept[index % ROW]
    }

    /// Removes all use slots.
    pub(super) fn remove_slots(&mut self) -> impl Iterator<Item = FreeSlot> {
        self.rows.iter_mut().flat_map(|row| row.kept.iter_mut()).filter_map(|kept| kept.slot.take())
    }

    /// Returns the number of records, in use or not.
    pub(super) fn records(&self) -> usize {
        self.len as usize
    }

    #[cold]
    fn make_record(&mut self) -> ChunkId {
        let index = self.len;
        if index as usize / ROW == self.rows.len() {
            let unused = Chunk { state: State::Unused, ..Chunk::span(0, 0) };
            let chunks = Box::new([unused; ROW]);
            let kept = Box::new([const { Kept { slot: None, tag: AllocTag::UNTAGGED } }; ROW]);
            self.rows.push(Row { chunks, kept });
        }
        // 2^32 units are a terabyte, and no chunk is smaller than a unit.
        self.len = self.len.saturating_add(1);
        ChunkId(NonZeroU32::new(index).unwrap_or(NonZeroU32::MIN))
    }
}

impl Index<ChunkId> for Chunks {
    type Output = Chunk;

    #[inline]
    fn index(&self, id: ChunkId) -> &Chunk {
        #[cfg(test)]
        crate::tests::work::look();
        let index = id.get() as usize;
        &self.rows[index / ROW].chunks[index % ROW]
    }
}

impl IndexMut<ChunkId> for Chunks {
    #[inline]
    fn index_mut(&mut self, id: ChunkId) -> &mut Chunk {
        #[cfg(test)]
        crate::tests::work::look();
        let index = id.get() as usize;
        &mut self.rows[index / ROW].chunks[index % ROW]
    }
}
