//! Hints about an arena that other threads read without its lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmr_streams::SpinLockGuard;

use super::State;

/// Bytes by which the hint of an arena's live bytes may always be wrong, so that a small block that is
/// allocated and freed again and again does not change the hint each time.
const TOLERANCE: u64 = 256 << 10;

/// The state of the arena when it was last unlocked, approximately. Other threads read it without the
/// lock; it has a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Hints {
    /// A size in the bin of the largest free chunk; 0 if there is none.
    pub(super) largest: AtomicU32,
    /// 1 if there are pending chunks.
    pub(super) pending: AtomicU32,
    /// Bytes of live blocks, up to 1 part in 2 to the power of [`State::exactness`], or to
    /// [`TOLERANCE`].
    pub(super) live: AtomicU64,
    /// Bytes of all blocks so far, when the hints were last updated.
    pub(super) allocated: AtomicU64,
}

/// A locked arena's state. Updates the hints when it is unlocked.
pub(crate) struct Locked<'a> {
    pub(super) state: SpinLockGuard<'a, State>,
    pub(super) hints: &'a Hints,
}

impl Drop for Locked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(test)]
        crate::work::unlocks();
        let live = self.state.counts.live();
        if live.wrapping_sub(self.state.live_from) > self.state.live_range {
            self.update_live(live);
        }
        if self.state.heap.has_changed() {
            self.update_hints();
        }
    }
}

impl Locked<'_> {
    /// Updates the hints that follow from the counts.
    #[inline]
    fn update_live(&mut self, live: u64) {
        let (state, hints) = (&mut *self.state, self.hints);
        hints.live.store(live, Ordering::Relaxed);
        hints.allocated.store(state.counts.allocated, Ordering::Relaxed);
        let tolerance = (live >> state.exactness).max(TOLERANCE);
        state.live_from = live.saturating_sub(tolerance);
        state.live_range = live + tolerance - state.live_from;
    }

    /// Updates the hints that follow from the free and the pending chunks.
    #[inline(never)]
    fn update_hints(&mut self) {
        let (state, hints) = (&mut *self.state, self.hints);
        store_if_changed(&hints.largest, state.heap.largest());
        store_if_changed(&hints.pending, u32::from(!state.pending.is_empty()));
        hints.allocated.store(state.counts.allocated, Ordering::Relaxed);
        state.heap.clear_changed();
    }
}

/// Stores a hint if it has changed: each store costs the threads that read it a cache miss.
#[inline]
fn store_if_changed(hint: &AtomicU32, now: u32) {
    if hint.load(Ordering::Relaxed) != now {
        hint.store(now, Ordering::Relaxed);
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
