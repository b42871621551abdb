//! Chunks that have just become free, kept as they are for the next request of their size.
//!
//! Programs ask for the same sizes again and again. Such a chunk is not cut and put together each
//! time.

use super::chunk::ChunkId;

const SIZES: usize = 64;
const OF_EACH: usize = 4;
/// Larger chunks are worth putting together at once.
const LARGEST: u32 = 1024;

/// A few chunks of each of a few sizes. To the heap they are taken.
#[derive(Debug)]
pub(super) struct Quick {
    shelves: Box<[Shelf; SIZES]>,
    len: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shelf {
    units: u32,
    len: u32,
    chunks: [Option<ChunkId>; OF_EACH],
}

impl Default for Quick {
    fn default() -> Self {
        Self { shelves: Box::new([Shelf::default(); SIZES]), len: 0 }
    }
}

impl Quick {
    #[inline(always)]
    pub(super) fn pop(&mut self, units: u32) -> Option<ChunkId> {
        let shelf = &mut self.shelves[place(units)];
        if shelf.units != units || shelf.len == 0 {
            return None;
        }
        shelf.len -= 1;
        self.len -= 1;
        shelf.chunks[shelf.len as usize % OF_EACH]
    }

    /// Keeps a chunk, unless its place is full or another size's.
    #[inline(always)]
    pub(super) fn push(&mut self, units: u32, chunk: ChunkId) -> bool {
        if units > LARGEST {
            return false;
        }
        let shelf = &mut self.shelves[place(units)];
        if shelf.units != units {
            if shelf.len > 0 {
                return false;
            }
            shelf.units = units;
        }
        if shelf.len as usize == OF_EACH {
            return false;
        }
        shelf.chunks[shelf.len as usize] = Some(chunk);
        shelf.len += 1;
        self.len += 1;
        true
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = ChunkId> {
        self.shelves
            .iter()
            .flat_map(|shelf| shelf.chunks.into_iter().take(shelf.len as usize).flatten())
    }

    pub(super) fn pop_any(&mut self) -> Option<ChunkId> {
        if self.len == 0 {
            return None;
        }
        let shelf = self.shelves.iter_mut().find(|shelf| shelf.len > 0)?;
        shelf.len -= 1;
        self.len -= 1;
        shelf.chunks[shelf.len as usize]
    }
}

#[inline]
fn place(units: u32) -> usize {
    // The high bits of a product with an odd number depend on all of the factor's bits.
    (units.wrapping_mul(0x9e37_79b9) >> (u32::BITS - SIZES.ilog2())) as usize
}
