//! Chunks by size. Sizes share bins, as in the allocator that the [heap](super) is named after; a
//! bin with several sizes has a tree of them, and each size a list of its chunks.
//!
//! The tree is that of D. Lea's malloc: a digital tree over the bits of the size that the bin leaves
//! open, in which a node has a size of its own. Its depth is at most the number of those bits, so
//! every function here looks at a few dozen chunks at most, however many there are, except for
//! [`visit`](Bins::visit).

use std::ops::{ControlFlow, RangeInclusive};

use smallvec::SmallVec;

use super::chunk::{ChunkId, Chunks, Links};

/// Sizes below this many units have a bin each; larger ones share one with those that agree in as
/// many bits after the first.
const FINE: u32 = 32;
const FINE_BITS: u32 = FINE.ilog2();
/// The row of small sizes, and one for each doubling of a 32-bit size from `FINE` on.
const ROWS: usize = (u32::BITS - FINE_BITS) as usize + 1;

/// Sets of chunks by size.
#[derive(Debug)]
pub(super) struct Bins {
    /// By row: one bit for each bin that is not empty.
    columns: [u32; ROWS],
    /// One bit for each row that has a bin that is not empty.
    rows: u32,
    roots: [[Option<ChunkId>; FINE as usize]; ROWS],
}

/// The place of a size in the bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bin {
    row: u8,
    column: u8,
}

impl Default for Bins {
    fn default() -> Self {
        Self { columns: [0; ROWS], rows: 0, roots: [[None; FINE as usize]; ROWS] }
    }
}

impl Bin {
    /// Returns the bin of this size.
    #[inline]
    pub(super) fn of(units: u32) -> Self {
        let Some(shift) = units.ilog2().checked_sub(FINE_BITS) else {
            return Self { row: 0, column: units as u8 };
        };
        let column = (units >> shift) & (FINE - 1);
        Self { row: shift as u8 + 1, column: column as u8 }
    }

    /// Returns the smallest size of the bin.
    pub(super) fn smallest(self) -> u32 {
        match self.row {
            0 => u32::from(self.column),
            row => (FINE | u32::from(self.column)) << (row - 1),
        }
    }

    /// Returns the bits of a size that the bin leaves open, the highest first.
    #[inline]
    fn open_bits(self, units: u32) -> u32 {
        let bits = u32::from(self.row.saturating_sub(1));
        units.checked_shl(u32::BITS - bits).unwrap_or(0)
    }
}

impl Bins {
    /// Adds a chunk.
    #[inline]
    pub(super) fn insert(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let chunk = &mut chunks[id];
        chunk.links = Links::default();
        let units = chunk.units;
        let bin = Bin::of(units);
        match self.root(bin) {
            None => self.set_root(bin, Some(id)),
            Some(root) => insert_below(chunks, root, bin.open_bits(units), id),
        }
    }

    /// Removes a chunk.
    #[inline]
    pub(super) fn remove(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let (links, units) = (chunks[id].links, chunks[id].units);
        if let Some(previous) = links.previous {
            chunks[previous].links.next = links.next;
            if let Some(next) = links.next {
                chunks[next].links.previous = Some(previous);
            }
            return;
        }
        let successor = match links.next {
            Some(next) => {
                chunks[next].links.previous = None;
                chunks[next].links.children = links.children;
                Some(next)
            }
            None => leaf_instead(chunks, id),
        };
        let bin = Bin::of(units);
        if self.root(bin) == Some(id) {
            return self.set_root(bin, successor);
        }
        let (mut at, mut bits) = (self.root(bin), bin.open_bits(units));
        while let Some(parent) = at {
            let child = &mut chunks[parent].links.children[(bits >> 31) as usize];
            if *child == Some(id) {
                *child = successor;
                return;
            }
            (at, bits) = (*child, bits << 1);
        }
    }

    /// Returns a chunk of the smallest size that is at least `units`: of several, the first in the
    /// list of that size.
    #[inline]
    pub(super) fn find(&self, chunks: &Chunks, units: u32) -> Option<ChunkId> {
        let bin = Bin::of(units);
        let mut best = None::<(u32, ChunkId)>;
        let mut consider = |id, size| {
            if size >= units && best.is_none_or(|(smallest, _)| size < smallest) {
                best = Some((size, id));
            }
            size == units
        };
        let (mut at, mut bits, mut larger) = (self.root(bin), bin.open_bits(units), None);
        while let Some(id) = at {
            let chunk = &chunks[id];
            if consider(id, chunk.units) {
                return Some(id);
            }
            let [small, large] = chunk.links.children;
            if bits >> 31 == 0 {
                // The last one noted is the subtree of the smallest sizes that are larger.
                larger = large.or(larger);
                at = small;
            } else {
                at = large;
            }
            bits <<= 1;
        }
        let mut at = larger;
        while let Some(id) = at {
            let chunk = &chunks[id];
            consider(id, chunk.units);
            let [small, large] = chunk.links.children;
            at = small.or(large);
        }
        match best {
            Some((_, id)) => Some(id),
            None => self.smallest_in(chunks, self.next_after(bin)?),
        }
    }

    #[inline]
    fn smallest_in(&self, chunks: &Chunks, bin: Bin) -> Option<ChunkId> {
        let mut best = self.root(bin)?;
        let mut smallest = chunks[best].units;
        let mut at = Some(best);
        while let Some(id) = at {
            let chunk = &chunks[id];
            if chunk.units < smallest {
                (best, smallest) = (id, chunk.units);
            }
            let [small, large] = chunk.links.children;
            at = small.or(large);
        }
        Some(best)
    }

    /// Returns the most units that a chunk has; 0 if there is none.
    pub(super) fn largest(&self, chunks: &Chunks) -> u32 {
        let (mut at, mut most) = (self.last().and_then(|bin| self.root(bin)), 0);
        while let Some(id) = at {
            let chunk = &chunks[id];
            most = most.max(chunk.units);
            let [small, large] = chunk.links.children;
            at = large.or(small);
        }
        most
    }

    /// Calls `act` for all chunks in the bins of these sizes, bin by bin, until it breaks.
    pub(super) fn visit(
        &self,
        chunks: &Chunks,
        sizes: RangeInclusive<u32>,
        mut act: impl FnMut(ChunkId) -> ControlFlow<()>,
    ) {
        let mut bin = Some(Bin::of(*sizes.start()));
        while let Some(at) = bin.filter(|bin| bin.smallest() <= *sizes.end()) {
            let mut nodes = SmallVec::<[ChunkId; 32]>::new();
            nodes.extend(self.root(at));
            while let Some(node) = nodes.pop() {
                nodes.extend(chunks[node].links.children.into_iter().flatten());
                for id in of_this_size(chunks, node) {
                    if act(id).is_break() {
                        return;
                    }
                }
            }
            bin = self.next_after(at);
        }
    }

    /// Returns the last bin that is not empty.
    pub(super) fn last(&self) -> Option<Bin> {
        let row = self.rows.checked_ilog2()?;
        let column = self.columns[row as usize].checked_ilog2()?;
        Some(Bin { row: row as u8, column: column as u8 })
    }

    /// Returns the first bin after this one that is not empty: every chunk in it is larger.
    #[inline]
    fn next_after(&self, bin: Bin) -> Option<Bin> {
        let row = usize::from(bin.row);
        let right =
            self.columns[row] & (!0_u32).checked_shl(u32::from(bin.column) + 1).unwrap_or(0);
        if right != 0 {
            return Some(Bin { row: bin.row, column: right.trailing_zeros() as u8 });
        }
        let below = self.rows & (!0_u32).checked_shl(u32::from(bin.row) + 1).unwrap_or(0);
        if below == 0 {
            return None;
        }
        let row = below.trailing_zeros();
        Some(Bin { row: row as u8, column: self.columns[row as usize].trailing_zeros() as u8 })
    }

    #[inline]
    fn root(&self, bin: Bin) -> Option<ChunkId> {
        self.roots[usize::from(bin.row)][usize::from(bin.column)]
    }

    #[inline]
    fn set_root(&mut self, bin: Bin, root: Option<ChunkId>) {
        let (row, column) = (usize::from(bin.row), usize::from(bin.column));
        let had_one = std::mem::replace(&mut self.roots[row][column], root).is_some();
        if had_one == root.is_some() {
            return;
        }
        self.columns[row] ^= 1 << column;
        if self.columns[row] == 0 {
            self.rows &= !(1 << row);
        } else {
            self.rows |= 1 << row;
        }
    }
}

/// Returns a chunk and those after it in the list of its size.
pub(super) fn of_this_size(chunks: &Chunks, first: ChunkId) -> impl Iterator<Item = ChunkId> {
    std::iter::successors(Some(first), |&id| chunks[id].links.next)
}

/// Inserts a chunk into a tree: second in the list of its size, or as a new leaf.
fn insert_below(chunks: &mut Chunks, root: ChunkId, mut bits: u32, id: ChunkId) {
    let (mut at, units) = (root, chunks[id].units);
    loop {
        let node = &mut chunks[at];
        if node.units == units {
            let next = node.links.next.replace(id);
            let links = &mut chunks[id].links;
            (links.previous, links.next) = (Some(at), next);
            if let Some(next) = next {
                chunks[next].links.previous = Some(id);
            }
            return;
        }
        let child = &mut node.links.children[(bits >> 31) as usize];
        match *child {
            Some(node) => at = node,
            None => {
                *child = Some(id);
                return;
            }
        }
        bits <<= 1;
    }
}

/// Takes a leaf from below a node and gives it the node's children; `None` if there is none.
fn leaf_instead(chunks: &mut Chunks, node: ChunkId) -> Option<ChunkId> {
    let mut parent = node;
    loop {
        let children = chunks[parent].links.children;
        let side = usize::from(children[1].is_some());
        let child = children[side]?;
        if chunks[child].links.children == [None; 2] {
            chunks[parent].links.children[side] = None;
            chunks[child].links.children = chunks[node].links.children;
            return Some(child);
        }
        parent = child;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::chunk::Chunk;
    use super::*;

    #[test]
    fn sizes_are_in_order_and_a_bin_begins_with_its_smallest() {
        let sizes = (1..5000).chain((13..32).flat_map(|bit| {
            let power = 1_u32 << bit;
            [power - 1, power, power + 1, power + power / 3]
        }));
        let mut last = Bin::of(1);
        for size in sizes {
            let bin = Bin::of(size);
            assert!(bin.smallest() <= size, "{size} in {bin:?}");
            assert!((bin.row, bin.column) >= (last.row, last.column), "{size}: {last:?} {bin:?}");
            assert_eq!(Bin::of(bin.smallest()), bin);
            last = bin;
        }
        assert!(usize::from(Bin::of(u32::MAX).row) < ROWS);
    }

    proptest! {
        #[test]
        fn the_smallest_size_that_fits_is_found(
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![1_u32..80, 4000_u32..4200, any::<u32>()]), 1..200),
        ) {
            let (mut chunks, mut bins) = (Chunks::default(), Bins::default());
            let mut model = BTreeMap::<u32, Vec<ChunkId>>::new();
            for (adds, units) in steps {
                let units = units.max(1);
                if adds {
                    let id = chunks.add(Chunk::span(0, units));
                    bins.insert(&mut chunks, id);
                    model.entry(units).or_default().push(id);
                } else {
                    let expected = model.range(units..).next().map(|(&units, _)| units);
                    let found = bins.find(&chunks, units);
                    prop_assert_eq!(found.map(|id| chunks[id].units), expected);
                    if let Some(units) = expected {
                        let ids = model.get_mut(&units).unwrap();
                        let id = ids.swap_remove(ids.len() / 2);
                        if ids.is_empty() {
                            model.remove(&units);
                        }
                        bins.remove(&mut chunks, id);
                    }
                }
                let largest = model.last_key_value().map_or(0, |(&units, _)| units);
                prop_assert_eq!(bins.largest(&chunks), largest);
                let mut all = 0;
                bins.visit(&chunks, 1..=u32::MAX, |_| { all += 1; ControlFlow::Continue(()) });
                prop_assert_eq!(all, model.values().map(Vec::len).sum::<usize>());
            }
        }
    }
}
