//! The order of blocks: fences that release, and atomic accesses that acquire.

use rustc_hash::FxHashMap;

/// The fences of a block, and how far it has acquired those of others.
#[derive(Debug, Default)]
struct BlockFences {
    /// The times of its fences, ascending.
    releases: Vec<u32>,
    /// The time up to which it has acquired the releases of other blocks.
    acquired: u32,
    /// True if it has accessed memory since its last fence.
    has_accessed: bool,
}

/// The order of the blocks of a launch. Time advances with each fence.
#[derive(Debug)]
pub(super) struct Blocks {
    time: u32,
    blocks: FxHashMap<u32, BlockFences>,
    /// The block that accessed last, so that a row of accesses costs one look-up.
    last: Option<u32>,
    /// The block that acquired last, and the time.
    acquired: Option<(u32, u32)>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { time: 1, blocks: FxHashMap::default(), last: None, acquired: None }
    }
}

impl Blocks {
    /// Returns the time of an access that is made now.
    #[inline]
    pub(super) fn time(&self) -> u32 {
        self.time
    }

    /// Records an access that a later fence releases.
    #[inline]
    pub(super) fn accessed(&mut self, block: u32) {
        if self.last != Some(block) {
            self.blocks.entry(block).or_default().has_accessed = true;
            self.last = Some(block);
        }
    }

    /// Records a fence. Returns false if there were too many.
    pub(super) fn release(&mut self, block: u32) -> bool {
        if self.time == u32::MAX {
            return false;
        }
        let state = self.blocks.entry(block).or_default();
        if state.has_accessed {
            state.releases.push(self.time);
            state.has_accessed = false;
            self.last = None;
            self.time += 1;
        }
        true
    }

    /// Records an access that acquires what was released until now.
    #[inline]
    pub(super) fn acquire(&mut self, block: u32) {
        if self.acquired != Some((block, self.time)) {
            self.blocks.entry(block).or_default().acquired = self.time - 1;
            self.acquired = Some((block, self.time));
        }
    }

    /// Returns whether an access of `earlier` at `time` is ordered before what `later` does now.
    #[inline]
    pub(super) fn is_ordered(&self, earlier: u32, time: u32, later: u32) -> bool {
        let (Some(earlier), Some(later)) = (self.blocks.get(&earlier), self.blocks.get(&later))
        else {
            return false;
        };
        let next = earlier.releases.partition_point(|&release| release < time);
        earlier.releases.get(next).is_some_and(|&release| release <= later.acquired)
    }
}
