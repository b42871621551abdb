//! Shelves: chunks that were freed lately and are not merged, for the next request of their size.
//!
//! Programs allocate the same sizes again and again. With shelves, their chunks are not cut and merged
//! each time.

use super::chunk::ChunkId;

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

    /// Puts a chunk onto the shelf of its size. Returns `false` if the shelf is full or has another size, or
    /// the chunk is too large.
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

    /// Removes a chunk from the first shelf from index `from` on that has any, and sets `from` to the index
    /// of that shelf. Returns `None` if all of these are empty; those before `from` must be.
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

#[inline]
fn shelf_of(units: u32) -> usize {
    // The high bits of a product with an odd number depend on all of the factor's bits.
    (units.wrapping_mul(0x9e37_79b9) >> (u32::BITS - SHELVES.ilog2())) as usize
}
