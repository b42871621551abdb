//! A heap: address ranges in chunks, and a good fit for any size in a few dozen instructions.
//!
//! Two-level segregated fit, after M. Masmano, I. Ripoll, A. Crespo and J. Real, "TLSF: a new
//! dynamic memory allocator for real-time systems" (ECRTS 2004). Device memory cannot hold its own
//! lists, so chunks are records in a table, and a chunk is named by its index there.
//!
//! Every free chunk carries a number, when it became free, which its owner understands; chunks
//! that are put together keep the latest. Nothing else here knows of streams.

mod bins;
mod chunk;
mod holes;
mod quick;

use bins::{Bin, Bins};
pub(crate) use chunk::ChunkId;
use chunk::{Chunk, Chunks, State};
pub(crate) use holes::Window;
use quick::Quick;

/// Bytes of a unit. Sizes are in units, addresses in bytes.
pub(crate) const UNIT: u64 = 256;

/// Segments from upstream, carved into chunks.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    chunks: Chunks,
    bins: Bins,
    quick: Quick,
    free_units: u64,
}

/// The smallest size that is listed with this one.
#[inline]
pub(crate) fn smallest_of_its_list(units: u32) -> u32 {
    Bin::of(units).smallest()
}

/// A chunk that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) id: ChunkId,
    pub(crate) address: u64,
    pub(crate) units: u32,
    /// When it became free.
    pub(crate) since: u64,
}

/// How many chunks of the request's own list are tried before one of a larger list is split.
const TRIES: usize = 4;

/// A remainder smaller than this share of the request (a power of two) stays with it: it would
/// serve nobody.
const WORTH_SPLITTING: u32 = 7;

impl Heap {
    /// Adds a segment, which becomes a free chunk. Answers that: whatever becomes of the segment,
    /// its first chunk keeps this name.
    pub(crate) fn add_segment(&mut self, address: u64, units: u32, since: u64) -> ChunkId {
        let id = self.chunks.add(Chunk::segment(address, units));
        self.merge(id, since)
    }

    /// Adds a segment that serves one block at a time. It is not free.
    pub(crate) fn add_apart(&mut self, address: u64, units: u32) -> ChunkId {
        self.chunks.add(Chunk { state: State::Apart, ..Chunk::segment(address, units) })
    }

    /// Takes out such a segment.
    pub(crate) fn remove_apart(&mut self, id: ChunkId) {
        self.chunks.remove(id);
    }

    /// Whether it is such a segment.
    #[inline]
    pub(crate) fn is_apart(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Apart
    }

    /// Notes when a chunk became free.
    pub(crate) fn set_since(&mut self, id: ChunkId, since: u64) {
        self.chunks[id].since = since;
    }

    /// Takes out the segment that begins with this chunk, if it is free as a whole.
    pub(crate) fn remove_segment(&mut self, id: ChunkId) -> bool {
        let chunk = self.chunks[id];
        let is_whole = chunk.state == State::Free && chunk.is_whole();
        if is_whole {
            self.unlist(id);
            self.chunks.remove(id);
        }
        is_whole
    }

    /// Takes a chunk of exactly this many units, if one is kept.
    #[inline(always)]
    pub(crate) fn take_kept(&mut self, units: u32) -> Option<Taken> {
        let id = self.quick.pop(units)?;
        Some(self.taken(id))
    }

    /// Takes a chunk of at least this many units: the smallest that is found soon, without what
    /// is too much of it.
    pub(crate) fn take(&mut self, units: u32) -> Option<Taken> {
        if let Some(id) = self.quick.pop(units) {
            return Some(self.taken(id));
        }
        match self.find(units) {
            Some(id) => Some(self.take_from(id, units)),
            None if self.flush() => self.find(units).map(|id| self.take_from(id, units)),
            None => None,
        }
    }

    /// Makes a taken chunk free, and keeps it for the next request of its size; it is put together
    /// with its neighbours when there is no other memory. Answers `false`, and does nothing, where
    /// as many of that size are kept, or it is a segment of its own.
    #[inline(always)]
    pub(crate) fn keep(&mut self, id: ChunkId, since: u64) -> bool {
        let chunk = &mut self.chunks[id];
        let is_kept = chunk.state == State::Taken && self.quick.push(chunk.units, id);
        if is_kept {
            chunk.since = since;
        }
        is_kept
    }

    /// Puts all that is kept for requests of its size together with its neighbours; answers
    /// whether there was any.
    pub(crate) fn flush(&mut self) -> bool {
        let mut any = false;
        while let Some(id) = self.quick.pop_any() {
            self.merge(id, self.chunks[id].since);
            any = true;
        }
        any
    }

    /// Takes so many units, or hardly more, from the start of a free chunk that has them.
    #[inline]
    pub(crate) fn take_from(&mut self, id: ChunkId, units: u32) -> Taken {
        self.unlist(id);
        let surplus = self.chunks[id].units - units;
        if surplus > units >> WORTH_SPLITTING {
            self.split(id, units);
        }
        let chunk = &mut self.chunks[id];
        chunk.state = State::Taken;
        let &mut Chunk { address, units, since, .. } = chunk;
        Taken { id, address, units, since }
    }

    /// Makes a taken chunk free, together with its free neighbours. Answers the chunk that it is
    /// then.
    #[inline]
    pub(crate) fn merge(&mut self, id: ChunkId, since: u64) -> ChunkId {
        self.chunks[id].since = since;
        let mut whole = id;
        if let Some(before) = self.chunks[id].before.filter(|&id| self.is_free(id)) {
            self.unlist(before);
            self.absorb(before, id);
            whole = before;
        }
        if let Some(after) = self.chunks[whole].after.filter(|&id| self.is_free(id)) {
            self.unlist(after);
            self.absorb(whole, after);
        }
        self.list(whole);
        whole
    }

    /// Whether this chunk is free.
    #[inline]
    pub(crate) fn is_free(&self, id: ChunkId) -> bool {
        self.chunks[id].state == State::Free
    }

    /// The address and the units of a chunk.
    pub(crate) fn range(&self, id: ChunkId) -> (u64, u32) {
        let Chunk { address, units, .. } = self.chunks[id];
        (address, units)
    }

    /// A chunk that is taken already, as [`take`](Self::take) answers it.
    #[inline]
    pub(crate) fn taken(&self, id: ChunkId) -> Taken {
        let Chunk { address, units, since, .. } = self.chunks[id];
        Taken { id, address, units, since }
    }

    /// What is kept for requests of its size.
    pub(crate) fn kept(&self) -> impl Iterator<Item = ChunkId> {
        self.quick.iter()
    }

    /// How many units the chunk has that [`take`](Self::take) would take so many from.
    pub(crate) fn fit(&mut self, units: u32) -> Option<u32> {
        let found = match self.find(units) {
            None if self.flush() => self.find(units),
            found => found,
        };
        found.map(|id| self.chunks[id].units)
    }

    /// Units in free chunks.
    pub(crate) fn free_units(&self) -> u64 {
        self.free_units
    }

    /// There is a free chunk of so many units, and hardly a larger one; 0 if there is none.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.bins.last().map_or(0, Bin::smallest)
    }

    /// Whether [`largest`](Self::largest) may be another one than when this was last asked.
    #[inline]
    pub(crate) fn take_changed(&mut self) -> bool {
        self.bins.take_changed()
    }

    /// All chunks, in no order: name, address, units, whether it is free. What is kept for requests
    /// of its size is not. Addresses without memory are left out.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (ChunkId, u64, u32, bool)> {
        self.chunks
            .iter()
            .filter(|(_, chunk)| chunk.state != State::Hole)
            .map(|(id, chunk)| (id, chunk.address, chunk.units, chunk.state == State::Free))
    }

    #[inline]
    fn find(&self, units: u32) -> Option<ChunkId> {
        let bin = Bin::of(units);
        let mut candidate = self.bins.head(bin);
        for _ in 0..TRIES {
            let Some(id) = candidate else { break };
            let chunk = &self.chunks[id];
            if chunk.units >= units {
                return Some(id);
            }
            candidate = chunk.next;
        }
        match self.bins.next_after(bin) {
            Some(larger) => self.bins.head(larger),
            // The last resort: the rest of the request's own list.
            None => self.find_in_rest(candidate, units),
        }
    }

    #[cold]
    fn find_in_rest(&self, mut candidate: Option<ChunkId>, units: u32) -> Option<ChunkId> {
        while let Some(id) = candidate {
            if self.chunks[id].units >= units {
                break;
            }
            candidate = self.chunks[id].next;
        }
        candidate
    }

    /// Cuts a chunk, which is in no list, after so many units. The rest becomes free.
    #[inline]
    fn split(&mut self, id: ChunkId, units: u32) {
        let rest = self.cut(id, units);
        self.list(rest);
    }

    /// Cuts a chunk, which is in no list, after so many units; both parts are in the state that it
    /// was in. Answers the second.
    #[inline]
    pub(crate) fn cut(&mut self, id: ChunkId, units: u32) -> ChunkId {
        let whole = self.chunks[id];
        let rest = Chunk {
            address: whole.address + u64::from(units) * UNIT,
            units: whole.units - units,
            before: Some(id),
            ..whole
        };
        let rest = self.chunks.add(rest);
        if let Some(after) = whole.after {
            self.chunks[after].before = Some(rest);
        }
        let chunk = &mut self.chunks[id];
        (chunk.units, chunk.after) = (units, Some(rest));
        rest
    }

    /// Makes one of two neighbours, which are in no list.
    #[inline]
    pub(crate) fn absorb(&mut self, first: ChunkId, second: ChunkId) {
        let Chunk { units, after, since, .. } = self.chunks[second];
        let chunk = &mut self.chunks[first];
        chunk.units += units;
        chunk.after = after;
        chunk.since = chunk.since.max(since);
        if let Some(after) = after {
            self.chunks[after].before = Some(first);
        }
        self.chunks.remove(second);
    }

    #[inline]
    fn list(&mut self, id: ChunkId) {
        let bin = Bin::of(self.chunks[id].units);
        let head = self.bins.head(bin);
        if let Some(head) = head {
            self.chunks[head].previous = Some(id);
        }
        self.bins.set_head(bin, Some(id));
        let chunk = &mut self.chunks[id];
        (chunk.previous, chunk.next, chunk.state) = (None, head, State::Free);
        self.free_units += u64::from(chunk.units);
    }

    #[inline]
    fn unlist(&mut self, id: ChunkId) {
        let Chunk { previous, next, units, .. } = self.chunks[id];
        if let Some(next) = next {
            self.chunks[next].previous = previous;
        }
        match previous {
            Some(previous) => self.chunks[previous].next = next,
            None => self.bins.set_head(Bin::of(units), next),
        }
        self.free_units -= u64::from(units);
    }
}

#[cfg(test)]
mod tests;
