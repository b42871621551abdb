//! What each live block was charged, and to which account of a tree.

use std::collections::HashMap;
use std::sync::OnceLock;

use dmr_core::process::LeakedInChild;
use dmr_core::{BlockId, Generation, Process, StreamPoolId};

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::table::{LAST, Table};

use super::books::AccountId;

/// The charge of each block, so that a block gives back what was charged for it and nothing else:
/// whatever its size is by then, and wherever it came from.
///
/// Only calls with a block change its charge, so no two threads change an entry at once. A block that
/// passes several resources of one account has the sum.
#[derive(Debug)]
pub(super) struct Charges {
    /// The pool whose use table numbers the slots: that of the tree's first resource.
    streams: OnceLock<StreamPoolId>,
    /// By slot in the use table, which no two blocks have at a time.
    by_slot: Table<Entry>,
    /// Of blocks without such a slot, and of a block that a second account is charged for.
    others: LeakedInChild<[Mutex<HashMap<Key, u64>>; SHARDS]>,
    made_in: Process,
}

const SHARDS: usize = 16;

/// A block, for an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    generation: Generation,
    account: AccountId,
}

/// A block of a resource, for an account.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    key: Key,
    /// Where its charge is found; `None` for the map.
    slot: Option<u32>,
}

impl Place {
    /// `by_slot`: whether the blocks of the resource are found by their slot.
    #[inline]
    pub(super) fn new(account: AccountId, block: BlockId, by_slot: bool) -> Self {
        let slot = block.slot().index().filter(|index| by_slot && (*index as usize) < LAST);
        Self { key: Key { generation: block.generation(), account }, slot }
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// The number of the block's generation, or 0.
    generation: AtomicU64,
    account: AtomicU64,
    bytes: AtomicU64,
}

/// The charge of a block that was not deallocated through a budget and is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) account: AccountId,
    pub(super) bytes: u64,
}

impl Charges {
    pub(super) fn new() -> Self {
        Self {
            streams: OnceLock::new(),
            by_slot: Table::new(),
            others: LeakedInChild::default(),
            made_in: Process::current(),
        }
    }

    /// Adds a resource on these streams. Returns whether its blocks are found by their slot.
    pub(super) fn add_resource(&self, streams: StreamPoolId) -> bool {
        *self.streams.get_or_init(|| streams) == streams
    }

    /// Adds to the charge of a block. Returns the charge of a block that had the same slot before and was
    /// deallocated elsewhere.
    #[inline]
    pub(super) fn add(&self, place: Place, bytes: u64) -> Option<Lost> {
        let entry = place.slot.and_then(|slot| self.by_slot.get(slot as usize));
        let Some(entry) = entry.filter(|entry| entry.generation.load(Ordering::Relaxed) == 0)
        else {
            return self.add_slowly(place, bytes);
        };
        entry.generation.store(place.key.generation.get(), Ordering::Relaxed);
        entry.account.store(place.key.account, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        None
    }

    /// Adds where there is no entry yet, where the entry has a charge, or in the map.
    #[cold]
    #[inline(never)]
    fn add_slowly(&self, place: Place, bytes: u64) -> Option<Lost> {
        let Some(slot) = place.slot else {
            self.add_other(place.key, bytes);
            return None;
        };
        let entry = self.by_slot.get_or_make(slot as usize);
        let Key { generation, account } = place.key;
        let known = entry.generation.load(Ordering::Relaxed);
        let before = Lost {
            account: entry.account.load(Ordering::Relaxed),
            bytes: entry.bytes.load(Ordering::Relaxed),
        };
        let is_its = known == generation.get();
        if is_its && before.account != account {
            self.add_other(place.key, bytes);
            return None;
        }
        let own = if is_its { before.bytes } else { 0 };
        entry.generation.store(generation.get(), Ordering::Relaxed);
        entry.account.store(account, Ordering::Relaxed);
        entry.bytes.store(own.saturating_add(bytes), Ordering::Relaxed);
        (known != 0 && !is_its).then_some(before)
    }

    fn add_other(&self, key: Key, bytes: u64) {
        self.in_others(key, |charges| {
            *charges.entry(key).or_default() += bytes;
            Some(())
        });
    }

    /// Returns what was charged for a block; `None` if that was nothing.
    pub(super) fn get(&self, place: Place) -> Option<u64> {
        match self.entry(place) {
            Some(entry) => Some(entry.bytes.load(Ordering::Relaxed)),
            None => self.in_others(place.key, |charges| charges.get(&place.key).copied()),
        }
    }

    /// Removes the charge of a block that is about to be deallocated; `None` if it has none.
    #[inline]
    pub(super) fn take(&self, place: Place) -> Option<u64> {
        match self.entry(place) {
            Some(entry) => {
                entry.generation.store(0, Ordering::Relaxed);
                Some(entry.bytes.load(Ordering::Relaxed))
            }
            None => self.take_other(place.key),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_other(&self, key: Key) -> Option<u64> {
        self.in_others(key, |charges| charges.remove(&key))
    }

    #[inline]
    fn entry(&self, place: Place) -> Option<&Entry> {
        let entry = self.by_slot.get(place.slot? as usize)?;
        let is_its = entry.generation.load(Ordering::Relaxed) == place.key.generation.get()
            && entry.account.load(Ordering::Relaxed) == place.key.account;
        is_its.then_some(entry)
    }

    /// Looks in the map. `None` in a forked child, where another thread may have held the lock.
    fn in_others<T>(
        &self,
        key: Key,
        look: impl FnOnce(&mut HashMap<Key, u64>) -> Option<T>,
    ) -> Option<T> {
        if !self.made_in.is_current() {
            return None;
        }
        look(&mut lock(&self.others[(key.generation.get() % SHARDS as u64) as usize]))
    }
}
