//! The blocks of a guard: the table of all, the queues of deallocated ones, and the accounting.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use dashmap::DashMap;
use dmr_core::sync::lock;
use dmr_core::{
    BlockId, BlockState, DeallocateError, DeviceBlock, Generation, ResourceError, ResourceResult,
    Usage, WholeBlock,
};

use super::allocation::Allocation;

/// The number of blocks that are remembered after the upstream resource has taken them, so that a second
/// `deallocate` is reported as one.
const REMEMBERED: usize = 4096;

/// No lock is held across a call of the driver, except by [`for_each_live`](Self::for_each_live). The queues
/// may be locked while a part of the table is, and not the other way round.
#[derive(Debug)]
pub(super) struct Blocks {
    max_bytes: usize,
    max_blocks: usize,
    table: DashMap<Generation, Guarded>,
    queues: Mutex<Queues>,
}

#[derive(Debug)]
struct Guarded {
    allocation: Arc<Allocation>,
    state: GuardState,
    /// Windows that were opened through the guard and are not closed.
    windows: usize,
}

#[derive(Debug)]
enum GuardState {
    /// The caller has the part between the red zones.
    Live(WholeBlock),
    /// The guard has the whole block.
    Deallocated,
    /// The upstream resource has taken the whole block.
    Released,
}

/// A deallocated block, restored to the whole.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) whole: DeviceBlock,
    pub(super) allocation: Arc<Allocation>,
}

#[derive(Debug, Default)]
pub(super) struct Queues {
    /// In bytes as asked for: the upstream resource counts red zones.
    usage: Usage,
    /// Deallocated while a window was open: neither checked nor filled yet.
    pub(super) waiting: VecDeque<Kept>,
    /// The quarantine: checked and filled, the oldest first.
    pub(super) held: VecDeque<Kept>,
    /// The bytes of `held`, red zones included.
    held_bytes: usize,
    /// Deallocated upstream, and retired there.
    retired: VecDeque<Retired>,
    /// The [`Released`](GuardState::Released) blocks of the table, the oldest first.
    released: VecDeque<Generation>,
    /// Whole blocks that could not be filled and that upstream has refused: no caller has them.
    pub(super) strays: Vec<DeviceBlock>,
}

#[derive(Clone, Copy, Debug)]
struct Retired {
    block: BlockId,
    bytes: u64,
}

impl Blocks {
    pub(super) fn new(max_bytes: usize, max_blocks: usize) -> Self {
        let (table, queues) = (DashMap::new(), Mutex::default());
        Self { max_bytes, max_blocks, table, queues }
    }

    /// Adds a block that is about to be returned to a caller.
    pub(super) fn insert(&self, allocation: Arc<Allocation>, whole: WholeBlock) {
        self.count(|usage| {
            usage.live += allocation.bytes as u64;
            usage.total_allocated += allocation.bytes as u64;
        });
        let (generation, state) = (allocation.generation, GuardState::Live(whole));
        self.table.insert(generation, Guarded { allocation, state, windows: 0 });
    }

    /// Takes a block that is deallocated, and restores the whole. `device_ordinal` is for the error.
    pub(super) fn take(
        &self,
        block: DeviceBlock,
        device_ordinal: usize,
    ) -> Result<Kept, Box<DeallocateError>> {
        let generation = block.generation();
        let (error, block) = match self.table.get_mut(&generation) {
            Some(mut guarded) => match mem::replace(&mut guarded.state, GuardState::Deallocated) {
                GuardState::Live(whole) => match whole.restore(block) {
                    Ok(whole) => {
                        let allocation = Arc::clone(&guarded.allocation);
                        self.count(|usage| {
                            usage.live -= allocation.bytes as u64;
                            usage.retired += allocation.bytes as u64;
                        });
                        return Ok(Kept { whole, allocation });
                    }
                    Err((whole, block)) => {
                        guarded.state = GuardState::Live(whole);
                        (ResourceError::part_of_block(&block), block)
                    }
                },
                other => {
                    guarded.state = other;
                    (ResourceError::use_after_free(generation), block)
                }
            },
            None => (ResourceError::foreign_block(&block, device_ordinal), block),
        };
        Err(DeallocateError::new(error, block))
    }

    /// Returns the error with which [`take`](Self::take) would refuse the block, if it would.
    pub(super) fn refusal(
        &self,
        block: &DeviceBlock,
        device_ordinal: usize,
    ) -> Option<ResourceError> {
        match self.table.get(&block.generation()).as_deref().map(|guarded| &guarded.state) {
            Some(GuardState::Live(whole)) if whole.has_part(block) => None,
            Some(GuardState::Live(_)) => Some(ResourceError::part_of_block(block)),
            Some(_) => Some(ResourceError::use_after_free(block.generation())),
            None => Some(ResourceError::foreign_block(block, device_ordinal)),
        }
    }

    /// Makes a block live again whose deallocation failed, and returns its part.
    pub(super) fn put_back(&self, kept: Kept) -> DeviceBlock {
        let Kept { whole, allocation } = kept;
        self.count(|usage| {
            usage.retired -= allocation.bytes as u64;
            usage.live += allocation.bytes as u64;
        });
        match whole.narrow(allocation.payload().start, allocation.bytes) {
            Ok((part, whole)) => {
                if let Some(mut guarded) = self.table.get_mut(&allocation.generation) {
                    guarded.state = GuardState::Live(whole);
                }
                part
            }
            // Not reached: the same part was narrowed before.
            Err(whole) => whole,
        }
    }

    /// Counts a block that the upstream resource has taken, with the state that it returned. Returns the
    /// bytes of this block and of older ones that are freed by now.
    pub(super) fn release(
        &self,
        allocation: &Allocation,
        block: BlockId,
        state: BlockState,
        is_retired: impl Fn(BlockId) -> bool,
    ) -> u64 {
        let bytes = allocation.bytes as u64;
        let mut queues = self.queues();
        let freed = if state == BlockState::Freed { queues.free(bytes) } else { 0 };
        if state != BlockState::Freed {
            queues.retired.push_back(Retired { block, bytes });
        }
        queues.released.push_back(allocation.generation);
        let is_full = queues.released.len() > REMEMBERED;
        let forgotten = if is_full { queues.released.pop_front() } else { None };
        drop(queues);
        if let Some(mut guarded) = self.table.get_mut(&allocation.generation) {
            guarded.state = GuardState::Released;
        }
        forgotten.and_then(|generation| self.table.remove(&generation));
        // Two for each that is added, so that few of the queue are freed.
        freed + self.settle(2, is_retired)
    }

    /// Looks at the oldest `most` blocks that are retired upstream, and counts those as freed that are no
    /// longer. Returns their bytes. `is_retired` makes no driver call, so it is called under the lock.
    pub(super) fn settle(&self, most: usize, is_retired: impl Fn(BlockId) -> bool) -> u64 {
        let mut queues = self.queues();
        let mut freed = 0;
        for _ in 0..most.min(queues.retired.len()) {
            let Some(&Retired { block, bytes }) = queues.retired.front() else { break };
            if is_retired(block) {
                queues.retired.rotate_left(1);
            } else {
                queues.retired.pop_front();
                freed += queues.free(bytes);
            }
        }
        freed
    }

    fn count(&self, change: impl FnOnce(&mut Usage)) {
        change(&mut self.queues().usage);
    }

    pub(super) fn usage(&self) -> Usage {
        self.queues().usage
    }

    /// Returns whether the guard has the deallocated block.
    pub(super) fn is_deallocated(&self, generation: Generation) -> bool {
        let guarded = self.table.get(&generation);
        guarded.is_some_and(|guarded| matches!(guarded.state, GuardState::Deallocated))
    }

    /// Returns the allocation of a block that is in the table.
    pub(super) fn find(&self, generation: Generation) -> Option<Arc<Allocation>> {
        self.table.get(&generation).map(|guarded| Arc::clone(&guarded.allocation))
    }

    /// Calls `check` with each live block; returns the first error. Locks a part of the table meanwhile.
    pub(super) fn for_each_live(
        &self,
        mut check: impl FnMut(&WholeBlock, &Arc<Allocation>) -> ResourceResult<()>,
    ) -> ResourceResult<()> {
        let mut outcome = Ok(());
        for guarded in &self.table {
            if let GuardState::Live(whole) = &guarded.state {
                outcome = outcome.and(check(whole, &guarded.allocation));
            }
        }
        outcome
    }
}

/// Windows.
impl Blocks {
    /// Counts windows that are about to be opened: all of them, or none. Windows on blocks that the guard did
    /// not allocate are checked by the upstream resource.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a deallocated block.
    pub(super) fn open_windows(&self, windows: &[Generation]) -> ResourceResult<()> {
        for (index, generation) in windows.iter().enumerate() {
            let Some(mut guarded) = self.table.get_mut(generation) else { continue };
            if !matches!(guarded.state, GuardState::Live(_)) {
                drop(guarded);
                self.close_windows(&windows[..index]);
                return Err(ResourceError::use_after_free(*generation));
            }
            guarded.windows += 1;
        }
        Ok(())
    }

    /// Counts windows that were closed, or that could not be opened.
    pub(super) fn close_windows(&self, windows: &[Generation]) {
        for generation in windows {
            if let Some(mut guarded) = self.table.get_mut(generation) {
                guarded.windows = guarded.windows.saturating_sub(1);
            }
        }
    }

    pub(super) fn has_open_window(&self, generation: Generation) -> bool {
        self.table.get(&generation).is_some_and(|guarded| guarded.windows > 0)
    }
}

/// The queues.
impl Blocks {
    /// Adds a block to the quarantine, as the newest.
    pub(super) fn hold(&self, kept: Kept) {
        let mut queues = self.queues();
        queues.held_bytes += kept.whole.bytes();
        queues.held.push_back(kept);
    }

    pub(super) fn is_over_bound(&self) -> bool {
        let queues = self.queues();
        queues.held_bytes > self.max_bytes || queues.held.len() > self.max_blocks
    }

    /// Takes the oldest block out of the quarantine.
    pub(super) fn take_oldest(&self) -> Option<Kept> {
        let mut queues = self.queues();
        let oldest = queues.held.pop_front()?;
        queues.held_bytes -= oldest.whole.bytes();
        Some(oldest)
    }

    /// Takes all blocks out of the quarantine.
    pub(super) fn take_held(&self) -> VecDeque<Kept> {
        let mut queues = self.queues();
        queues.held_bytes = 0;
        mem::take(&mut queues.held)
    }

    /// Puts blocks back into the quarantine, as the oldest.
    pub(super) fn put_held(&self, mut older: VecDeque<Kept>) {
        let mut queues = self.queues();
        queues.held_bytes += older.iter().map(|kept| kept.whole.bytes()).sum::<usize>();
        older.append(&mut queues.held);
        queues.held = older;
    }

    pub(super) fn queues(&self) -> MutexGuard<'_, Queues> {
        lock(&self.queues)
    }
}

impl Queues {
    /// Counts retired bytes as freed, and returns them.
    fn free(&mut self, bytes: u64) -> u64 {
        self.usage.retired -= bytes;
        self.usage.total_freed += bytes;
        bytes
    }
}
