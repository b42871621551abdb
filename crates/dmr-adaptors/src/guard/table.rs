//! Every block that the guard has allocated or keeps, by generation, and the last few thousand that it
//! kept before.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use dmr_core::sync::lock;
use dmr_core::{DeviceBlock, Generation, ResourceError, WholeBlock};

use super::allocation::Allocation;

const SHARDS: usize = 32;

/// How many blocks are remembered after the upstream resource has them, so that a second `deallocate`
/// is reported as one.
pub(super) const REMEMBERED: usize = 4096;

/// Never locked across a call of the upstream resource or the driver.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<HashMap<Generation, Guarded>>; SHARDS],
    gone: Mutex<Gone>,
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
    /// Live, and taken out by a check of everything.
    Checked,
    Deallocated,
}

#[derive(Debug, Default)]
struct Gone {
    blocks: HashMap<Generation, Arc<Allocation>>,
    order: VecDeque<Generation>,
}

/// A deallocated block, restored to the whole.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) whole: DeviceBlock,
    pub(super) allocation: Arc<Allocation>,
}

/// Why a block is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It was deallocated before.
    Deallocated,
    /// It is a part of a block that is live.
    Part,
    /// This guard did not allocate it.
    Unknown,
}

impl Refusal {
    /// Returns the error for the refused block, from a guard on `device_ordinal`.
    pub(super) fn error(self, block: &DeviceBlock, device_ordinal: usize) -> ResourceError {
        match self {
            Self::Deallocated => ResourceError::use_after_free(block.generation()),
            Self::Part => ResourceError::part_of_block(block),
            Self::Unknown => ResourceError::foreign_block(block, device_ordinal),
        }
    }
}

impl Table {
    pub(super) fn new() -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, gone: Mutex::default() }
    }

    pub(super) fn insert(&self, allocation: Arc<Allocation>, whole: WholeBlock) {
        let generation = allocation.generation;
        let guarded = Guarded { allocation, state: GuardState::Live(whole), windows: 0 };
        self.shard(generation).insert(generation, guarded);
    }

    /// Takes a deallocated block out, and returns whether a window is open on it.
    pub(super) fn take(&self, block: DeviceBlock) -> Result<(Kept, bool), (Refusal, DeviceBlock)> {
        let generation = block.generation();
        let mut shard = self.shard(generation);
        let Some(guarded) = shard.get_mut(&generation) else {
            drop(shard);
            return Err((self.refusal_of_absent(generation), block));
        };
        let whole = match std::mem::replace(&mut guarded.state, GuardState::Deallocated) {
            GuardState::Live(whole) => whole,
            other => {
                guarded.state = other;
                return Err((Refusal::Deallocated, block));
            }
        };
        match whole.restore(block) {
            Ok(whole) => {
                let allocation = Arc::clone(&guarded.allocation);
                Ok((Kept { whole, allocation }, guarded.windows > 0))
            }
            Err((whole, block)) => {
                guarded.state = GuardState::Live(whole);
                Err((Refusal::Part, block))
            }
        }
    }

    /// Returns the reason why [`take`](Self::take) would refuse the block, if it would.
    pub(super) fn refusal(&self, block: &DeviceBlock) -> Option<Refusal> {
        let shard = self.shard(block.generation());
        match shard.get(&block.generation()).map(|guarded| &guarded.state) {
            Some(GuardState::Live(whole)) if whole.has_part(block) => None,
            Some(GuardState::Live(_)) => Some(Refusal::Part),
            Some(GuardState::Checked | GuardState::Deallocated) => Some(Refusal::Deallocated),
            None => {
                drop(shard);
                Some(self.refusal_of_absent(block.generation()))
            }
        }
    }

    fn refusal_of_absent(&self, generation: Generation) -> Refusal {
        let is_remembered = lock(&self.gone).blocks.contains_key(&generation);
        if is_remembered { Refusal::Deallocated } else { Refusal::Unknown }
    }

    /// Makes a block live again whose deallocation failed.
    pub(super) fn put_back(&self, kept: Kept) -> DeviceBlock {
        let Kept { whole, allocation } = kept;
        match whole.narrow(allocation.payload().start, allocation.bytes) {
            Ok((part, whole)) => {
                let generation = allocation.generation;
                if let Some(guarded) = self.shard(generation).get_mut(&generation) {
                    guarded.state = GuardState::Live(whole);
                }
                part
            }
            // Not reached: the same part was narrowed before.
            Err(whole) => whole,
        }
    }

    /// Removes a block that the upstream resource has taken.
    pub(super) fn remove(&self, allocation: &Arc<Allocation>) {
        let generation = allocation.generation;
        {
            let mut gone = lock(&self.gone);
            gone.blocks.insert(generation, Arc::clone(allocation));
            gone.order.push_back(generation);
            if gone.order.len() > REMEMBERED
                && let Some(oldest) = gone.order.pop_front()
            {
                gone.blocks.remove(&oldest);
            }
        }
        self.shard(generation).remove(&generation);
    }

    /// Returns whether the block was deallocated and the upstream resource does not have it yet.
    pub(super) fn is_deallocated(&self, generation: Generation) -> bool {
        let shard = self.shard(generation);
        let guarded = shard.get(&generation);
        guarded.is_some_and(|guarded| matches!(guarded.state, GuardState::Deallocated))
    }

    pub(super) fn has_open_window(&self, generation: Generation) -> bool {
        self.shard(generation).get(&generation).is_some_and(|guarded| guarded.windows > 0)
    }

    /// Counts a window that is about to be opened; `false` if the block was deallocated. A block that
    /// the guard did not allocate is checked by the upstream resource.
    pub(super) fn open_window(&self, generation: Generation) -> bool {
        match self.shard(generation).get_mut(&generation) {
            Some(Guarded { state: GuardState::Deallocated, .. }) => false,
            Some(guarded) => {
                guarded.windows += 1;
                true
            }
            None => true,
        }
    }

    /// Counts a window that was closed, or that could not be opened.
    pub(super) fn close_window(&self, generation: Generation) {
        if let Some(guarded) = self.shard(generation).get_mut(&generation) {
            guarded.windows = guarded.windows.saturating_sub(1);
        }
    }

    pub(super) fn find(&self, generation: Generation) -> Option<Arc<Allocation>> {
        let guarded = self.shard(generation);
        let here = guarded.get(&generation).map(|guarded| Arc::clone(&guarded.allocation));
        drop(guarded);
        here.or_else(|| lock(&self.gone).blocks.get(&generation).cloned())
    }

    /// Takes all live blocks out for a check. Each is returned by [`put_checked`](Self::put_checked).
    pub(super) fn take_live(&self) -> Vec<(WholeBlock, Arc<Allocation>)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            for guarded in lock(shard).values_mut() {
                match std::mem::replace(&mut guarded.state, GuardState::Checked) {
                    GuardState::Live(whole) => {
                        taken.push((whole, Arc::clone(&guarded.allocation)));
                    }
                    other => guarded.state = other,
                }
            }
        }
        taken
    }

    pub(super) fn put_checked(&self, whole: WholeBlock, allocation: &Allocation) {
        if let Some(guarded) = self.shard(allocation.generation).get_mut(&allocation.generation) {
            guarded.state = GuardState::Live(whole);
        }
    }

    fn shard(&self, generation: Generation) -> MutexGuard<'_, HashMap<Generation, Guarded>> {
        lock(&self.shards[(generation.get() % SHARDS as u64) as usize])
    }
}
