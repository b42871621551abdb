//! The accounting, in bytes as asked for: the upstream resource counts red zones.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use dmr_core::sync::lock;
use dmr_core::{BlockId, BlockState, Usage};

#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    usage: Usage,
    /// Blocks that were deallocated upstream and are retired there.
    retired: VecDeque<Retired>,
}

#[derive(Debug)]
struct Retired {
    block: BlockId,
    bytes: u64,
}

impl Accounts {
    pub(super) fn allocated(&self, bytes: usize) {
        let usage = &mut self.state().usage;
        usage.live += bytes as u64;
        usage.total_allocated += bytes as u64;
    }

    pub(super) fn deallocated(&self, bytes: usize) {
        let usage = &mut self.state().usage;
        usage.live -= bytes as u64;
        usage.retired += bytes as u64;
    }

    /// A deallocation failed.
    pub(super) fn restored(&self, bytes: usize) {
        let usage = &mut self.state().usage;
        usage.retired -= bytes as u64;
        usage.live += bytes as u64;
    }

    /// A block was deallocated upstream, which has returned `outcome`. Returns the bytes that are known to
    /// be freed since the last call.
    pub(super) fn deallocated_upstream(
        &self,
        block: BlockId,
        bytes: usize,
        outcome: BlockState,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> u64 {
        let mut state = self.state();
        if outcome == BlockState::Freed {
            state.freed(bytes as u64);
            return bytes as u64;
        }
        state.retired.push_back(Retired { block, bytes: bytes as u64 });
        // Two for each that is added, so that the queue holds few that are freed.
        (0..2).map(|_| state.settle_oldest(&is_retired)).sum()
    }

    /// Counts what upstream has freed since; returns the bytes.
    pub(super) fn settle(&self, is_retired: impl Fn(BlockId) -> bool) -> u64 {
        let mut state = self.state();
        let mut freed = 0;
        state.retired.retain(|retired| {
            let keep = is_retired(retired.block);
            freed += if keep { 0 } else { retired.bytes };
            keep
        });
        state.freed(freed);
        freed
    }

    pub(super) fn usage(&self) -> Usage {
        self.state().usage
    }

    /// `is_retired` makes no driver call, so it is called with the lock held.
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn freed(&mut self, bytes: u64) {
        self.usage.retired -= bytes;
        self.usage.total_freed += bytes;
    }

    fn settle_oldest(&mut self, is_retired: impl Fn(BlockId) -> bool) -> u64 {
        match self.retired.front() {
            Some(&Retired { block, bytes }) if !is_retired(block) => {
                self.retired.pop_front();
                self.freed(bytes);
                bytes
            }
            _ => 0,
        }
    }
}
