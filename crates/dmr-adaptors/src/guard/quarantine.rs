//! Deallocated blocks: those that wait for a window to close, and those in quarantine.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use dmr_core::sync::lock;

use super::table::Kept;

/// Never locked across a call of the upstream resource or the driver.
#[derive(Debug)]
pub(super) struct Quarantine {
    max_bytes: usize,
    max_blocks: usize,
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Deallocated while a window was open: neither checked nor poisoned yet.
    waiting: VecDeque<Kept>,
    /// Checked and poisoned, the oldest first.
    held: VecDeque<Kept>,
    /// The bytes of `held`, red zones included.
    bytes: usize,
}

impl Quarantine {
    pub(super) fn new(max_bytes: usize, max_blocks: usize) -> Self {
        Self { max_bytes, max_blocks, queues: Mutex::default() }
    }

    pub(super) fn hold(&self, kept: Kept) {
        let mut queues = self.queues();
        queues.bytes += kept.whole.bytes();
        queues.held.push_back(kept);
    }

    /// Puts a block back as the oldest.
    pub(super) fn hold_first(&self, kept: Kept) {
        let mut queues = self.queues();
        queues.bytes += kept.whole.bytes();
        queues.held.push_front(kept);
    }

    pub(super) fn wait(&self, kept: Kept) {
        self.queues().waiting.push_back(kept);
    }

    pub(super) fn is_over_bound(&self) -> bool {
        self.queues().is_over(self.max_bytes, self.max_blocks)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues().held.is_empty()
    }

    /// Removes the oldest block if the quarantine is over its bounds, or if `all`.
    pub(super) fn release(&self, all: bool) -> Option<Kept> {
        let mut queues = self.queues();
        if !all && !queues.is_over(self.max_bytes, self.max_blocks) {
            return None;
        }
        let oldest = queues.held.pop_front()?;
        queues.bytes -= oldest.whole.bytes();
        Some(oldest)
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.queues().waiting.is_empty()
    }

    pub(super) fn take_waiting(&self) -> VecDeque<Kept> {
        std::mem::take(&mut self.queues().waiting)
    }

    /// Takes all blocks in quarantine out for a check. [`put_held`](Self::put_held) puts them back.
    pub(super) fn take_held(&self) -> VecDeque<Kept> {
        let mut queues = self.queues();
        queues.bytes = 0;
        std::mem::take(&mut queues.held)
    }

    pub(super) fn put_held(&self, mut older: VecDeque<Kept>) {
        let mut queues = self.queues();
        queues.bytes += older.iter().map(|kept| kept.whole.bytes()).sum::<usize>();
        older.append(&mut queues.held);
        queues.held = older;
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        lock(&self.queues)
    }
}

impl Queues {
    fn is_over(&self, max_bytes: usize, max_blocks: usize) -> bool {
        self.bytes > max_bytes || self.held.len() > max_blocks
    }
}
