//! The places of blocks on the heap map: addresses without the gaps between reserved ranges.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{EventKind, Model, NONE};

/// Gaps between ranges of at least these bytes are left out of the map.
const GAP: u64 = 2 << 20;

/// The alignment of blocks that are placed because the file has no addresses.
const ALIGNMENT: u64 = 512;

/// A range of addresses that the map shows as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The position of the first byte on the map.
    pub position: u64,
}

/// The places of all blocks.
#[derive(Debug, Default)]
pub struct Layout {
    /// The segments in the order of their addresses; none if the file has no addresses.
    pub segments: Vec<Segment>,
    /// For each block the position of its first byte.
    pub positions: Vec<u64>,
    /// The size of the map.
    pub bytes: u64,
}

/// Places the blocks: by their addresses, or, if the file has none, each into the smallest gap
/// that has room for it.
#[must_use]
pub fn layout(model: &Model) -> Layout {
    if !model.source.has_addresses {
        return best_fit(model);
    }
    let segments = segments(model);
    let positions = model.blocks.address.iter().map(|address| position(&segments, *address));
    let positions = positions.collect();
    let bytes = segments.last().map_or(0, |last| last.position.saturating_add(last.bytes));
    Layout { segments, positions, bytes }
}

/// Returns the position of an address on the map.
#[must_use]
pub fn position(segments: &[Segment], address: u64) -> u64 {
    let after = segments.partition_point(|segment| segment.address <= address);
    match after.checked_sub(1).and_then(|at| segments.get(at)) {
        Some(segment) => {
            segment.position.saturating_add((address - segment.address).min(segment.bytes))
        }
        None => 0,
    }
}

/// Returns the ranges that blocks and spans cover, with small gaps between them.
#[must_use]
pub fn segments(model: &Model) -> Vec<Segment> {
    let blocks = &model.blocks;
    let spans = model.spans.iter();
    let spans = spans.map(|span| [span.address, span.address.saturating_add(span.bytes)]);
    let mut ranges: Vec<[u64; 2]> = spans.collect();
    let mut covered = RangeSet::default();
    // Most blocks are where an earlier one was: the set stays small, and so does the sorting.
    for block in 0..blocks.len() {
        covered.insert([blocks.address[block], blocks.end(block)], &mut ranges);
    }
    ranges.extend(covered.last);
    ranges.sort_unstable();
    let mut segments: Vec<Segment> = Vec::new();
    for [start, end] in ranges {
        match segments.last_mut() {
            Some(last) if start.saturating_sub(last.address + last.bytes) < GAP => {
                last.bytes = last.bytes.max(end - last.address);
            }
            _ => segments.push(Segment { address: start, bytes: end - start, position: 0 }),
        }
    }
    let mut position = 0_u64;
    for segment in &mut segments {
        segment.position = position;
        position = position.saturating_add(segment.bytes);
    }
    segments
}

/// Collects ranges, and joins each with the one before where they touch.
#[derive(Default)]
struct RangeSet {
    last: Option<[u64; 2]>,
}

impl RangeSet {
    fn insert(&mut self, range: [u64; 2], to: &mut Vec<[u64; 2]>) {
        const COMPACT: usize = 1 << 20;
        match &mut self.last {
            Some(last) if range[0] <= last[1] && range[1] >= last[0] => {
                last[0] = last[0].min(range[0]);
                last[1] = last[1].max(range[1]);
            }
            last => to.extend(last.replace(range)),
        }
        if to.len() >= COMPACT {
            compact(to);
        }
    }
}

/// Joins the ranges that touch, or nearly do.
fn compact(ranges: &mut Vec<[u64; 2]>) {
    ranges.sort_unstable();
    let mut kept: Vec<[u64; 2]> = Vec::new();
    for range in ranges.drain(..) {
        match kept.last_mut() {
            Some(last) if range[0].saturating_sub(last[1]) < GAP => last[1] = last[1].max(range[1]),
            _ => kept.push(range),
        }
    }
    *ranges = kept;
}

/// Places each block into the smallest gap that has room for it.
fn best_fit(model: &Model) -> Layout {
    let mut layout = Layout { positions: vec![0; model.blocks.len()], ..Layout::default() };
    let mut gaps = Gaps::default();
    let size = |block: usize| {
        let bytes = model.blocks.bytes[block].max(1);
        bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
    };
    let before = (0..model.blocks.len()).filter(|block| model.blocks.allocated[*block] == NONE);
    for block in before {
        layout.positions[block] = gaps.allocate(size(block));
    }
    for event in 0..model.events.len() {
        let block = model.events.subject[event] as usize;
        match model.events.kind[event] {
            EventKind::Allocate => layout.positions[block] = gaps.allocate(size(block)),
            EventKind::Free | EventKind::Ready => gaps.free(layout.positions[block], size(block)),
            _ => {}
        }
    }
    layout.bytes = gaps.top;
    layout
}

/// The free gaps below the highest block.
#[derive(Default)]
struct Gaps {
    by_size: BTreeSet<(u64, u64)>,
    by_place: BTreeMap<u64, u64>,
    top: u64,
}

impl Gaps {
    fn allocate(&mut self, bytes: u64) -> u64 {
        let found = self.by_size.range((bytes, 0)..).next().copied();
        let Some((size, place)) = found else {
            let place = self.top;
            self.top = self.top.saturating_add(bytes);
            return place;
        };
        self.remove(place, size);
        if size > bytes {
            self.insert(place.saturating_add(bytes), size - bytes);
        }
        place
    }

    fn free(&mut self, mut place: u64, mut bytes: u64) {
        if let Some((&before, &size)) = self.by_place.range(..place).next_back()
            && before.saturating_add(size) == place
        {
            self.remove(before, size);
            place = before;
            bytes = bytes.saturating_add(size);
        }
        let after = place.saturating_add(bytes);
        if let Some(&size) = self.by_place.get(&after) {
            self.remove(after, size);
            bytes = bytes.saturating_add(size);
        }
        self.insert(place, bytes);
    }

    fn insert(&mut self, place: u64, size: u64) {
        self.by_size.insert((size, place));
        self.by_place.insert(place, size);
    }

    fn remove(&mut self, place: u64, size: u64) {
        self.by_size.remove(&(size, place));
        self.by_place.remove(&place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_join_their_neighbours() {
        let mut gaps = Gaps::default();
        let places: Vec<_> = (0..3).map(|_| gaps.allocate(512)).collect();
        assert_eq!(places, [0, 512, 1024]);
        gaps.free(0, 512);
        gaps.free(1024, 512);
        gaps.free(512, 512);
        assert_eq!(gaps.allocate(1536), 0);
        assert_eq!(gaps.top, 1536);
    }

    #[test]
    fn an_address_in_a_later_segment_is_behind_the_earlier_ones() {
        let segments = [
            Segment { address: 100, bytes: 50, position: 0 },
            Segment { address: 1 << 40, bytes: 50, position: 50 },
        ];
        assert_eq!(position(&segments, 100), 0);
        assert_eq!(position(&segments, (1 << 40) + 7), 57);
        assert_eq!(position(&segments, 99), 0);
    }
}
