//! The fast path of a heap: chunks that were freed lately and are not merged, for the next request
//! of their size. Small ones are on *shelves*; of large ones, the *recent* chunk is the one that
//! was freed last.
//!
//! Programs allocate the same sizes again and again. So their chunks are not cut and merged each
//! time.

use super::bins::Bin;
use super::chunk::{Chunk, ChunkId, State};
use super::{AcquiredChunk, Heap};

const SHELVES: usize = 64;
const SHELF_LEN: usize = 4;
/// Larger chunks are worth merging at once.
const LARGEST: u32 = 1024;

/// A few chunks of each of a few sizes. Their state in the heap is acquired.
#[derive(Debug)]
pub(super) struct Quick {
    shelves: Box<[Shelf; SHELVES]>,
    /// A chunk was put onto a shelf since all of them were found empty.
    is_used: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shelf {
    units: u32,
    len: u32,
    chunks: [Option<ChunkId>; SHELF_LEN],
}

impl Default for Quick {
    fn default() -> Self {
        Self { shelves: Box::new([Shelf::default(); SHELVES]), is_used: false }
    }
}

impl Quick {
    /// Removes a chunk of exactly this size.
    #[inline(always)]
    pub(super) fn pop(&mut self, units: u32) -> Option<ChunkId> {
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.units != units || shelf.len == 0 {
            return None;
        }
        shelf.len -= 1;
        shelf.chunks[shelf.len as usize % SHELF_LEN]
    }

    /// Puts a chunk onto the shelf of its size. Returns `false` if the shelf is full or has another
    /// size, or the chunk is too large.
    #[inline(always)]
    pub(super) fn push(&mut self, units: u32, chunk: ChunkId) -> bool {
        if units > LARGEST {
            return false;
        }
        let shelf = &mut self.shelves[shelf_of(units)];
        if shelf.units != units {
            if shelf.len > 0 {
                return false;
            }
            shelf.units = units;
        }
        let Some(entry) = shelf.chunks.get_mut(shelf.len as usize) else { return false };
        *entry = Some(chunk);
        shelf.len += 1;
        self.is_used = true;
        true
    }

    /// Returns whether a chunk of this size is on its shelf.
    pub(super) fn contains(&self, units: u32, chunk: ChunkId) -> bool {
        let shelf = &self.shelves[shelf_of(units)];
        shelf.chunks[..shelf.len as usize].contains(&Some(chunk))
    }

    /// Returns the chunks on all shelves.
    pub(super) fn iter(&self) -> impl Iterator<Item = ChunkId> {
        self.shelves
            .iter()
            .flat_map(|shelf| shelf.chunks.into_iter().take(shelf.len as usize).flatten())
    }

    /// Removes a chunk from the first shelf from index `from` on that has any, and sets `from` to
    /// the index of that shelf. Returns `None` if all of these are empty; those before `from` must
    /// be.
    pub(super) fn pop_any(&mut self, from: &mut usize) -> Option<ChunkId> {
        while let Some(shelf) = self.shelves.get_mut(*from).filter(|_| self.is_used) {
            if let Some(last) = shelf.len.checked_sub(1) {
                shelf.len = last;
                return shelf.chunks[last as usize];
            }
            *from += 1;
        }
        self.is_used = false;
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}

impl Heap {
    /// Acquires a chunk of at least this size.
    #[inline(always)]
    pub(crate) fn acquire(&mut self, units: u32) -> Option<AcquiredChunk> {
        match self.quick.pop(units) {
            Some(id) => Some(self.acquired(id)),
            None => self.acquire_merged(units),
        }
    }

    /// Frees an acquired chunk: onto a shelf, or merged with its free neighbours.
    #[inline(always)]
    pub(crate) fn release(&mut self, id: ChunkId, since: u64) {
        if !self.shelve(id, since) {
            self.merge(id, since);
        }
    }

    /// Frees an acquired chunk, and holds it ready for the next request of its size: on a shelf, or
    /// as the recent chunk. Call [`merge_recent`](Self::merge_recent) before any other function
    /// than [`acquire`](Self::acquire) looks at the free chunks.
    #[inline(always)]
    pub(crate) fn release_for_reuse(&mut self, id: ChunkId, since: u64) {
        if !self.shelve(id, since) {
            self.release_as_recent(id, since);
        }
    }

    /// Frees an acquired chunk onto the shelf of its size; it is merged with its neighbours when
    /// there is no other memory. Returns `false`, and does nothing, if the shelf is full or the
    /// chunk too large.
    #[inline(always)]
    pub(super) fn shelve(&mut self, id: ChunkId, since: u64) -> bool {
        let chunk = &mut self.chunks[id];
        let is_shelved = self.quick.push(chunk.units, id);
        if is_shelved {
            chunk.since = since;
        }
        is_shelved
    }

    /// Frees an acquired chunk as the recent one.
    #[inline(never)]
    pub(super) fn release_as_recent(&mut self, id: ChunkId, since: u64) {
        self.merge_recent();
        let chunk = &mut self.chunks[id];
        chunk.since = since;
        self.has_changed |= Some(Bin::of(self.merged_units(id))) > self.last_bin;
        self.recent = Some(id);
    }

    /// Merges the recent chunk with its neighbours.
    #[inline(always)]
    pub(crate) fn merge_recent(&mut self) {
        if let Some(id) = self.recent.take() {
            self.merge(id, self.chunks[id].since);
        }
    }

    /// Returns whether [`acquire_merged`](Self::acquire_merged) would return exactly the range of
    /// the recent chunk if that were merged first.
    #[inline]
    pub(super) fn is_best(&self, recent: ChunkId, units: u32) -> bool {
        let &Chunk { units: size, before, after, .. } = &self.chunks[recent];
        // Merged with a free chunk before it, the request would be cut from that one's beginning.
        if size != units || before.is_some_and(|before| self.is_free(before)) {
            return false;
        }
        let Some(after) = after.filter(|&after| self.is_free(after)) else { return true };
        let merged = size + self.chunks[after].units;
        let other = self.free.find(&self.chunks, units);
        other.is_none_or(|other| other == after || self.chunks[other].units >= merged)
    }

    /// Returns the units that a chunk has once it is merged with its free neighbours.
    #[inline]
    pub(super) fn merged_units(&self, id: ChunkId) -> u32 {
        let &Chunk { units, before, after, .. } = &self.chunks[id];
        let free = |id: Option<ChunkId>| match id.map(|id| &self.chunks[id]) {
            Some(chunk) if chunk.state == State::Free => chunk.units,
            _ => 0,
        };
        units + free(before) + free(after)
    }

    /// Empties the shelves: merges their chunks with their neighbours. Returns whether there were
    /// any.
    pub(crate) fn flush(&mut self) -> bool {
        let mut any = false;
        let mut shelf = 0;
        while let Some(id) = self.quick.pop_any(&mut shelf) {
            self.merge(id, self.chunks[id].since);
            any = true;
        }
        any
    }
}

#[inline]
fn shelf_of(units: u32) -> usize {
    // The high bits of a product with an odd number depend on all of the factor's bits.
    (units.wrapping_mul(0x9e37_79b9) >> (u32::BITS - SHELVES.ilog2())) as usize
}
