//! Who holds how much, by tag: counters of one thread, and their sum.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::AllocTag;
use dmr_core::error::Holder;

/// How many tags a thread counts apart. Those that come later count as [`AllocTag::OTHER`].
const TAGS: usize = 64;

/// What the holder of bytes that were out before the budget was there is called.
pub(super) const BEFORE: AllocTag = AllocTag::new("(before the budget)");

/// The counters of one thread, which alone writes them: a load and a store each.
///
/// A block that another thread frees makes that thread's count negative (it wraps); the sum over
/// all threads is right.
#[derive(Debug)]
pub(super) struct TagTable {
    /// Found by the address of the tag's name.
    slots: Box<[Slot; TAGS]>,
    other: Slot,
}

/// A line, so that none is on two.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    tag: OnceLock<AllocTag>,
    bytes: AtomicU64,
    blocks: AtomicU64,
}

impl Default for TagTable {
    fn default() -> Self {
        Self { slots: Box::new(std::array::from_fn(|_| Slot::default())), other: Slot::default() }
    }
}

impl TagTable {
    /// A block was charged.
    #[inline]
    pub(super) fn add(&self, tag: AllocTag, bytes: u64) {
        self.slot(tag).change(bytes, 1);
    }

    /// A block has become larger.
    pub(super) fn grow(&self, tag: AllocTag, more_bytes: u64) {
        self.slot(tag).change(more_bytes, 0);
    }

    /// A block is freed.
    #[inline]
    pub(super) fn remove(&self, tag: AllocTag, bytes: u64) {
        self.slot(tag).change(bytes.wrapping_neg(), u64::MAX);
    }

    /// Adds everything to a sum.
    pub(super) fn sum_into(&self, sums: &mut TagSums) {
        for slot in self.slots.iter() {
            if let Some(tag) = slot.tag.get() {
                sums.change(*tag, slot.bytes(), slot.blocks());
            }
        }
        sums.change(AllocTag::OTHER, self.other.bytes(), self.other.blocks());
    }

    #[inline]
    fn slot(&self, tag: AllocTag) -> &Slot {
        let slot = &self.slots[Self::first(tag)];
        if slot.is_of(tag) { slot } else { self.look_up(tag) }
    }

    /// Where a tag is, or in the first free slot after it. Names are rarely closer to each other
    /// than eight bytes.
    #[inline]
    fn first(tag: AllocTag) -> usize {
        let address = tag.name().as_ptr() as usize;
        ((address >> 3) ^ (address >> 11)) % TAGS
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self, tag: AllocTag) -> &Slot {
        let (before, from) = self.slots.split_at(Self::first(tag));
        let mut slots = from.iter().chain(before);
        let is_its = |slot: &&Slot| {
            slot.tag.get_or_init(|| tag);
            slot.is_of(tag)
        };
        slots.find(is_its).unwrap_or(&self.other)
    }
}

impl Slot {
    #[inline]
    fn is_of(&self, tag: AllocTag) -> bool {
        self.tag.get().is_some_and(|known| std::ptr::eq(known.name(), tag.name()))
    }

    #[inline]
    fn change(&self, bytes: u64, blocks: u64) {
        self.bytes.store(self.bytes().wrapping_add(bytes), Ordering::Relaxed);
        self.blocks.store(self.blocks().wrapping_add(blocks), Ordering::Relaxed);
    }

    #[inline]
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
}

/// Sums over threads and accounts; the same name is the same tag.
#[derive(Clone, Debug, Default)]
pub(super) struct TagSums(HashMap<AllocTag, (u64, u64)>);

impl TagSums {
    /// Adds to a tag's bytes and blocks; both wrap, so that one can take away, too.
    pub(super) fn change(&mut self, tag: AllocTag, bytes: u64, blocks: u64) {
        let sum = self.0.entry(tag).or_default();
        *sum = (sum.0.wrapping_add(bytes), sum.1.wrapping_add(blocks));
    }

    pub(super) fn add(&mut self, tag: AllocTag, bytes: u64) {
        self.change(tag, bytes, 1);
    }

    pub(super) fn remove(&mut self, tag: AllocTag, bytes: u64) {
        self.change(tag, bytes.wrapping_neg(), u64::MAX);
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        for (tag, (bytes, blocks)) in &other.0 {
            self.change(*tag, *bytes, *blocks);
        }
    }

    /// Who holds something, most bytes first.
    pub(super) fn holders(mut self) -> Vec<Holder> {
        // A tag of which more was freed than allocated had blocks before the budget was there.
        let more_freed = self.0.values().map(|(bytes, _)| (*bytes as i64).min(0).unsigned_abs());
        let freed = more_freed.fold(0, u64::saturating_add);
        if let Some((bytes, _)) = self.0.get_mut(&BEFORE) {
            *bytes = bytes.saturating_sub(freed);
        }
        let held = self.0.into_iter().filter(|(_, (bytes, _))| *bytes as i64 > 0);
        let mut holders: Vec<_> = held
            .map(|(tag, (bytes, blocks))| {
                let blocks = if blocks as i64 > 0 { blocks } else { 0 };
                Holder { tag, bytes, blocks }
            })
            .collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.tag.cmp(&b.tag)));
        holders
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sums_are_by_name_over_threads_and_frees_elsewhere() {
        let (a, b) = (TagTable::default(), TagTable::default());
        let (x, y) = (AllocTag::new("x"), AllocTag::intern(&String::from("y")));
        a.add(x, 100);
        a.add(y, 10);
        b.remove(x, 100);
        b.add(AllocTag::UNTAGGED, 7);
        let mut sums = TagSums::default();
        a.sum_into(&mut sums);
        b.sum_into(&mut sums);
        let holder = |tag, bytes| Holder { tag, bytes, blocks: 1 };
        assert_eq!(sums.holders(), [holder(y, 10), holder(AllocTag::UNTAGGED, 7)]);
    }

    #[test]
    fn more_tags_than_a_thread_counts_are_other() {
        let table = TagTable::default();
        let tags: Vec<_> = (0..2 * TAGS).map(|i| AllocTag::intern(&format!("many {i}"))).collect();
        tags.iter().for_each(|tag| table.add(*tag, 3));
        let mut sums = TagSums::default();
        table.sum_into(&mut sums);
        let holders = sums.clone().holders();
        assert_eq!(holders[0].tag, AllocTag::OTHER);
        assert_eq!(holders.iter().map(|h| h.bytes).sum::<u64>(), 6 * TAGS as u64);
        tags.iter().for_each(|tag| table.remove(*tag, 3));
        let mut sums = TagSums::default();
        table.sum_into(&mut sums);
        assert_eq!(sums.holders(), []);
    }
}
