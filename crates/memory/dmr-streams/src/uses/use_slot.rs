//! A use slot: its state, and the one word that is its lock and says which block is in it.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use dmr_core::spinlock::pause;

use super::slot_state::SlotState;
use crate::sync::{AtomicU64, Ordering};

/// A use slot.
pub(super) struct UseSlot {
    /// The number of the block's generation, and the marks below.
    word: AtomicU64,
    index: u32,
    state: UnsafeCell<SlotState>,
}

// SAFETY: the state is reached by the thread only that has set `LOCKED`, or has the `FreeSlot` of a
// free slot.
unsafe impl Sync for UseSlot {}

/// The slot has no block, and the number is that of its last one. Only the holder of its
/// `FreeSlot` reaches the state.
///
/// No generation has a number with one of these bits: at one per nanosecond, that would be after 73
/// years.
const FREE: u64 = 1 << 63;
/// A thread has locked the slot.
const LOCKED: u64 = 1 << 62;
/// The block was released and has not left the slot.
const RETIRED: u64 = 1 << 61;

// With its word it fills two cache lines.
const _: () = assert!(size_of::<CachePadded<UseSlot>>() <= 128 || cfg!(loom));

/// A slot that this thread has locked, or that is free and was resumed. Unlocked when dropped.
pub(super) struct LockedSlot<'s> {
    slot: &'s UseSlot,
    /// The word of the slot once this is dropped.
    word: u64,
}

impl UseSlot {
    pub(super) fn empty(index: usize) -> Self {
        let state = UnsafeCell::new(SlotState::empty());
        Self { word: AtomicU64::new(FREE), index: index as u32, state }
    }

    /// Locks the slot, if the block of this generation is in it and not retired, and no other
    /// thread has locked it.
    #[inline(always)]
    pub(super) fn try_lock_live(&self, generation: u64) -> Option<LockedSlot<'_>> {
        if self.exchange(generation) {
            Some(LockedSlot { slot: self, word: generation })
        } else {
            None
        }
    }

    /// Locks the slot, if the block of this generation is in it, also if it is retired.
    #[inline]
    pub(super) fn lock_of(&self, generation: u64) -> Option<LockedSlot<'_>> {
        match self.try_lock_live(generation) {
            None => self.lock_slowly(generation),
            locked => locked,
        }
    }

    /// Locks the slot, if it has a block.
    pub(super) fn lock_occupied(&self) -> Option<LockedSlot<'_>> {
        let word = self.word.load(Ordering::Relaxed);
        if word & FREE != 0 { None } else { self.lock_of(word & !(LOCKED | RETIRED)) }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self, generation: u64) -> Option<LockedSlot<'_>> {
        let mut attempts = 0;
        loop {
            // Acquire: a thread that finds another block here comes after the one that put it here.
            let word = self.word.load(Ordering::Acquire);
            if word & !(LOCKED | RETIRED) != generation {
                return None;
            }
            if word & LOCKED == 0 && self.exchange(word) {
                return Some(LockedSlot { slot: self, word });
            }
            pause(attempts);
            attempts += 1;
        }
    }

    /// Locks the slot if this is its word.
    #[inline(always)]
    fn exchange(&self, word: u64) -> bool {
        // Acquire: writes of earlier holders are visible.
        let acquire = Ordering::Acquire;
        self.word.compare_exchange(word, word | LOCKED, acquire, Ordering::Relaxed).is_ok()
    }

    /// Returns access to a free slot.
    ///
    /// # Safety
    ///
    /// The caller has consumed the `FreeSlot`, and what its earlier holders have written happens
    /// before this call.
    #[inline(always)]
    pub(super) unsafe fn resume(&self) -> LockedSlot<'_> {
        LockedSlot { slot: self, word: self.word.load(Ordering::Relaxed) }
    }
}

impl LockedSlot<'_> {
    #[inline(always)]
    pub(super) fn slot(&self) -> NonNull<UseSlot> {
        NonNull::from(self.slot)
    }

    /// Returns its index in the table.
    #[inline(always)]
    pub(super) fn index(&self) -> u32 {
        self.slot.index
    }

    #[inline(always)]
    pub(super) fn is_retired(&self) -> bool {
        self.word & RETIRED != 0
    }

    /// Returns the number of the generation of its block.
    pub(super) fn generation(&self) -> u64 {
        self.word & !RETIRED
    }

    /// Retires its block.
    pub(super) fn retire(&mut self) {
        self.word |= RETIRED;
    }

    /// Puts the block of this generation into it.
    #[inline(always)]
    pub(super) fn set_block(&mut self, generation: u64) {
        self.word = generation;
    }

    /// Removes its block.
    #[inline(always)]
    pub(super) fn set_free(&mut self) {
        self.word = self.word & !RETIRED | FREE;
    }

    /// Puts its last block into it again.
    pub(super) fn set_last_block(&mut self) {
        self.word &= !FREE;
    }

    /// Forgets its last block.
    pub(super) fn forget_block(&mut self) {
        self.word = FREE;
    }
}

impl Deref for LockedSlot<'_> {
    type Target = SlotState;

    #[inline(always)]
    fn deref(&self) -> &SlotState {
        // SAFETY: the slot is locked for this value.
        unsafe { &*self.slot.state.get() }
    }
}

impl DerefMut for LockedSlot<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut SlotState {
        // SAFETY: as above.
        unsafe { &mut *self.slot.state.get() }
    }
}

impl Drop for LockedSlot<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.word.store(self.word, Ordering::Release);
    }
}
