//! The fast path of a heap: *warm* chunks, which were freed lately and are not merged, for the next
//! request of their size. Small ones are on *shelves*; of large ones, the *recent* chunk is the one
//! that was freed last.
//!
//! Programs allocate the same sizes again and again. So their chunks are not cut and merged each
//! time, and a warm chunk has beside it all that an allocation needs: the record of the chunk is
//! not looked at.

use dmr_core::AllocTag;
use dmr_streams::uses::FreeSlot;

use super::bins::Bin;
use super::chunk::{Chunk, ChunkId, Kept, State};
use super::{AcquiredChunk, Heap};

const SHELVES: usize = 64;
const SHELF_LEN: usize = 4;
/// Larger chunks are worth merging at once.
const LARGEST: u32 = 1024;

/// A few chunks of each of a few sizes. Their state in the heap is acquired.
#[derive(Debug)]
pub(super) struct Quick {
    shelves: Box<[Shelf; SHELVES]>,
    /// A bit for each shelf that a chunk was put onto since it was found empty.
    used: u64,
}

#[derive(Debug)]
struct Shelf {
    units: u32,
    len: u32,
    /// The chunks below `len` are on the shelf.
    chunks: [WarmChunk; SHELF_LEN],
}

/// A chunk that is ready for the next request of its size.
///
/// It is written and read field by field on the fast path: a processor forwards no load of sixteen
/// bytes that were stored as two words just before.
#[derive(Debug)]
pub(crate) struct WarmChunk {
    pub(crate) id: ChunkId,
    pub(crate) address: u64,
    /// The number at which it became free.
    pub(crate) since: u64,
    /// The use slot of its next block; `None` if it has had no block. Its record has none.
    pub(crate) slot: Option<FreeSlot>,
    /// The tag of its last block.
    pub(crate) tag: AllocTag,
}

impl WarmChunk {
    /// The content of an empty place.
    const NONE: Self =
        Self { id: ChunkId::FIRST, address: 0, since: 0, slot: None, tag: AllocTag::UNTAGGED };

    /// Returns the chunk, and leaves its place empty.
    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::NONE)
    }
}

/// The large chunk that was freed last.
#[derive(Debug)]
pub(super) struct Recent {
    /// 0 if there is none.
    units: u32,
    chunk: WarmChunk,
    /// The chunk that a request of its size should have, if it is the recent one. `None` once there
    /// is another free chunk, or a larger one.
    best: Option<ChunkId>,
}

impl Recent {
    pub(super) fn id(&self) -> Option<ChunkId> {
        (self.units > 0).then_some(self.chunk.id)
    }

    #[cfg(test)]
    pub(super) fn best(&self) -> Option<ChunkId> {
        self.best
    }

    /// Notes that there is another free chunk or a larger one, or that [`Heap::has_changed`] was
    /// cleared.
    #[inline(always)]
    pub(super) fn forget_best(&mut self) {
        self.best = None;
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self { units: 0, chunk: WarmChunk::NONE, best: None }
    }
}

impl Default for Quick {
    fn default() -> Self {
        let shelf = |_| Shelf { units: 0, len: 0, chunks: [WarmChunk::NONE; SHELF_LEN] };
        Self { shelves: Box::new(std::array::from_fn(shelf)), used: 0 }
    }
}

impl Quick {
    /// Returns whether there is a chunk of exactly this size.
    #[inline(always)]
    pub(super) fn has(&self, units: u32) -> bool {
        let shelf = &self.shelves[shelf_of(units)];
        shelf.units == units && shelf.len > 0
    }

    /// Removes a chunk of this size, which [there is](Self::has). Its place can be read until the
    /// next change.
    #[inline(always)]
    fn pop(&mut self, units: u32) -> &mut WarmChunk {
        let shelf = &mut self.shelves[shelf_of(units)];
        shelf.len -= 1;
        &mut shelf.chunks[shelf.len as usize % SHELF_LEN]
    }

    /// Returns the place on a shelf for a chunk of this size, which is taken from here on. `None`
    /// if the shelf is full or has another size, or the chunk is too large.
    #[inline(always)]
    fn take_place(&mut self, units: u32) -> Option<&mut WarmChunk> {
        let at = shelf_of(units);
        let shelf = &mut self.shelves[at];
        if shelf.units != units {
            if shelf.len > 0 || units > LARGEST {
                return None;
            }
            shelf.units = units;
        }
        let place = shelf.chunks.get_mut(shelf.len as usize)?;
        shelf.len += 1;
        self.used |= 1 << at;
        Some(place)
    }

    /// Returns whether a chunk of this size is on its shelf.
    pub(super) fn contains(&self, units: u32, chunk: ChunkId) -> bool {
        let shelf = &self.shelves[shelf_of(units)];
        shelf.units == units && shelf.on_it().iter().any(|it| it.id == chunk)
    }

    /// Returns the chunks on all shelves.
    pub(super) fn iter(&self) -> impl Iterator<Item = ChunkId> {
        let mut left = self.used;
        let used = std::iter::from_fn(move || {
            let at = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            at
        });
        used.flat_map(|at| self.shelves[at].on_it()).map(|it| it.id)
    }

    /// Removes a chunk from any shelf. `None` if all are empty.
    pub(super) fn pop_any(&mut self) -> Option<WarmChunk> {
        while self.used != 0 {
            let shelf = &mut self.shelves[self.used.trailing_zeros() as usize];
            if let Some(last) = shelf.len.checked_sub(1) {
                shelf.len = last;
                return Some(shelf.chunks[last as usize].take());
            }
            self.used &= self.used - 1;
        }
        None
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}

impl Shelf {
    fn on_it(&self) -> &[WarmChunk] {
        &self.chunks[..self.len as usize]
    }
}

impl Heap {
    /// Acquires a warm chunk of exactly this size. Take its use slot, which is lost with the next
    /// change of the heap.
    #[inline(always)]
    pub(crate) fn acquire_warm(&mut self, units: u32) -> Option<&mut WarmChunk> {
        if self.quick.has(units) {
            return Some(self.quick.pop(units));
        }
        // The recent chunk, if a request of this size should have it.
        if self.recent.units == units {
            let id = self.recent.chunk.id;
            if self.recent.best == Some(id) || self.is_best(id, units) {
                self.recent.best = Some(id);
                self.recent.units = 0;
                return Some(&mut self.recent.chunk);
            }
        }
        None
    }

    /// Acquires a chunk of at least this size.
    pub(crate) fn acquire(&mut self, units: u32) -> Option<AcquiredChunk> {
        match self.acquire_warm(units).map(WarmChunk::take) {
            Some(warm) => {
                let id = self.restore(warm);
                Some(self.acquired(id))
            }
            None => self.acquire_merged(units),
        }
    }

    /// Moves what a warm chunk has beside it into its record, and returns the chunk, acquired.
    pub(crate) fn restore(&mut self, warm: WarmChunk) -> ChunkId {
        let WarmChunk { id, since, slot, .. } = warm;
        self.chunks.kept_mut(id).slot = slot;
        self.chunks[id].since = since;
        id
    }

    /// Frees an acquired chunk: onto a shelf, or merged with its free neighbours.
    #[inline]
    pub(crate) fn release(&mut self, id: ChunkId, since: u64) {
        let &Chunk { units, address, .. } = &self.chunks[id];
        match self.quick.take_place(units) {
            Some(place) => {
                let &mut Kept { ref mut slot, tag } = self.chunks.kept_mut(id);
                *place = WarmChunk { id, address, since, slot: slot.take(), tag };
            }
            None => {
                self.merge(id, since);
            }
        }
    }

    /// Frees an acquired chunk of this size, and holds it ready for the next request of its size:
    /// on a shelf, or as the recent chunk. Call [`merge_recent`](Self::merge_recent) before any
    /// other function than [`acquire`](Self::acquire) and [`acquire_warm`](Self::acquire_warm)
    /// looks at the free chunks.
    #[inline(always)]
    pub(crate) fn release_for_reuse(&mut self, units: u32, warm: WarmChunk) {
        let WarmChunk { id, address, since, slot, tag } = warm;
        let place = match self.quick.take_place(units) {
            Some(place) => place,
            None if self.recent.units == 0 && self.recent.best == Some(id) => {
                self.recent.units = units;
                &mut self.recent.chunk
            }
            None => self.recent_place(units, id),
        };
        place.id = id;
        place.address = address;
        place.since = since;
        place.slot = slot;
        place.tag = tag;
    }

    /// Returns the place of the recent chunk, for this one.
    #[inline(never)]
    fn recent_place(&mut self, units: u32, id: ChunkId) -> &mut WarmChunk {
        self.merge_recent();
        self.has_changed |= Some(Bin::of(self.merged_units(id))) > self.last_bin;
        self.recent.units = units;
        &mut self.recent.chunk
    }

    /// Merges the recent chunk with its neighbours.
    #[inline(always)]
    pub(crate) fn merge_recent(&mut self) {
        if self.recent.units > 0 {
            self.merge_recent_chunk();
        }
    }

    #[inline(never)]
    fn merge_recent_chunk(&mut self) {
        self.recent.units = 0;
        let warm = self.recent.chunk.take();
        self.merge_warm(warm);
    }

    fn merge_warm(&mut self, warm: WarmChunk) {
        let since = warm.since;
        let id = self.restore(warm);
        self.merge(id, since);
    }

    /// Returns whether [`acquire_merged`](Self::acquire_merged) would return exactly the range of
    /// the recent chunk if that were merged first.
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
        while let Some(warm) = self.quick.pop_any() {
            self.merge_warm(warm);
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
