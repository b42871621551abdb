//! The table of a guard's blocks: live, deallocated, and remembered after upstream has taken them.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::sync::lock;
use dmr_core::{
    BlockId, BlockState, DeallocateError, DeviceBlock, Generation, ResourceError, ResourceResult,
    Usage, WholeBlock,
};

use super::allocation::Allocation;
use crate::narrowed::NarrowedBlocks;

/// The number of blocks that are remembered after upstream has taken them, so that a second
/// `deallocate` is reported as one.
const REMEMBERED: usize = 4096;

/// The lock is not held across a call of the driver, except by
/// [`for_each_live`](Self::for_each_live).
#[derive(Debug, Default)]
pub(super) struct Blocks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    narrowed: NarrowedBlocks,
    /// All blocks that are live, deallocated or remembered.
    guarded: HashMap<Generation, Guarded>,
    /// The blocks that were deallocated since the last sweep of the quarantine.
    deallocated: VecDeque<Kept>,
    /// The blocks that upstream has taken and that are remembered, the oldest first.
    released: VecDeque<Generation>,
}

#[derive(Debug)]
struct Guarded {
    allocation: Arc<Allocation>,
    /// Upstream has taken the whole block.
    is_released: bool,
    /// Windows that were opened through the guard and are not closed.
    windows: usize,
}

/// A deallocated block, restored to the whole.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) whole: DeviceBlock,
    pub(super) allocation: Arc<Allocation>,
    /// It was checked and filled, or cannot be.
    pub(super) is_sealed: bool,
}

impl State {
    /// Returns the error for a block that is not live.
    fn missing(&self, block: &DeviceBlock, device_ordinal: usize) -> ResourceError {
        if self.guarded.contains_key(&block.generation()) {
            ResourceError::use_after_free(block.generation())
        } else {
            ResourceError::foreign_block(block, device_ordinal)
        }
    }

    /// Remembers a block that upstream has taken.
    fn remember(&mut self, generation: Generation) {
        if let Some(guarded) = self.guarded.get_mut(&generation) {
            guarded.is_released = true;
        }
        self.released.push_back(generation);
        if self.released.len() > REMEMBERED
            && let Some(oldest) = self.released.pop_front()
        {
            self.guarded.remove(&oldest);
        }
    }
}

impl Blocks {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Adds a block that is about to be returned to a caller.
    pub(super) fn insert(&self, allocation: Arc<Allocation>, whole: WholeBlock) {
        let mut state = self.state();
        state.narrowed.insert(whole, allocation.bytes);
        let guarded = Guarded { allocation, is_released: false, windows: 0 };
        state.guarded.insert(guarded.allocation.generation, guarded);
    }

    /// Removes a block that is deallocated, and restores the whole. `device_ordinal` is for the
    /// error.
    pub(super) fn take(
        &self,
        block: DeviceBlock,
        device_ordinal: usize,
    ) -> Result<Kept, Box<DeallocateError>> {
        let mut state = self.state();
        let Some(guarded) = state.guarded.get(&block.generation()) else {
            let error = ResourceError::foreign_block(&block, device_ordinal);
            return Err(DeallocateError::new(error, block));
        };
        let allocation = Arc::clone(&guarded.allocation);
        let stale = |block: &DeviceBlock| ResourceError::use_after_free(block.generation());
        let whole = state.narrowed.remove(block, stale)?;
        Ok(Kept { whole, allocation, is_sealed: false })
    }

    /// Returns the error with which [`take`](Self::take) would refuse the block, if it would.
    pub(super) fn check(&self, block: &DeviceBlock, device_ordinal: usize) -> ResourceResult<()> {
        let state = self.state();
        state.narrowed.check(block, |block| state.missing(block, device_ordinal))
    }

    /// Makes a block live again whose deallocation failed, and returns its part.
    pub(super) fn reinsert(&self, kept: Kept) -> DeviceBlock {
        let Kept { whole, allocation, .. } = kept;
        self.state().narrowed.reinsert(whole, allocation.red_zone, allocation.bytes)
    }

    /// Counts a block that upstream has taken, with the state that it returned. Returns the bytes
    /// of this block and of older ones that are freed by now. `is_retired` makes no driver call.
    pub(super) fn release(
        &self,
        allocation: &Allocation,
        block: BlockId,
        block_state: BlockState,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> u64 {
        let mut state = self.state();
        state.remember(allocation.generation);
        state.narrowed.deallocated(block, allocation.bytes, block_state, is_retired)
    }

    /// Counts a block as live that upstream has kept without deallocating it.
    pub(super) fn lose(&self, allocation: &Allocation) {
        let mut state = self.state();
        state.remember(allocation.generation);
        state.narrowed.lose(allocation.bytes);
    }

    /// Counts the blocks as freed that upstream has freed, and returns their bytes. `is_retired`
    /// makes no driver call.
    pub(super) fn poll_retired(&self, is_retired: impl Fn(BlockId) -> bool) -> u64 {
        self.state().narrowed.poll_retired(usize::MAX, is_retired)
    }

    pub(super) fn usage(&self, reserved: u64) -> Usage {
        self.state().narrowed.usage(reserved)
    }

    /// Returns whether the guard has the deallocated block.
    pub(super) fn is_deallocated(&self, generation: Generation) -> bool {
        let state = self.state();
        let is_kept = state.guarded.get(&generation).is_some_and(|guarded| !guarded.is_released);
        is_kept && !state.narrowed.is_live(generation)
    }

    /// Returns the allocation of a block that is live, deallocated or remembered.
    pub(super) fn find(&self, generation: Generation) -> Option<Arc<Allocation>> {
        self.state().guarded.get(&generation).map(|guarded| Arc::clone(&guarded.allocation))
    }

    /// Calls `check` with each live block, under the lock; returns the first error.
    pub(super) fn for_each_live(
        &self,
        mut check: impl FnMut(&WholeBlock, &Arc<Allocation>) -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        let state = self.state();
        let mut outcome = Ok(());
        for whole in state.narrowed.live() {
            if let Some(guarded) = state.guarded.get(&whole.id().generation()) {
                outcome = outcome.and(check(whole, &guarded.allocation));
            }
        }
        outcome
    }
}

/// Windows.
impl Blocks {
    /// Counts windows that are about to be opened: all of them, or none. Windows on blocks that the
    /// guard did not allocate are checked by upstream.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a deallocated block.
    pub(super) fn open_windows(&self, windows: &[Generation]) -> ResourceResult<()> {
        let mut state = self.state();
        for generation in windows {
            if state.guarded.contains_key(generation) && !state.narrowed.is_live(*generation) {
                return Err(ResourceError::use_after_free(*generation));
            }
        }
        for generation in windows {
            if let Some(guarded) = state.guarded.get_mut(generation) {
                guarded.windows += 1;
            }
        }
        Ok(())
    }

    /// Counts windows that were closed, or that could not be opened.
    pub(super) fn close_windows(&self, windows: &[Generation]) {
        let mut state = self.state();
        for generation in windows {
            if let Some(guarded) = state.guarded.get_mut(generation) {
                guarded.windows = guarded.windows.saturating_sub(1);
            }
        }
    }

    pub(super) fn has_open_window(&self, generation: Generation) -> bool {
        self.state().guarded.get(&generation).is_some_and(|guarded| guarded.windows > 0)
    }
}

/// Deallocated blocks.
impl Blocks {
    /// Adds a deallocated block, for the next sweep.
    pub(super) fn keep(&self, kept: Kept) {
        self.state().deallocated.push_back(kept);
    }

    /// Removes the oldest block that was added and not removed.
    pub(super) fn pop_deallocated(&self) -> Option<Kept> {
        self.state().deallocated.pop_front()
    }

    /// Removes the blocks that were added and not removed.
    pub(super) fn take_deallocated(&self) -> VecDeque<Kept> {
        mem::take(&mut self.state().deallocated)
    }

    pub(super) fn has_deallocated(&self) -> bool {
        !self.state().deallocated.is_empty()
    }
}
