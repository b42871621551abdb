//! A heap: address ranges in chunks, and the best fit for any size in a few dozen instructions.
//!
//! Two-level segregated fit, after M. Masmano, I. Ripoll, A. Crespo and J. Real, "TLSF: a new
//! dynamic memory allocator for real-time systems" (ECRTS 2004), with a tree of sizes in each bin.
//! Device memory cannot hold its own lists, so chunks are records in a table, and the id of a chunk
//! is its index there. No function looks at more than a few hundred chunks, except those that
//! search for pages and windows, which look at chunks that have whole pages, and at holes.
//!
//! Every free chunk has the number, passed by the caller, at which it became free; merged chunks
//! have the latest. Nothing else here depends on streams.

mod bins;
mod chunk;
mod holes;
mod quick;
mod report;
mod window;

use std::ops::Range;

use dmr_core::AllocTag;
use dmr_streams::uses::FreeSlot;

use bins::{Bin, Bins};
pub(crate) use chunk::ChunkId;
use chunk::{Chunk, Chunks, State};
pub(crate) use quick::WarmChunk;
use quick::{Quick, Recent};
pub use report::RegionState;
pub(crate) use report::{ChunkReport, IdleRun};
pub(crate) use window::Window;

/// Bytes of a unit. Sizes are in units, addresses in bytes.
pub(crate) const UNIT: u64 = 256;

/// A chunk has no more bytes: its units are a number of 32 bits, and a segment is larger than the
/// chunk that it is for.
pub(crate) const MAX_CHUNK: u64 = (u32::MAX / 2) as u64 * UNIT;

/// Spans, cut into chunks.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    chunks: Chunks,
    /// Free chunks.
    free: Bins,
    /// Pending chunks.
    pending: Bins,
    quick: Quick,
    /// The large chunk that was freed last and is not merged yet: programs that free one often
    /// allocate one of that size next. Its state is acquired.
    recent: Recent,
    /// The first of the holes, which are a list.
    holes: Option<ChunkId>,
    free_units: u64,
    /// The latest number that a free or pending chunk has had.
    newest: u64,
    /// The bin of the largest free chunk when [`clear_changed`](Self::clear_changed) was called.
    last_bin: Option<Bin>,
    /// The bin of the largest free chunk may have changed since.
    has_changed: bool,
}

/// Returns the smallest size in the bin of this size.
#[inline]
pub(crate) fn smallest_of_bin(units: u32) -> u32 {
    Bin::of(units).smallest()
}

/// An acquired chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AcquiredChunk {
    pub(crate) id: ChunkId,
    pub(crate) address: u64,
    pub(crate) units: u32,
    /// The number at which it became free.
    pub(crate) since: u64,
}

/// A remainder of at most 1 / 2^`WORTH_SPLITTING` of the request is not split off: hardly any
/// request would fit it.
const WORTH_SPLITTING: u32 = 7;

impl Heap {
    /// Adds a span as one free chunk, and returns the chunk. The first chunk of a span keeps its
    /// id, however the span is cut. A dedicated chunk is never cut.
    pub(crate) fn add_segment(
        &mut self,
        address: u64,
        units: u32,
        is_dedicated: bool,
        since: u64,
    ) -> ChunkId {
        let id = self.chunks.add(Chunk { is_dedicated, ..Chunk::span(address, units) });
        self.merge(id, since)
    }

    /// Removes the span that begins with this chunk, if it is free as a whole, or a hole.
    pub(crate) fn remove_span(&mut self, id: ChunkId) -> bool {
        let chunk = self.chunks[id];
        match chunk.state {
            State::Free if chunk.is_whole() => self.unlist(id),
            State::Hole if chunk.is_whole() => self.unlist_hole(id),
            _ => return false,
        }
        self.chunks.remove(id);
        true
    }

    /// Acquires the smallest chunk of at least this size that is on no shelf, without its surplus
    /// if that is worth splitting off.
    #[inline(never)]
    pub(crate) fn acquire_merged(&mut self, units: u32) -> Option<AcquiredChunk> {
        self.merge_recent();
        let id = match self.remove_free(units) {
            None if self.flush() => self.remove_free(units)?,
            found => found?,
        };
        let whole = self.chunks[id].units;
        self.free_units -= u64::from(whole);
        self.has_changed |= Some(Bin::of(whole)) >= self.last_bin;
        Some(self.without_surplus(id, units))
    }

    /// Acquires a free chunk of at least this size, without its surplus if that is worth splitting
    /// off.
    #[inline]
    pub(crate) fn acquire_from(&mut self, id: ChunkId, units: u32) -> AcquiredChunk {
        self.unlist(id);
        self.without_surplus(id, units)
    }

    /// Acquires a chunk that was removed from its bin, without its surplus if that is worth
    /// splitting off.
    #[inline(always)]
    fn without_surplus(&mut self, id: ChunkId, units: u32) -> AcquiredChunk {
        let chunk = &mut self.chunks[id];
        chunk.state = State::Acquired;
        let &mut Chunk { address, units: whole, since, is_dedicated, .. } = chunk;
        if is_dedicated || whole - units <= units >> WORTH_SPLITTING {
            return AcquiredChunk { id, address, units: whole, since };
        }
        self.split(id, units);
        AcquiredChunk { id, address, units, since }
    }

    /// Frees an acquired chunk and merges it with its free neighbours. Returns the merged chunk.
    #[inline(never)]
    pub(crate) fn merge(&mut self, id: ChunkId, since: u64) -> ChunkId {
        self.newest = self.newest.max(since);
        let chunk = &mut self.chunks[id];
        chunk.since = since;
        let Chunk { before, after, .. } = *chunk;
        if let Some(after) = after.filter(|&id| self.is_free(id)) {
            self.unlist(after);
            self.absorb(id, after);
        }
        let Some(before) = before.filter(|&id| self.is_free(id)) else {
            self.list(id);
            return id;
        };
        let units = self.chunks[before].units;
        let more = self.chunks[id].units;
        // Most merges add little to a large chunk, which keeps its place in the tree then.
        if self.free.stays(&self.chunks, before, units + more) {
            self.recent.forget_best();
            self.free_units += u64::from(more);
            self.absorb(before, id);
        } else {
            self.unlist(before);
            self.absorb(before, id);
            self.list(before);
        }
        before
    }

    /// Makes an acquired chunk pending: it became free at `since`, and `entry` is its index in the
    /// pending queue.
    pub(crate) fn set_pending(&mut self, id: ChunkId, since: u64, entry: u32) {
        let chunk = &mut self.chunks[id];
        chunk.since = since;
        chunk.entry = entry;
        chunk.state = State::Pending;
        self.newest = self.newest.max(since);
        self.pending.insert(&mut self.chunks, id);
    }

    /// Makes a pending chunk acquired.
    pub(crate) fn set_acquired(&mut self, id: ChunkId) {
        self.pending.remove(&mut self.chunks, id);
        self.chunks[id].state = State::Acquired;
    }

    /// Returns the pending chunks of the smallest size that is at least `units`, the oldest first,
    /// then the newest. With each its index in the pending queue.
    pub(crate) fn pending_of(&self, units: u32) -> impl Iterator<Item = (ChunkId, u32)> {
        let first = self.pending.find(&self.chunks, units);
        let ids = first.into_iter().flat_map(|first| bins::of_this_size(&self.chunks, first));
        ids.map(|id| (id, self.chunks[id].entry))
    }

    /// Calls `act` for all pending chunks of at least `units`, with their indexes in the pending
    /// queue.
    pub(crate) fn visit_pending(&self, units: u32, mut act: impl FnMut(ChunkId, u32)) {
        self.pending.visit(&self.chunks, units..=u32::MAX, |id| {
            act(id, self.chunks[id].entry);
            std::ops::ControlFlow::Continue(())
        });
    }

    /// Returns whether a chunk is free.
    #[inline]
    pub(crate) fn is_free(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Free
    }

    /// Returns whether a chunk is acquired.
    pub(crate) fn is_acquired(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Acquired
    }

    /// Returns the units of a chunk.
    pub(crate) fn units(&self, id: ChunkId) -> u32 {
        self.chunks[id].units
    }

    /// Returns the addresses of a chunk.
    pub(crate) fn addresses(&self, id: ChunkId) -> Range<u64> {
        let Chunk { address, units, .. } = self.chunks[id];
        address..address + u64::from(units) * UNIT
    }

    /// Describes an acquired chunk, as [`acquire`](Self::acquire) does.
    #[inline]
    pub(crate) fn acquired(&self, id: ChunkId) -> AcquiredChunk {
        let Chunk { address, units, since, .. } = self.chunks[id];
        AcquiredChunk { id, address, units, since }
    }

    /// Removes the use slot of an acquired chunk, for its next block, which has this tag. `None` if
    /// the chunk has had no block.
    #[inline]
    pub(crate) fn take_slot(&mut self, id: ChunkId, tag: AllocTag) -> Option<FreeSlot> {
        let kept = self.chunks.kept_mut(id);
        kept.tag = tag;
        kept.slot.take()
    }

    /// Keeps a use slot for the next block of an acquired chunk.
    #[inline]
    pub(crate) fn keep_slot(&mut self, id: ChunkId, slot: FreeSlot) {
        self.chunks.kept_mut(id).slot = Some(slot);
    }

    /// Sets the tag of a chunk's block.
    #[inline(never)]
    pub(crate) fn set_tag(&mut self, id: ChunkId, tag: AllocTag) {
        self.chunks.kept_mut(id).tag = tag;
    }

    /// Returns the tag of a chunk's last block.
    pub(crate) fn tag(&self, id: ChunkId) -> AllocTag {
        self.chunks.kept(id).tag
    }

    /// Removes all use slots of chunks that have no block.
    pub(crate) fn remove_slots(&mut self) -> impl Iterator<Item = FreeSlot> {
        self.merge_recent();
        self.flush();
        self.chunks.remove_slots()
    }

    /// Returns the size of the chunk that [`acquire`](Self::acquire) would cut `units` from.
    pub(crate) fn fit(&mut self, units: u32) -> Option<u32> {
        self.find_merged(units).map(|id| self.chunks[id].units)
    }

    /// Returns the number of units in free chunks, without the shelves.
    pub(crate) fn free_units(&self) -> u64 {
        self.free_units
    }

    /// Returns the number of units that are free: in free chunks, and on the shelves.
    pub(crate) fn cached_units(&self) -> u64 {
        let shelves = self.quick.iter().map(|id| u64::from(self.chunks[id].units)).sum::<u64>();
        self.free_units + shelves
    }

    /// Returns the units of the largest free chunk; 0 if there is none.
    pub(crate) fn largest_free(&self) -> u32 {
        let shelves = self.quick.iter().map(|id| self.chunks[id].units).max().unwrap_or(0);
        self.free.largest(&self.chunks).max(shelves)
    }

    /// Returns the smallest size in the bin of the largest free chunk; 0 if there is none.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.largest_bin().map_or(0, Bin::smallest)
    }

    #[inline]
    fn largest_bin(&self) -> Option<Bin> {
        let recent = self.recent.id().map(|id| Bin::of(self.merged_units(id)));
        self.free.last().max(recent)
    }

    /// Returns whether [`largest`](Self::largest) may return another size than when
    /// [`clear_changed`](Self::clear_changed) was called.
    #[inline(always)]
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Makes [`has_changed`](Self::has_changed) return `true`.
    pub(crate) fn set_changed(&mut self) {
        self.has_changed = true;
    }

    /// Makes [`has_changed`](Self::has_changed) return `false`, until the largest free chunk is of
    /// another bin.
    pub(crate) fn clear_changed(&mut self) {
        self.recent.forget_best();
        self.last_bin = self.largest_bin();
        self.has_changed = false;
    }

    /// Returns a free chunk of the smallest size that is at least `units`. If there is none,
    /// empties the shelves and looks again.
    fn find_merged(&mut self, units: u32) -> Option<ChunkId> {
        match self.find(units) {
            None if self.flush() => self.find(units),
            found => found,
        }
    }

    /// Returns a free chunk of the smallest size that serves `units`.
    #[inline]
    fn find(&self, units: u32) -> Option<ChunkId> {
        let mut size = units;
        loop {
            let first = self.free.find(&self.chunks, size)?;
            // The second one became free last, and leaves the tree as it is.
            let id = self.chunks[first].links.next.unwrap_or(first);
            if self.serves(id, units) {
                return Some(id);
            }
            let mut all = bins::of_this_size(&self.chunks, first);
            if let Some(id) = all.find(|&id| self.serves(id, units)) {
                return Some(id);
            }
            size = self.chunks[first].units.checked_add(1)?;
        }
    }

    /// Removes a free chunk of the smallest size that is at least `units` from its bin.
    #[inline]
    fn remove_free(&mut self, units: u32) -> Option<ChunkId> {
        let id = self.free.remove_best_fit(&mut self.chunks, units)?;
        if self.serves(id, units) {
            return Some(id);
        }
        self.free.insert(&mut self.chunks, id);
        // A dedicated chunk hides no larger one that can be cut.
        let id = self.find(units)?;
        self.free.remove(&mut self.chunks, id);
        Some(id)
    }

    /// Returns whether a free chunk can be cut, or is dedicated and hardly larger than `units`.
    #[inline]
    fn serves(&self, id: ChunkId, units: u32) -> bool {
        let &Chunk { units: size, is_dedicated, .. } = &self.chunks[id];
        !is_dedicated || size - units <= units / 8
    }

    /// Cuts an acquired chunk after `units`. The rest becomes free.
    #[inline]
    fn split(&mut self, id: ChunkId, units: u32) {
        let rest = self.cut(id, units);
        self.list(rest);
    }

    /// Cuts an acquired chunk after `units`. Returns the second part, which is acquired, too.
    #[inline]
    pub(crate) fn cut(&mut self, id: ChunkId, units: u32) -> ChunkId {
        let rest = self.chunks.add_record();
        let chunk = &mut self.chunks[id];
        let &mut Chunk { address, units: whole, after, since, is_dedicated, .. } = chunk;
        chunk.units = units;
        chunk.after = Some(rest);
        self.chunks[rest] = Chunk {
            since,
            before: Some(id),
            after,
            is_dedicated,
            ..Chunk::span(address + u64::from(units) * UNIT, whole - units)
        };
        if let Some(after) = after {
            self.chunks[after].before = Some(rest);
        }
        rest
    }

    /// Joins two acquired neighbours.
    #[inline]
    pub(crate) fn absorb(&mut self, first: ChunkId, second: ChunkId) {
        let &Chunk { units, after, since, .. } = &self.chunks[second];
        let chunk = &mut self.chunks[first];
        chunk.units += units;
        chunk.after = after;
        chunk.since = chunk.since.max(since);
        if let Some(after) = after {
            self.chunks[after].before = Some(first);
        }
        self.chunks.remove(second);
    }

    /// Puts an acquired chunk into the bins of free chunks.
    #[inline(always)]
    fn list(&mut self, id: ChunkId) {
        let chunk = &mut self.chunks[id];
        chunk.state = State::Free;
        self.recent.forget_best();
        self.has_changed |= Some(Bin::of(chunk.units)) > self.last_bin;
        self.free_units += u64::from(chunk.units);
        self.free.insert(&mut self.chunks, id);
    }

    /// Removes a free chunk from its bin, to be acquired.
    #[inline]
    fn unlist(&mut self, id: ChunkId) {
        let chunk = &self.chunks[id];
        self.has_changed |= Some(Bin::of(chunk.units)) >= self.last_bin;
        self.free_units -= u64::from(chunk.units);
        self.free.remove(&mut self.chunks, id);
    }
}

#[cfg(test)]
mod tests;
