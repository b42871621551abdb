//! The free slots of one home stream.

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, lock};

/// Numbers of slots that no block has.
///
/// One of them is kept outside of the lock, for streams that free a block before they allocate the
/// next. The slots' contents need no order from here: each has a lock of its own.
pub(super) struct FreeList {
    spare: AtomicU32,
    rest: Mutex<Vec<u32>>,
}

/// No slot has this number.
const NONE: u32 = u32::MAX;

impl FreeList {
    pub(super) fn new() -> Self {
        Self { spare: AtomicU32::new(NONE), rest: Mutex::new(Vec::new()) }
    }

    /// The one outside of the lock, if it is there.
    #[inline]
    pub(super) fn take_spare(&self) -> Option<u32> {
        if self.spare.load(Ordering::Relaxed) == NONE {
            return None;
        }
        Some(self.spare.swap(NONE, Ordering::AcqRel)).filter(|index| *index != NONE)
    }

    /// The others.
    pub(super) fn rest(&self) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.rest)
    }

    #[inline]
    pub(super) fn put(&self, index: u32) {
        let is_spare = self.spare.load(Ordering::Relaxed) == NONE
            && self
                .spare
                .compare_exchange(NONE, index, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if !is_spare {
            self.rest().push(index);
        }
    }
}
