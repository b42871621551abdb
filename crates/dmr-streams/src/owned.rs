//! Which of the blocks in a pool's use table a resource has handed out.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmr_core::{BlockId, BlockSlot, StreamPoolId};

/// The blocks that one resource has handed out, by their slots in the use table of its pool.
///
/// All resources of a pool share the table; this is how one of them knows a block of another's.
/// Slots are found by index, without a lock. With each block goes the slot that it had before it
/// was put into the table, for adaptors.
pub struct OwnedBlocks {
    pool: StreamPoolId,
    /// Part `n` holds `FIRST << n` slots.
    parts: [OnceLock<Box<[Entry]>>; PARTS],
}

struct Entry {
    /// The generation of the block; 0 if there is none.
    generation: AtomicU64,
    inner_slot: AtomicU32,
}

const FIRST: u64 = 256;
/// Enough for every index of a `u32`.
const PARTS: usize = 25;

impl OwnedBlocks {
    /// None yet, of the table of this pool.
    #[must_use]
    pub fn new(pool: StreamPoolId) -> Self {
        Self { pool, parts: [const { OnceLock::new() }; PARTS] }
    }

    /// Remembers a block that is about to be handed out, and the slot that it had before.
    pub fn insert(&self, block: BlockId, inner_slot: BlockSlot) {
        let Some((part, offset, len)) = place(block.slot()) else { return };
        let part = self.parts[part].get_or_init(|| (0..len).map(|_| Entry::empty()).collect());
        let entry = &part[offset];
        entry.inner_slot.store(inner_slot.index().unwrap_or(u32::MAX), Ordering::Relaxed);
        entry.generation.store(block.generation().get(), Ordering::Release);
    }

    /// The slot that the block had before, if this resource has handed it out.
    #[must_use]
    pub fn find(&self, block: BlockId) -> Option<BlockSlot> {
        let entry = self.entry(block)?;
        let ours = entry.generation.load(Ordering::Acquire) == block.generation().get();
        ours.then(|| BlockSlot::new(entry.inner_slot.load(Ordering::Relaxed)))
    }

    /// Forgets a block, before its slot is given to another.
    pub fn remove(&self, block: BlockId) {
        if let Some(entry) = self.entry(block) {
            entry.generation.store(0, Ordering::Relaxed);
        }
    }

    fn entry(&self, block: BlockId) -> Option<&Entry> {
        if block.alloc_stream().pool() != Some(self.pool) {
            return None;
        }
        let (part, offset, _) = place(block.slot())?;
        self.parts[part].get()?.get(offset)
    }
}

impl Entry {
    const fn empty() -> Self {
        Self { generation: AtomicU64::new(0), inner_slot: AtomicU32::new(u32::MAX) }
    }
}

impl fmt::Debug for OwnedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBlocks").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The part that a slot is in, where in it, and how many the part has.
fn place(slot: BlockSlot) -> Option<(usize, usize, usize)> {
    let from_first = u64::from(slot.index()?) + FIRST;
    let part = from_first.ilog2() - FIRST.ilog2();
    let len = FIRST << part;
    Some((part as usize, (from_first - len) as usize, len as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_the_parts_one_after_the_other() {
        let place = |index| place(BlockSlot::new(index)).unwrap();
        assert_eq!(place(0), (0, 0, 256));
        assert_eq!(place(255), (0, 255, 256));
        assert_eq!(place(256), (1, 0, 512));
        assert_eq!(place(767), (1, 511, 512));
        assert_eq!(place(768), (2, 0, 1024));
        let (part, offset, len) = place(u32::MAX - 1);
        assert!(part < PARTS && offset < len);
    }
}
