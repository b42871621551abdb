//! Segments of pinned host memory, cut into chunks. Makes no driver call and takes no lock.
//!
//! A chunk that is freed is merged with its free neighbours. Records are in a table of their own:
//! the memory may be slow to read for the host, and the device may write it.

use crate::bins::{Bins, Chunk, NONE, State, UNIT};

/// Larger requests have a segment of their own, which is not cut.
const LARGEST_CUT: u32 = units(1 << 20);
/// The size of the first segments that are cut.
const SMALLEST_SEGMENT: u32 = units(2 << 20);
/// The size of the largest segments that are cut.
const LARGEST_SEGMENT: u32 = units(32 << 20);

const fn units(bytes: usize) -> u32 {
    (bytes / UNIT) as u32
}

/// All segments of one kind.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    chunks: Vec<Chunk>,
    /// Records that are not in use.
    unused: Vec<u32>,
    /// Free chunks of segments that are cut.
    cut: Bins,
    /// Free segments that are not cut.
    uncut: Bins,
    /// Units of the segments that are cut.
    cut_units: u64,
    /// Units of all segments.
    reserved: u64,
}

/// An allocated chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocatedChunk {
    pub(crate) id: u32,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// Memory from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) size: SegmentSize,
}

/// The size of a segment, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSize {
    units: u32,
    /// It is cut into chunks.
    is_cut: bool,
}

impl SegmentSize {
    pub(crate) fn bytes(self) -> usize {
        self.units as usize * UNIT
    }
}

impl Heap {
    /// Returns the bytes of all segments.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved * UNIT as u64
    }

    /// Allocates a chunk of `units`, a size that [`round_up`](crate::bins::round_up) returned. A
    /// segment that is not cut serves requests of at least half its size.
    pub(crate) fn allocate(&mut self, units: u32) -> Option<AllocatedChunk> {
        if units > LARGEST_CUT {
            let fits = |id: &u32| self.chunks[*id as usize].units / 2 <= units;
            let id = self.uncut.find(units).filter(fits)?;
            self.uncut.remove(&mut self.chunks, id);
            return Some(self.allocated(id));
        }
        let id = self.cut.find(units)?;
        self.cut.remove(&mut self.chunks, id);
        self.split(id, units);
        Some(self.allocated(id))
    }

    /// Returns the size of the segment to add for a request that found no chunk: as large as all
    /// segments that are cut, up to a maximum, so that there are few; with `is_least`, the smallest
    /// that serves the request.
    pub(crate) fn segment_for(&self, units: u32, is_least: bool) -> SegmentSize {
        if units > LARGEST_CUT {
            return SegmentSize { units, is_cut: false };
        }
        let doubled = u32::try_from(self.cut_units).unwrap_or(LARGEST_SEGMENT);
        let most = if is_least { SMALLEST_SEGMENT } else { LARGEST_SEGMENT };
        SegmentSize { units: doubled.clamp(SMALLEST_SEGMENT, most), is_cut: true }
    }

    /// Adds a segment, which is free as a whole.
    pub(crate) fn add(&mut self, segment: Segment) {
        let Segment { address, size: SegmentSize { units, is_cut } } = segment;
        let id = self.record(Chunk {
            address,
            units,
            before: NONE,
            after: NONE,
            previous: NONE,
            next: NONE,
            state: State::Allocated,
            is_cut,
        });
        self.reserved += u64::from(units);
        if is_cut {
            self.cut_units += u64::from(units);
        }
        self.insert_free(id);
    }

    /// Frees a chunk, and merges it with its free neighbours.
    pub(crate) fn free(&mut self, id: u32) {
        let Chunk { before, after, .. } = self.chunks[id as usize];
        if self.is_free(after) {
            self.cut.remove(&mut self.chunks, after);
            self.absorb(id, after);
        }
        if self.is_free(before) {
            self.cut.remove(&mut self.chunks, before);
            self.absorb(before, id);
            return self.insert_free(before);
        }
        self.insert_free(id);
    }

    /// Removes segments that are free as a whole while more than `keep` bytes are reserved, the
    /// largest first.
    pub(crate) fn remove_free(&mut self, keep: u64) -> Vec<Segment> {
        let ids = 0..self.chunks.len() as u32;
        let is_whole = |id: &u32| {
            let Chunk { before, after, state, .. } = self.chunks[*id as usize];
            (before, after, state) == (NONE, NONE, State::Free)
        };
        let mut whole: Vec<u32> = ids.filter(is_whole).collect();
        whole.sort_unstable_by_key(|id| std::cmp::Reverse(self.chunks[*id as usize].units));
        let mut removed = Vec::new();
        for id in whole {
            if self.reserved() <= keep {
                break;
            }
            let Chunk { address, units, is_cut, .. } = self.chunks[id as usize];
            if is_cut {
                self.cut.remove(&mut self.chunks, id);
                self.cut_units -= u64::from(units);
            } else {
                self.uncut.remove(&mut self.chunks, id);
            }
            self.reserved -= u64::from(units);
            self.release_record(id);
            removed.push(Segment { address, size: SegmentSize { units, is_cut } });
        }
        removed
    }

    /// Returns every segment, with the ids of its allocated chunks.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (Segment, Vec<u32>)> {
        let is_first = |chunk: &Chunk| chunk.state != State::Unused && chunk.before == NONE;
        let ids = 0..self.chunks.len() as u32;
        ids.filter(move |&id| is_first(&self.chunks[id as usize])).map(|first| {
            let next = |&id: &u32| Some(self.chunks[id as usize].after).filter(|id| *id != NONE);
            let Chunk { address, is_cut, .. } = self.chunks[first as usize];
            let mut units = 0;
            let mut allocated = Vec::new();
            for id in std::iter::successors(Some(first), next) {
                let chunk = &self.chunks[id as usize];
                units += chunk.units;
                allocated.extend((chunk.state == State::Allocated).then_some(id));
            }
            (Segment { address, size: SegmentSize { units, is_cut } }, allocated)
        })
    }

    fn allocated(&self, id: u32) -> AllocatedChunk {
        let Chunk { address, units, .. } = self.chunks[id as usize];
        AllocatedChunk { id, address, bytes: units as usize * UNIT }
    }

    /// Splits an allocated chunk behind its first `units`; the rest is free.
    fn split(&mut self, id: u32, units: u32) {
        let chunk = self.chunks[id as usize];
        if chunk.units == units {
            return;
        }
        let address = chunk.address + u64::from(units) * UNIT as u64;
        let rest = Chunk { address, units: chunk.units - units, before: id, ..chunk };
        let rest = self.record(rest);
        if chunk.after != NONE {
            self.chunks[chunk.after as usize].before = rest;
        }
        let split = &mut self.chunks[id as usize];
        split.units = units;
        split.after = rest;
        self.insert_free(rest);
    }

    /// Adds the chunk `after` to the one before it. Neither is in a list.
    fn absorb(&mut self, before: u32, after: u32) {
        let Chunk { units, after: end, .. } = self.chunks[after as usize];
        self.chunks[before as usize].units += units;
        self.chunks[before as usize].after = end;
        if end != NONE {
            self.chunks[end as usize].before = before;
        }
        self.release_record(after);
    }

    fn is_free(&self, id: u32) -> bool {
        self.chunks.get(id as usize).is_some_and(|chunk| chunk.state == State::Free)
    }

    fn insert_free(&mut self, id: u32) {
        let is_cut = self.chunks[id as usize].is_cut;
        let bins = if is_cut { &mut self.cut } else { &mut self.uncut };
        bins.insert(&mut self.chunks, id);
    }

    fn record(&mut self, chunk: Chunk) -> u32 {
        if let Some(id) = self.unused.pop() {
            self.chunks[id as usize] = chunk;
            return id;
        }
        self.chunks.push(chunk);
        self.chunks.len() as u32 - 1
    }

    fn release_record(&mut self, id: u32) {
        self.chunks[id as usize].state = State::Unused;
        self.unused.push(id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bins::round_up;

    /// Random numbers, the same in each run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }
    }

    /// A heap and the memory that it was given, with every allocated range.
    #[derive(Default)]
    struct Model {
        heap: Heap,
        segments: BTreeMap<u64, u64>,
        allocated: BTreeMap<u64, AllocatedChunk>,
        added: usize,
    }

    impl Model {
        fn allocate(&mut self, bytes: usize) -> AllocatedChunk {
            let units = round_up(bytes).unwrap();
            let chunk = self.heap.allocate(units).unwrap_or_else(|| {
                let size = self.heap.segment_for(units, self.added.is_multiple_of(3));
                self.added += 1;
                let address = self.added as u64 * (1 << 40);
                self.heap.add(Segment { address, size });
                self.segments.insert(address, size.bytes() as u64);
                self.heap.allocate(units).unwrap()
            });
            assert!(chunk.bytes >= bytes);
            let end = chunk.address + chunk.bytes as u64;
            let (start, len) = self.segments.range(..=chunk.address).next_back().unwrap();
            assert!(end <= start + len, "{chunk:?} is inside of a segment");
            let before = self.allocated.range(..end).next_back();
            let is_apart = before.is_none_or(|(at, it)| at + it.bytes as u64 <= chunk.address);
            assert!(is_apart, "{chunk:?} {before:?}");
            self.allocated.insert(chunk.address, chunk);
            chunk
        }

        fn free(&mut self, chunk: AllocatedChunk) {
            self.allocated.remove(&chunk.address).unwrap();
            self.heap.free(chunk.id);
        }

        fn trim(&mut self, keep: u64) {
            for segment in self.heap.remove_free(keep) {
                let bytes = self.segments.remove(&segment.address).unwrap();
                assert_eq!(bytes, segment.size.bytes() as u64);
            }
        }

        fn check(&self) {
            assert_eq!(self.heap.reserved(), self.segments.values().sum::<u64>());
            let mut ids: Vec<u32> = self.heap.segments().flat_map(|(_, ids)| ids).collect();
            let mut expected: Vec<u32> = self.allocated.values().map(|chunk| chunk.id).collect();
            ids.sort_unstable();
            expected.sort_unstable();
            assert_eq!(ids, expected);
            for (segment, _) in self.heap.segments() {
                assert_eq!(self.segments[&segment.address], segment.size.bytes() as u64);
            }
        }
    }

    #[test]
    fn chunks_never_overlap_and_merge_back_into_their_segments() {
        let mut model = Model::default();
        let mut random = Random(7);
        let sizes = [256, 300, 4096, 10_000, 70_000, 1 << 20, (1 << 20) + 1, 5 << 20];
        for step in 0..20_000 {
            if model.allocated.len() < 200 && random.below(5) > 1 {
                let most = sizes[random.below(sizes.len())];
                model.allocate(1 + random.below(most));
            } else if let Some(&chunk) = model.allocated.values().nth(random.below(200)) {
                model.free(chunk);
            }
            if step % 1000 == 0 {
                model.trim((random.below(40) as u64) << 20);
                model.check();
            }
        }
        let all: Vec<AllocatedChunk> = model.allocated.values().copied().collect();
        all.into_iter().for_each(|chunk| model.free(chunk));
        model.check();
        model.trim(0);
        assert_eq!((model.heap.reserved(), model.segments.len()), (0, 0));
        assert_eq!(model.heap.unused.len(), model.heap.chunks.len());
    }

    #[test]
    fn the_next_request_of_a_size_gets_the_chunk_that_was_freed_between_others() {
        for bytes in [100, 5000, 33_000, 1 << 20, 3 << 20, (9 << 20) + 1] {
            let mut model = Model::default();
            let chunks = [(); 9].map(|()| model.allocate(bytes));
            // Uses up what is left of the segments, but for pieces that are too small.
            while model.heap.allocate(round_up(bytes).unwrap()).is_some() {}
            model.free(chunks[4]);
            let before = model.added;
            model.allocate(bytes);
            assert_eq!(model.added, before, "{bytes}");
        }
    }

    #[test]
    fn a_large_segment_serves_requests_of_at_least_half_its_size() {
        let mut model = Model::default();
        let large = model.allocate(16 << 20);
        model.free(large);
        for (bytes, is_served) in [(17 << 20, false), (7 << 20, false), (8 << 20, true)] {
            let found = model.heap.allocate(round_up(bytes).unwrap());
            assert_eq!(found.is_some(), is_served, "{bytes}");
        }
    }
}
