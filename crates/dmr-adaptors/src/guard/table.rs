//! Every block that the guard has handed out or keeps, by generation; and a memory of those that
//! it had.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmr_core::{DeviceBlock, Generation, WholeBlock};

use super::allocation::Allocation;

const SHARDS: usize = 32;

/// How many blocks that have left are remembered, so that giving them back again is called what
/// it is.
pub(super) const REMEMBERED: usize = 4096;

/// Never locked across a call of the inner resource or the driver.
#[derive(Debug)]
pub(super) struct Table {
    shards: [Mutex<HashMap<Generation, Entry>>; SHARDS],
    gone: Mutex<Gone>,
}

#[derive(Debug)]
struct Entry {
    allocation: Arc<Allocation>,
    place: Place,
    /// Windows that were opened through the guard and are not closed.
    windows: usize,
}

#[derive(Debug)]
enum Place {
    Live(WholeBlock),
    /// Live, and in the hand of a check of everything.
    Checked,
    GivenBack,
}

#[derive(Debug, Default)]
struct Gone {
    blocks: HashMap<Generation, Arc<Allocation>>,
    order: VecDeque<Generation>,
}

/// A block that was given back, made whole again.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) whole: DeviceBlock,
    pub(super) allocation: Arc<Allocation>,
}

/// Why a block is not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It was given back before.
    GivenBack,
    /// It is not known.
    Unknown,
}

impl Table {
    pub(super) fn new() -> Self {
        let shards = std::array::from_fn(|_| Mutex::default());
        Self { shards, gone: Mutex::default() }
    }

    pub(super) fn insert(&self, allocation: Arc<Allocation>, whole: WholeBlock) {
        let generation = allocation.generation;
        let entry = Entry { allocation, place: Place::Live(whole), windows: 0 };
        self.shard(generation).insert(generation, entry);
    }

    /// Takes a block back from its owner, and answers whether a window is open on it.
    pub(super) fn take(&self, block: DeviceBlock) -> Result<(Kept, bool), (Refusal, DeviceBlock)> {
        let generation = block.generation();
        let mut shard = self.shard(generation);
        let Some(entry) = shard.get_mut(&generation) else {
            drop(shard);
            let known = lock(&self.gone).blocks.contains_key(&generation);
            return Err((if known { Refusal::GivenBack } else { Refusal::Unknown }, block));
        };
        let whole = match std::mem::replace(&mut entry.place, Place::GivenBack) {
            Place::Live(whole) => whole,
            other => {
                entry.place = other;
                return Err((Refusal::GivenBack, block));
            }
        };
        match whole.restore(block) {
            Ok(whole) => {
                let allocation = Arc::clone(&entry.allocation);
                Ok((Kept { whole, allocation }, entry.windows > 0))
            }
            Err((whole, block)) => {
                entry.place = Place::Live(whole);
                Err((Refusal::Unknown, block))
            }
        }
    }

    /// The block is its owner's after all.
    pub(super) fn put_back(&self, kept: Kept) -> DeviceBlock {
        let Kept { whole, allocation } = kept;
        match whole.narrow(allocation.payload().start, allocation.bytes) {
            Ok((part, whole)) => {
                let generation = allocation.generation;
                if let Some(entry) = self.shard(generation).get_mut(&generation) {
                    entry.place = Place::Live(whole);
                }
                part
            }
            // It could be narrowed before.
            Err(whole) => whole,
        }
    }

    /// The block has gone to the inner resource.
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

    /// Whether the block was given back and has not gone yet.
    pub(super) fn is_given_back(&self, generation: Generation) -> bool {
        let shard = self.shard(generation);
        shard.get(&generation).is_some_and(|entry| matches!(entry.place, Place::GivenBack))
    }

    pub(super) fn has_open_window(&self, generation: Generation) -> bool {
        self.shard(generation).get(&generation).is_some_and(|entry| entry.windows > 0)
    }

    /// Counts a window that is about to be opened; `false` if the block was given back. A block
    /// that is not known is for the inner resource to judge.
    pub(super) fn open_window(&self, generation: Generation) -> bool {
        match self.shard(generation).get_mut(&generation) {
            Some(Entry { place: Place::GivenBack, .. }) => false,
            Some(entry) => {
                entry.windows += 1;
                true
            }
            None => true,
        }
    }

    /// A window is closed, or was not opened after all.
    pub(super) fn close_window(&self, generation: Generation) {
        if let Some(entry) = self.shard(generation).get_mut(&generation) {
            entry.windows = entry.windows.saturating_sub(1);
        }
    }

    pub(super) fn find(&self, generation: Generation) -> Option<Arc<Allocation>> {
        let here =
            self.shard(generation).get(&generation).map(|entry| Arc::clone(&entry.allocation));
        here.or_else(|| lock(&self.gone).blocks.get(&generation).cloned())
    }

    /// Everything that is handed out, to look at; each goes back by
    /// [`put_checked`](Self::put_checked).
    pub(super) fn take_live(&self) -> Vec<(WholeBlock, Arc<Allocation>)> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            for entry in lock(shard).values_mut() {
                match std::mem::replace(&mut entry.place, Place::Checked) {
                    Place::Live(whole) => taken.push((whole, Arc::clone(&entry.allocation))),
                    other => entry.place = other,
                }
            }
        }
        taken
    }

    pub(super) fn put_checked(&self, whole: WholeBlock, allocation: &Allocation) {
        if let Some(entry) = self.shard(allocation.generation).get_mut(&allocation.generation) {
            entry.place = Place::Live(whole);
        }
    }

    fn shard(&self, generation: Generation) -> MutexGuard<'_, HashMap<Generation, Entry>> {
        lock(&self.shards[(generation.get() % SHARDS as u64) as usize])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
