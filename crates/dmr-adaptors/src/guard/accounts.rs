//! The accounting, in bytes as asked for: red zones are the inner resource's business.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr_core::{BlockId, BlockState, Usage};

#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    usage: Usage,
    /// Blocks that the inner resource was given and kept for a while, with their bytes.
    passed_on: VecDeque<(BlockId, u64)>,
}

impl Accounts {
    pub(super) fn allocated(&self, bytes: usize) {
        let usage = &mut self.books().usage;
        usage.live += bytes as u64;
        usage.total_allocated += bytes as u64;
    }

    pub(super) fn given_back(&self, bytes: usize) {
        let usage = &mut self.books().usage;
        usage.live -= bytes as u64;
        usage.retired += bytes as u64;
    }

    /// It was not given back after all.
    pub(super) fn restored(&self, bytes: usize) {
        let usage = &mut self.books().usage;
        usage.retired -= bytes as u64;
        usage.live += bytes as u64;
    }

    /// A block has gone to the inner resource, which answered `state`. Answers the bytes that are
    /// freed by that.
    pub(super) fn passed_on(
        &self,
        block: BlockId,
        bytes: usize,
        state: BlockState,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> u64 {
        let mut books = self.books();
        if state == BlockState::Freed {
            books.freed(bytes as u64);
            return bytes as u64;
        }
        books.passed_on.push_back((block, bytes as u64));
        // Two for each that comes: so there are never many more than are kept.
        (0..2).map(|_| books.settle_oldest(&is_retired)).sum()
    }

    /// Finds out what the inner resource has freed since; answers the bytes.
    pub(super) fn settle(&self, is_retired: impl Fn(BlockId) -> bool) -> u64 {
        let mut books = self.books();
        let mut freed = 0;
        books.passed_on.retain(|&(block, bytes)| {
            let keep = is_retired(block);
            freed += if keep { 0 } else { bytes };
            keep
        });
        books.freed(freed);
        freed
    }

    pub(super) fn usage(&self) -> Usage {
        self.books().usage
    }

    /// Asking whether a block is retired makes no driver call, so the lock may be held meanwhile.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn freed(&mut self, bytes: u64) {
        self.usage.retired -= bytes;
        self.usage.total_freed += bytes;
    }

    fn settle_oldest(&mut self, is_retired: impl Fn(BlockId) -> bool) -> u64 {
        match self.passed_on.front() {
            Some(&(block, bytes)) if !is_retired(block) => {
                self.passed_on.pop_front();
                self.freed(bytes);
                bytes
            }
            _ => 0,
        }
    }
}
