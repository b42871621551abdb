//! The charge of each live block: its bytes, its account in the tree, and its tag.

use std::collections::HashMap;
use std::sync::OnceLock;

use dmr_core::process::LeakedInChild;
use dmr_core::{AllocTag, Generation, StreamPoolId};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence, lock};

use super::account::AccountId;

/// The charge of each block, so that a block releases what was charged for it and nothing else:
/// whatever its size is by then, and whichever call allocated it.
///
/// Only calls with a block change its charge, so no two threads change an entry at once. A block
/// that passes several resources of one account has the sum.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// The pool whose use table numbers the slots: that of the tree's first resource.
    streams: OnceLock<StreamPoolId>,
    /// By slot in the use table, which no two blocks have at a time.
    by_slot: Slots,
    /// Charges without such a slot, and of a block that a second account is charged for.
    others: LeakedInChild<Mutex<HashMap<Key, Charge>>>,
}

/// The bytes that an account is charged for an item, and the tag that holds them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) account: AccountId,
    pub(super) bytes: u64,
    pub(super) tag: AllocTag,
}

/// An item that an account is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) account: AccountId,
    pub(super) streams: StreamPoolId,
    pub(super) item: Item,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    /// A block, and its slot if its charge is found by that.
    Block(Generation, Option<u32>),
    /// Physical memory, by its handle.
    Memory(u64),
    /// All blocks that were live when a resource was wrapped, and that are charged.
    Existing,
}

impl Charges {
    /// Adds a resource on these streams. Returns whether its blocks are found by their slot.
    pub(super) fn add_resource(&self, streams: StreamPoolId) -> bool {
        *self.streams.get_or_init(|| streams) == streams
    }

    /// Adds to the charge of an item. Returns the charge of a block that had the same slot before
    /// and was deallocated upstream.
    #[inline]
    pub(super) fn add(&self, key: Key, bytes: u64, tag: AllocTag) -> Option<Charge> {
        let Key { account, item, .. } = key;
        if let Item::Block(generation, Some(slot)) = item
            && let Some(entry) = self.by_slot.get(slot)
            && entry.generation() == 0
        {
            // No lock: only the call that has the block writes the entry of its slot.
            entry.set(generation.get(), Charge { account, bytes, tag });
            return None;
        }
        self.add_slowly(key, bytes, tag)
    }

    /// Adds where there is no entry yet, where the entry has a charge, or in the map.
    #[cold]
    #[inline(never)]
    fn add_slowly(&self, key: Key, bytes: u64, tag: AllocTag) -> Option<Charge> {
        let mut charge = Charge { account: key.account, bytes, tag };
        if let Item::Block(generation, Some(slot)) = key.item
            && let Some(entry) = self.by_slot.get_or_make(slot)
        {
            let known = entry.read();
            // A charge of another generation is left of a block that was deallocated upstream.
            let own = known.filter(|(of, _)| *of == generation.get()).map(|(_, charge)| charge);
            if own.is_none_or(|own| own.account == key.account) {
                charge.bytes = charge.bytes.saturating_add(own.map_or(0, |own| own.bytes));
                entry.clear();
                entry.set(generation.get(), charge);
                return known.map(|(_, stale)| stale).filter(|_| own.is_none());
            }
        }
        if let Some(mut others) = self.others() {
            let known = others.entry(key).or_insert(Charge { bytes: 0, ..charge });
            known.bytes = known.bytes.saturating_add(bytes);
        }
        None
    }

    /// Returns what was charged for an item; `None` if that was nothing.
    pub(super) fn get(&self, key: Key) -> Option<u64> {
        match self.entry(key) {
            Some(entry) => Some(entry.bytes.load(Ordering::Relaxed)),
            None => Some(self.others()?.get(&key)?.bytes),
        }
    }

    /// Removes the charge of an item, or up to `bytes` bytes of it if it is in the map; `None` if
    /// it has none.
    #[inline]
    pub(super) fn remove(&self, key: Key, bytes: u64) -> Option<u64> {
        match self.entry(key) {
            Some(entry) => {
                let bytes = entry.bytes.load(Ordering::Relaxed);
                entry.clear();
                Some(bytes)
            }
            None => self.remove_other(key, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_other(&self, key: Key, bytes: u64) -> Option<u64> {
        let mut others = self.others()?;
        let charge = others.get_mut(&key)?;
        let removed = charge.bytes.min(bytes);
        charge.bytes -= removed;
        if charge.bytes == 0 {
            others.remove(&key);
        }
        Some(removed)
    }

    /// Calls `visit` for every charge, with the streams of the block; `None` for physical memory.
    pub(super) fn for_each(&self, mut visit: impl FnMut(Option<StreamPoolId>, Charge)) {
        for entry in self.by_slot.iter() {
            if let Some((_, charge)) = entry.read() {
                visit(self.streams.get().copied(), charge);
            }
        }
        for (key, charge) in self.others().iter().flat_map(|others| others.iter()) {
            let is_memory = matches!(key.item, Item::Memory(_));
            visit((!is_memory).then_some(key.streams), *charge);
        }
    }

    #[inline]
    fn entry(&self, key: Key) -> Option<&Entry> {
        let Item::Block(generation, Some(slot)) = key.item else { return None };
        let entry = self.by_slot.get(slot)?;
        let is_its = entry.generation() == generation.get()
            && entry.account.load(Ordering::Relaxed) == key.account;
        is_its.then_some(entry)
    }

    /// Locks the map. `None` in a forked child, where another thread may have held the lock.
    fn others(&self) -> Option<MutexGuard<'_, HashMap<Key, Charge>>> {
        self.others.current().map(lock)
    }
}

/// An entry for each slot, in chunks that double in size: entries never move.
#[derive(Debug, Default)]
struct Slots([OnceLock<Box<[Entry]>>; 20]);

/// Entries of the first chunk.
const FIRST_CHUNK: usize = 16;

impl Slots {
    /// Returns the chunk of a slot, and its index there.
    #[inline]
    const fn position(slot: u32) -> (usize, usize) {
        let at = slot as usize + FIRST_CHUNK;
        let chunk = (at / FIRST_CHUNK).ilog2() as usize;
        (chunk, at - (FIRST_CHUNK << chunk))
    }

    /// Returns the entry of a slot, if its chunk was made.
    #[inline]
    fn get(&self, slot: u32) -> Option<&Entry> {
        let (chunk, at) = Self::position(slot);
        self.0.get(chunk)?.get()?.get(at)
    }

    /// Returns the entry of a slot; `None` beyond sixteen million slots.
    fn get_or_make(&self, slot: u32) -> Option<&Entry> {
        let (chunk, at) = Self::position(slot);
        let make = || (0..FIRST_CHUNK << chunk).map(|_| Entry::default()).collect();
        self.0.get(chunk)?.get_or_init(make).get(at)
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter_map(OnceLock::get).flatten()
    }
}

/// The charge of the block in one slot. Written by the call that has the block, read by any thread.
///
/// A generation is never used twice. So a reader that finds the same one before and after it has
/// read the rest has read one charge: a field of a later charge is stored after the 0 that ended
/// the one before.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The number of the block's generation, or 0.
    generation: AtomicU64,
    account: AtomicU64,
    bytes: AtomicU64,
    tag: AtomicU64,
}

impl Entry {
    #[inline]
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Sets the charge of an empty entry.
    #[inline]
    pub(super) fn set(&self, generation: u64, charge: Charge) {
        self.account.store(charge.account, Ordering::Release);
        self.bytes.store(charge.bytes, Ordering::Release);
        self.tag.store(tag_number(charge.tag) as u64, Ordering::Release);
        self.generation.store(generation, Ordering::Release);
    }

    #[inline]
    pub(super) fn clear(&self) {
        self.generation.store(0, Ordering::Release);
    }

    /// Returns the generation and the charge; `None` if the entry is empty, or changes meanwhile.
    pub(super) fn read(&self) -> Option<(u64, Charge)> {
        let generation = self.generation.load(Ordering::Acquire);
        let account = self.account.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        let tag = self.tag.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_one = generation != 0 && self.generation() == generation;
        is_one.then(|| (generation, Charge { account, bytes, tag: tag_of(tag as usize) }))
    }
}

/// The tags that entries name by number, at most this many.
const MAX_TAGS: usize = 4096;

/// The number of places that are tried for a tag. One that finds none free is [`AllocTag::OTHER`].
const MAX_PROBES: usize = 64;

/// By the address of the name, or in the first free place after that.
static TAGS: [OnceLock<AllocTag>; MAX_TAGS] = [const { OnceLock::new() }; MAX_TAGS];

/// Returns the number of a tag.
#[inline]
fn tag_number(tag: AllocTag) -> usize {
    let address = tag.name().as_ptr() as usize;
    // Names are rarely closer to each other than eight bytes.
    let first = (address >> 3) ^ (address >> 15);
    let mut numbers = (first..first + MAX_PROBES).map(|at| at % MAX_TAGS);
    let is_its = |at: &usize| std::ptr::eq(TAGS[*at].get_or_init(|| tag).name(), tag.name());
    numbers.find(is_its).unwrap_or(MAX_TAGS)
}

fn tag_of(number: usize) -> AllocTag {
    TAGS.get(number).and_then(OnceLock::get).copied().unwrap_or(AllocTag::OTHER)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_an_entry_of_its_own_and_chunks_have_no_gaps() {
        let mut expected = (0, 0);
        for slot in 0..10_000 {
            assert_eq!(Slots::position(slot), expected, "{slot}");
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let slots = Slots::default();
        assert!(slots.get_or_make(100).is_some() && slots.get(112).is_none());
        assert!(slots.get(111).is_some() && slots.get_or_make(u32::MAX).is_none());
    }
}
