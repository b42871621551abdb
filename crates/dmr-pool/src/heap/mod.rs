//! A heap: address ranges in chunks, and the best fit for any size in a few dozen instructions.
//!
//! Two-level segregated fit, after M. Masmano, I. Ripoll, A. Crespo and J. Real, "TLSF: a new
//! dynamic memory allocator for real-time systems" (ECRTS 2004), with a tree of sizes in each bin.
//! Device memory cannot hold its own lists, so chunks are records in a table, and a chunk is named
//! by its index there. No function looks at more than a few hundred chunks, but for those that
//! look for pages and windows: these look at chunks that have whole pages, and at holes.
//!
//! Every free chunk has a number, when it became free, which its owner understands; merged chunks
//! keep the latest. Nothing else here depends on streams.

mod bins;
mod chunk;
mod holes;
mod quick;
mod window;

use bins::{Bin, Bins};
pub(crate) use chunk::ChunkId;
use chunk::{Chunk, Chunks, State};
use quick::Quick;
pub(crate) use window::Window;

use crate::stats::RegionState;

/// Bytes of a unit. Sizes are in units, addresses in bytes.
pub(crate) const UNIT: u64 = 256;

/// Spans, cut into chunks.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    chunks: Chunks,
    /// Free chunks.
    free: Bins,
    /// Pending chunks.
    pending: Bins,
    quick: Quick,
    /// An acquired chunk that is to be merged before anything but a request of its size comes:
    /// programs that free a large chunk often allocate one of that size next.
    kept: Option<ChunkId>,
    /// The first of the holes, which are a list.
    holes: Option<ChunkId>,
    free_units: u64,
    /// The latest number that a free or pending chunk has had.
    newest: u64,
    /// The bin of the largest free chunk when [`clear_changed`](Self::clear_changed) was called.
    last_bin: Option<Bin>,
    /// That bin may be another now.
    has_changed: bool,
}

/// Returns the smallest size that has a bin with this one.
#[inline]
pub(crate) fn smallest_of_bin(units: u32) -> u32 {
    Bin::of(units).smallest()
}

/// An acquired chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) id: ChunkId,
    pub(crate) address: u64,
    pub(crate) units: u32,
    /// When it became free.
    pub(crate) since: u64,
}

/// What a report says of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkReport {
    pub(crate) chunk: ChunkId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) state: RegionState,
}

/// A remainder smaller than this share of the request (a power of two) stays with it: it would
/// hardly fit anything.
const WORTH_SPLITTING: u32 = 7;

impl Heap {
    /// Adds a span, which becomes a free chunk, and returns that. The first chunk of a span keeps
    /// its id, however the span is cut. A dedicated one is never cut.
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

    /// Acquires a chunk of exactly this size from its shelf.
    #[inline(always)]
    pub(crate) fn take_shelved(&mut self, units: u32) -> Option<Taken> {
        let id = self.quick.pop(units)?;
        Some(self.taken(id))
    }

    /// Acquires a chunk of at least this size, of which none is on a shelf: the smallest, without its
    /// surplus if that is worth splitting off.
    #[inline(never)]
    fn take_merged(&mut self, units: u32) -> Option<Taken> {
        if let Some(id) = self.kept {
            if self.is_best(id, units) {
                self.kept = None;
                return Some(self.taken(id));
            }
            self.merge_kept();
        }
        let id = match self.remove_free(units) {
            None if self.flush() => self.remove_free(units)?,
            found => found?,
        };
        let whole = self.chunks[id].units;
        self.free_units -= u64::from(whole);
        self.has_changed |= Some(Bin::of(whole)) >= self.last_bin;
        Some(self.without_surplus(id, units))
    }

    /// Whether [`take_merged`](Self::take_merged) would cut `units` from where the kept chunk begins,
    /// if that were merged, and no surplus of it.
    #[inline]
    fn is_best(&self, kept: ChunkId, units: u32) -> bool {
        let &Chunk { units: size, before, after, .. } = &self.chunks[kept];
        if size != units || before.is_some_and(|before| self.is_free(before)) {
            return false;
        }
        let Some(after) = after.filter(|&after| self.is_free(after)) else { return true };
        let merged = size + self.chunks[after].units;
        let other = self.free.find(&self.chunks, units);
        other.is_none_or(|other| other == after || self.chunks[other].units >= merged)
    }

    /// Acquires a chunk of at least this size.
    #[inline(always)]
    pub(crate) fn take(&mut self, units: u32) -> Option<Taken> {
        self.take_shelved(units).or_else(|| self.take_merged(units))
    }

    /// Frees an acquired chunk, and keeps it for the next request of its size. Before any other
    /// function than [`take`](Self::take) looks at the free chunks,
    /// [`merge_kept`](Self::merge_kept) is to be called.
    #[inline]
    pub(crate) fn keep(&mut self, id: ChunkId, since: u64) {
        self.merge_kept();
        let chunk = &mut self.chunks[id];
        chunk.since = since;
        self.has_changed |= Some(Bin::of(self.merged_units(id))) > self.last_bin;
        self.kept = Some(id);
    }

    /// Returns the units that a chunk has once it is merged with its free neighbours.
    #[inline]
    fn merged_units(&self, id: ChunkId) -> u32 {
        let &Chunk { units, before, after, .. } = &self.chunks[id];
        let free = |id: Option<ChunkId>| match id.map(|id| &self.chunks[id]) {
            Some(chunk) if chunk.state == State::Free => chunk.units,
            _ => 0,
        };
        units + free(before) + free(after)
    }

    /// Merges the kept chunk with its neighbours.
    #[inline(always)]
    pub(crate) fn merge_kept(&mut self) {
        if let Some(id) = self.kept.take() {
            self.merge(id, self.chunks[id].since);
        }
    }

    /// Frees an acquired chunk and puts it onto the shelf of its size; it is merged with its
    /// neighbours when there is no other memory. Returns `false`, and does nothing, where that
    /// shelf is full, or the chunk is too large.
    #[inline(always)]
    pub(crate) fn shelve(&mut self, id: ChunkId, since: u64) -> bool {
        let chunk = &mut self.chunks[id];
        let is_shelved = self.quick.push(chunk.units, id);
        if is_shelved {
            chunk.since = since;
        }
        is_shelved
    }

    /// Empties the shelves: merges their chunks with their neighbours. Returns whether there were
    /// any.
    pub(crate) fn flush(&mut self) -> bool {
        let (mut any, mut shelf) = (false, 0);
        while let Some(id) = self.quick.pop_any(&mut shelf) {
            self.merge(id, self.chunks[id].since);
            any = true;
        }
        any
    }

    /// Acquires a free chunk that has this size, without its surplus if that is worth splitting
    /// off.
    #[inline]
    pub(crate) fn take_from(&mut self, id: ChunkId, units: u32) -> Taken {
        self.unlist(id);
        self.without_surplus(id, units)
    }

    /// Acquires a chunk that was taken out of its bin, without its surplus if that is worth splitting
    /// off.
    #[inline(always)]
    fn without_surplus(&mut self, id: ChunkId, units: u32) -> Taken {
        let chunk = &mut self.chunks[id];
        chunk.state = State::Acquired;
        let &mut Chunk { address, units: whole, since, is_dedicated, .. } = chunk;
        if is_dedicated || whole - units <= units >> WORTH_SPLITTING {
            return Taken { id, address, units: whole, since };
        }
        self.split(id, units);
        Taken { id, address, units, since }
    }

    /// Frees an acquired chunk and merges it with its free neighbours. Returns the merged chunk.
    #[inline]
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
        let (units, more) = (self.chunks[before].units, self.chunks[id].units);
        if self.free.stays(&self.chunks, before, units + more) {
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
        (chunk.since, chunk.entry, chunk.state) = (since, entry, State::Pending);
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

    /// Whether this chunk is free.
    #[inline]
    pub(crate) fn is_free(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Free
    }

    /// Whether this chunk is acquired.
    pub(crate) fn is_acquired(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Acquired
    }

    /// Returns the address and the units of a chunk.
    pub(crate) fn range(&self, id: ChunkId) -> (u64, u32) {
        let Chunk { address, units, .. } = self.chunks[id];
        (address, units)
    }

    /// Describes an acquired chunk, as [`take`](Self::take) does.
    #[inline]
    pub(crate) fn taken(&self, id: ChunkId) -> Taken {
        let Chunk { address, units, since, .. } = self.chunks[id];
        Taken { id, address, units, since }
    }

    /// Returns the units of the chunk that [`take`](Self::take) would cut `units` from.
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

    /// Returns a size that has a bin with that of the largest free chunk; 0 if there is none.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.largest_bin().map_or(0, Bin::smallest)
    }

    #[inline]
    fn largest_bin(&self) -> Option<Bin> {
        let kept = self.kept.map(|id| Bin::of(self.merged_units(id)));
        self.free.last().max(kept)
    }

    /// Whether [`largest`](Self::largest) may return another size than when
    /// [`clear_changed`](Self::clear_changed) was called.
    #[inline(always)]
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Makes [`has_changed`](Self::has_changed) return `true`.
    pub(crate) fn set_changed(&mut self) {
        self.has_changed = true;
    }

    pub(crate) fn clear_changed(&mut self) {
        self.last_bin = self.largest_bin();
        self.has_changed = false;
    }

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

    /// Returns a free chunk of the smallest size that is at least `units`. If there is none, empties
    /// the shelves and looks again.
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
        let id = self.free.take(&mut self.chunks, units)?;
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
        (chunk.units, chunk.after) = (units, Some(rest));
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
    #[inline]
    fn list(&mut self, id: ChunkId) {
        let chunk = &mut self.chunks[id];
        chunk.state = State::Free;
        self.has_changed |= Some(Bin::of(chunk.units)) > self.last_bin;
        self.free_units += u64::from(chunk.units);
        self.free.insert(&mut self.chunks, id);
    }

    /// Takes a free chunk out of its bins, to be acquired.
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
