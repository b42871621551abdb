//! The order of the threads of a block: which accesses happen before the one that a thread makes
//! now.
//!
//! Every access has a stamp, the count of the block at that time; the count rises whenever threads
//! are ordered. A thread has seen an access if its stamp is below the one up to which it has seen
//! the accessing thread. Barriers order threads, `bar.warp.sync` lanes, and atomic accesses with
//! fences whole warps: a warp that acquires is ordered as a whole, so that some races between its
//! lanes and other warps are missed, and none is reported that is not one.
//!
//! One entry for each warp and not for each thread: a barrier of the block is by far the most
//! frequent order, and is one number for all of them.

use dmr_ptx_arith::{Mask, WARP, lanes_of};
use rustc_hash::FxHashMap;

/// For each warp, the stamp below which its accesses have been seen.
pub(super) type Row = Vec<u32>;

#[derive(Debug, Default)]
struct WarpOrder {
    seen: Row,
    /// The row at the last fence of the warp, which a relaxed store publishes.
    fenced: Row,
    /// True if it has fenced: else its row publishes nothing.
    has_fenced: bool,
    /// The rows that relaxed loads have read, which are seen after the next fence.
    pending: Row,
    /// The stamp below which all lanes have seen each other.
    lanes: u32,
    /// For each lane, the stamps below which it has seen each other lane.
    pairs: Option<Box<[[u32; WARP]; WARP]>>,
    /// The stamp at which some lanes were last ordered without the others.
    paired: u32,
}

/// The order of the threads of a block.
#[derive(Debug, Default)]
pub(super) struct Order {
    now: u32,
    /// The stamp below which every thread has seen every other.
    block: u32,
    warps: Vec<WarpOrder>,
    published: FxHashMap<u64, Row>,
}

impl Order {
    pub(super) fn new(warps: usize) -> Self {
        let row = || vec![0; warps];
        let warp = || WarpOrder {
            seen: row(),
            fenced: row(),
            has_fenced: false,
            pending: row(),
            lanes: 0,
            pairs: None,
            paired: 0,
        };
        Self {
            now: 1,
            block: 1,
            warps: (0..warps).map(|_| warp()).collect(),
            published: FxHashMap::default(),
        }
    }

    /// Makes it the order of a block that starts: all earlier accesses are those of other blocks,
    /// and count as seen. Returns false if there are too few stamps left for a block.
    pub(super) fn restart(&mut self) -> bool {
        self.block();
        for warp in self.warps.iter_mut().filter(|warp| warp.has_fenced) {
            warp.fenced.fill(0);
            warp.has_fenced = false;
        }
        for warp in &mut self.warps {
            warp.pending.fill(0);
        }
        self.now < u32::MAX / 2
    }

    /// Returns the stamp of an access that is made now.
    #[inline]
    pub(super) fn now(&self) -> u32 {
        self.now
    }

    /// Returns whether some lanes of a warp were ordered without the others since all of them were
    /// ordered.
    #[inline]
    pub(super) fn has_ordered_pairs(&self, warp: usize) -> bool {
        self.warps.get(warp).is_some_and(|order| order.paired > order.lanes.max(self.block))
    }

    /// Returns whether a barrier of the whole block has completed since `stamp`.
    #[inline]
    pub(super) fn is_before_barrier(&self, stamp: u32) -> bool {
        stamp < self.block
    }

    /// Returns whether nothing but barriers of the whole block has ordered threads since the last
    /// one.
    #[inline]
    pub(super) fn has_barriers_only(&self) -> bool {
        self.block == self.now
    }

    /// Returns whether `thread` has seen the accesses that `other` had made at `stamp`.
    #[inline]
    pub(super) fn has_seen(&self, thread: u16, other: u16, stamp: u32) -> bool {
        stamp < self.block || thread == other || self.has_seen_warp(thread, other, stamp)
    }

    fn has_seen_warp(&self, thread: u16, other: u16, stamp: u32) -> bool {
        let thread = usize::from(thread);
        let other = usize::from(other);
        let warp = thread / WARP;
        let from = other / WARP;
        let Some(order) = self.warps.get(warp) else { return true };
        if order.seen.get(from).is_some_and(|&seen| stamp < seen) {
            return true;
        }
        warp == from
            && (stamp < order.lanes
                || order
                    .pairs
                    .as_ref()
                    .is_some_and(|pairs| stamp < pairs[thread % WARP][other % WARP]))
    }

    fn advance(&mut self) -> u32 {
        self.now = self.now.saturating_add(1);
        self.now
    }

    /// Orders all threads of the block.
    pub(super) fn block(&mut self) {
        self.block = self.advance();
        self.published.clear();
    }

    /// Orders all threads of some warps.
    pub(super) fn warps(&mut self, warps: &[usize]) {
        let now = self.advance();
        let mut row: Row = vec![0; self.warps.len()];
        for &warp in warps {
            join(&mut row, &self.warps[warp].seen);
            row[warp] = now;
        }
        for &warp in warps {
            join(&mut self.warps[warp].seen, &row);
            self.warps[warp].lanes = now;
        }
    }

    /// Records that a warp arrives at a barrier without waiting: `row` gets what those that wait
    /// there have seen.
    pub(super) fn arrive(&mut self, warp: usize, row: &mut Row) {
        let now = self.advance();
        row.resize(self.warps.len(), 0);
        join(row, &self.warps[warp].seen);
        row[warp] = now;
    }

    /// Orders what `row` has seen before what a warp does now.
    pub(super) fn acquire(&mut self, warp: usize, row: &Row) {
        join(&mut self.warps[warp].seen, row);
    }

    /// Orders lanes of a warp.
    pub(super) fn lanes(&mut self, warp: usize, mask: Mask) {
        let now = self.advance();
        let order = &mut self.warps[warp];
        if mask == Mask::MAX {
            order.lanes = now;
            return;
        }
        order.paired = now;
        let pairs = order.pairs.get_or_insert_with(|| Box::new([[0; WARP]; WARP]));
        let mut row = [0; WARP];
        for lane in lanes_of(mask) {
            for (to, &from) in row.iter_mut().zip(&pairs[lane]) {
                *to = from.max(*to);
            }
        }
        for lane in lanes_of(mask) {
            row[lane] = now;
        }
        for lane in lanes_of(mask) {
            pairs[lane] = row;
        }
    }

    /// Records a fence of a warp.
    pub(super) fn fence(&mut self, warp: usize) {
        let now = self.advance();
        let order = &mut self.warps[warp];
        join(&mut order.seen, &order.pending);
        order.fenced.clone_from(&order.seen);
        order.fenced[warp] = now;
        order.has_fenced = true;
    }

    /// Records an atomic or volatile store at `address`.
    pub(super) fn publish(&mut self, warp: usize, address: u64) {
        if !self.warps[warp].has_fenced {
            return;
        }
        let row = self.published.entry(address).or_default();
        row.resize(self.warps.len(), 0);
        join(row, &self.warps[warp].fenced);
    }

    /// Records an atomic or volatile load at `address`.
    pub(super) fn observe(&mut self, warp: usize, address: u64) {
        if !self.published.is_empty()
            && let Some(row) = self.published.get(&address)
        {
            join(&mut self.warps[warp].pending, row);
        }
    }
}

fn join(row: &mut Row, other: &Row) {
    for (to, &from) in row.iter_mut().zip(other) {
        *to = from.max(*to);
    }
}
