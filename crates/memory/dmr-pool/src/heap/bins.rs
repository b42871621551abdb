//! Chunks by size. Sizes share bins, as in the allocator that the [heap](super) is named after; a
//! bin with several sizes has a tree of them, and each size a list of its chunks.
//!
//! The tree is that of D. Lea's malloc: a digital tree over the bits of the size that the bin
//! leaves open, in which a node has a size of its own. Its depth is at most the number of those
//! bits, so every function here looks at a few dozen chunks at most, however many there are, except
//! for [`visit`](Bins::visit).

use std::ops::{ControlFlow, RangeInclusive};

use smallvec::SmallVec;

use super::chunk::{Chunk, ChunkId, Chunks, Links};

/// Sizes below this many units have a bin each; larger sizes share one if they agree in the
/// [`FINE_BITS`] bits after the first.
const FINE: u32 = 32;
const FINE_BITS: u32 = FINE.ilog2();
/// The number of rows: a power of two that is enough for the row of small sizes and one row for
/// each doubling of a 32-bit size from `FINE` on.
const ROWS: usize = 32;
const BINS: usize = ROWS * FINE as usize;

/// Sets of chunks by size.
#[derive(Debug)]
pub(super) struct Bins {
    /// By row: one bit for each bin that is not empty.
    columns: [u32; ROWS],
    /// One bit for each row that has a bin that is not empty.
    rows: u32,
    roots: [Option<ChunkId>; BINS],
}

/// The index of a bin. Bins are in the order of their sizes, in rows of `FINE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bin(u32);

impl Default for Bins {
    fn default() -> Self {
        Self { columns: [0; ROWS], rows: 0, roots: [None; BINS] }
    }
}

impl Bin {
    /// Returns the bin of this size.
    #[inline(always)]
    pub(super) fn of(units: u32) -> Self {
        let shift = (units | (2 * FINE - 1)).ilog2() - FINE_BITS;
        Self((shift << FINE_BITS) + (units >> shift))
    }

    /// Returns the smallest size of the bin.
    pub(super) fn smallest(self) -> u32 {
        match self.row() {
            0 => self.0,
            row => (FINE | (self.0 % FINE)) << (row - 1),
        }
    }

    /// Returns the bits of a size that the bin leaves open, the highest first.
    #[inline]
    fn open_bits(self, units: u32) -> u32 {
        let bits = (self.row() as u32).saturating_sub(1);
        units.checked_shl(u32::BITS - bits).unwrap_or(0)
    }

    #[inline(always)]
    fn index(self) -> usize {
        self.0 as usize % BINS
    }

    #[inline(always)]
    fn row(self) -> usize {
        (self.0 / FINE) as usize % ROWS
    }
}

impl Bins {
    /// Adds a chunk.
    #[inline(always)]
    pub(super) fn insert(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let chunk = &mut chunks[id];
        chunk.links = Links::default();
        let bin = Bin::of(chunk.units);
        match self.roots[bin.index()] {
            None => {
                self.roots[bin.index()] = Some(id);
                self.columns[bin.row()] |= 1 << (bin.0 % FINE);
                self.rows |= 1 << bin.row();
            }
            Some(root) => insert_below(chunks, root, bin, id),
        }
    }

    /// Removes a chunk.
    #[inline(always)]
    pub(super) fn remove(&mut self, chunks: &mut Chunks, id: ChunkId) {
        let chunk = &chunks[id];
        let bin = Bin::of(chunk.units);
        if chunk.links.is_alone() && self.roots[bin.index()] == Some(id) {
            return self.clear(bin);
        }
        self.remove_from_tree(chunks, id, bin);
    }

    /// Removes a chunk of the smallest size that is at least `units`: of several, the one that was
    /// added last.
    #[inline(always)]
    pub(super) fn remove_best_fit(&mut self, chunks: &mut Chunks, units: u32) -> Option<ChunkId> {
        let mut bin = Bin::of(units);
        let here = self.roots[bin.index()].and_then(|root| find_below(chunks, root, bin, units));
        let first = match here {
            Some(first) => first,
            None => {
                bin = self.next_after(bin)?;
                let root = self.roots[bin.index()]?;
                if chunks[root].links.is_alone() {
                    self.clear(bin);
                    return Some(root);
                }
                smallest_below(chunks, root)
            }
        };
        // The second one leaves the tree as it is.
        let id = chunks[first].links.next.unwrap_or(first);
        self.remove(chunks, id);
        Some(id)
    }

    /// Returns whether a chunk would be in the same position with other units.
    #[inline(always)]
    pub(super) fn stays(&self, chunks: &Chunks, id: ChunkId, units: u32) -> bool {
        let chunk = &chunks[id];
        let bin = Bin::of(units);
        bin == Bin::of(chunk.units) && chunk.links.is_alone() && self.roots[bin.index()] == Some(id)
    }

    /// Removes a chunk of a bin that may have others.
    #[inline(never)]
    fn remove_from_tree(&mut self, chunks: &mut Chunks, id: ChunkId, bin: Bin) {
        let Chunk { links, units, .. } = chunks[id];
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
        let mut at = self.roots[bin.index()];
        if at == Some(id) {
            // A chunk that is alone in its bin does not come here.
            self.roots[bin.index()] = successor;
            return;
        }
        let mut bits = bin.open_bits(units);
        while let Some(parent) = at {
            let child = &mut chunks[parent].links.children[(bits >> 31) as usize];
            if *child == Some(id) {
                *child = successor;
                return;
            }
            at = *child;
            bits <<= 1;
        }
    }

    /// Makes a bin empty.
    #[inline(always)]
    fn clear(&mut self, bin: Bin) {
        self.roots[bin.index()] = None;
        let columns = &mut self.columns[bin.row()];
        *columns ^= 1 << (bin.0 % FINE);
        if *columns == 0 {
            self.rows ^= 1 << bin.row();
        }
    }

    /// Returns a chunk of the smallest size that is at least `units`: of several, the first in the
    /// list of that size.
    #[inline(always)]
    pub(super) fn find(&self, chunks: &Chunks, units: u32) -> Option<ChunkId> {
        let bin = Bin::of(units);
        let here = self.roots[bin.index()].and_then(|root| find_below(chunks, root, bin, units));
        here.or_else(|| Some(smallest_below(chunks, self.first_after(bin)?)))
    }

    /// Returns the root of the first bin after this one that is not empty: every chunk in it is
    /// larger.
    #[inline(always)]
    fn first_after(&self, bin: Bin) -> Option<ChunkId> {
        self.roots[self.next_after(bin)?.index()]
    }

    /// Returns the most units that a chunk has; 0 if there is none.
    pub(super) fn largest(&self, chunks: &Chunks) -> u32 {
        let mut at = self.last().and_then(|bin| self.roots[bin.index()]);
        let mut most = 0;
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
            nodes.extend(self.roots[at.index()]);
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
        let column = self.columns[row as usize % ROWS].checked_ilog2()?;
        Some(Bin(row * FINE + column))
    }

    /// Returns the first bin after this one that is not empty.
    #[inline(always)]
    fn next_after(&self, bin: Bin) -> Option<Bin> {
        let right = self.columns[bin.row()] & ((!1_u32) << (bin.0 % FINE));
        if right != 0 {
            return Some(Bin(bin.0 / FINE * FINE + right.trailing_zeros()));
        }
        let below = self.rows & ((!1_u32) << bin.row());
        if below == 0 {
            return None;
        }
        let row = below.trailing_zeros();
        Some(Bin(row * FINE + self.columns[row as usize % ROWS].trailing_zeros()))
    }
}

/// Returns a chunk of the smallest size in a tree that is at least `units`, which has this bin.
#[inline]
fn find_below(chunks: &Chunks, root: ChunkId, bin: Bin, units: u32) -> Option<ChunkId> {
    let mut best = None::<(u32, ChunkId)>;
    let mut consider = |id, size| {
        if size >= units && best.is_none_or(|(smallest, _)| size < smallest) {
            best = Some((size, id));
        }
        size == units
    };
    let mut at = Some(root);
    let mut bits = bin.open_bits(units);
    let mut larger = None;
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
    best.map(|(_, id)| id)
}

/// Returns a chunk of the smallest size in a tree.
#[inline(always)]
fn smallest_below(chunks: &Chunks, root: ChunkId) -> ChunkId {
    let Chunk { units: mut smallest, links, .. } = chunks[root];
    let mut best = root;
    let mut at = links.children[0].or(links.children[1]);
    while let Some(id) = at {
        let chunk = &chunks[id];
        if chunk.units < smallest {
            best = id;
            smallest = chunk.units;
        }
        let [small, large] = chunk.links.children;
        at = small.or(large);
    }
    best
}

/// Returns a chunk and those after it in the list of its size.
pub(super) fn of_this_size(chunks: &Chunks, first: ChunkId) -> impl Iterator<Item = ChunkId> {
    std::iter::successors(Some(first), |&id| chunks[id].links.next)
}

/// Inserts a chunk into a tree: second in the list of its size, or as a new leaf.
#[inline(never)]
fn insert_below(chunks: &mut Chunks, root: ChunkId, bin: Bin, id: ChunkId) {
    let mut at = root;
    let units = chunks[id].units;
    let mut bits = bin.open_bits(units);
    loop {
        let node = &mut chunks[at];
        if node.units == units {
            let next = node.links.next.replace(id);
            let links = &mut chunks[id].links;
            links.previous = Some(at);
            links.next = next;
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
            assert!(bin >= last, "{size}: {last:?} {bin:?}");
            assert_eq!(Bin::of(bin.smallest()), bin);
            last = bin;
        }
        assert!((Bin::of(u32::MAX).0 as usize) < BINS);
    }

    proptest! {
        #[test]
        fn the_smallest_size_that_fits_is_found(
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![1_u32..80, 4000_u32..4200, any::<u32>()]), 1..200),
        ) {
            let mut chunks = Chunks::default();
            let mut bins = Bins::default();
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
