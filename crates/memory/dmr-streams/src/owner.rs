//! The right to put blocks into the use table and to take them out.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dmr_core::StreamPoolId;

use crate::StreamPool;
use crate::uses::{ClosedQueue, ClosedQueues};

/// The right to put blocks into slots of a [`StreamPool`]'s use table, and to take those blocks out
/// again: from [`StreamPool::register`].
///
/// All resources of a stream pool share one use table. Each has an owner of its own, and changes no
/// slot of another's. An owner cannot be copied, so nothing but its resource can take that
/// resource's blocks out, reset what the table remembers of them, or put another block in their
/// place.
///
/// ```compile_fail
/// fn take_another(owner: &dmr_streams::BlockOwner) -> dmr_streams::BlockOwner {
///     owner.clone()
/// }
/// ```
///
/// Nothing is taken out with the id of a block alone:
///
/// ```compile_fail
/// # fn remove(streams: &dmr_streams::StreamPool, block: dmr_core::BlockId) {
/// streams.uses().release(block, &mut Default::default());
/// # }
/// ```
#[derive(Debug)]
pub struct BlockOwner {
    number: OwnerNumber,
    pool: StreamPoolId,
    closed: Arc<ClosedQueue>,
}

/// The number of a [`BlockOwner`], as it stands in the slots of its blocks. Unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerNumber(NonZeroU64);

impl OwnerNumber {
    pub(crate) fn new() -> Self {
        static ISSUED: AtomicU64 = AtomicU64::new(1);
        // At one per nanosecond it wraps to 0 after 580 years.
        let number = ISSUED.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MAX))
    }
}

impl BlockOwner {
    /// Makes an owner in the pool whose closed queues these are.
    pub(crate) fn new(pool: StreamPoolId, queues: &ClosedQueues) -> Self {
        let number = OwnerNumber::new();
        Self { number, pool, closed: queues.add(number) }
    }

    /// Returns the queue of its retired blocks whose last window has closed.
    pub(crate) fn closed(&self) -> &Arc<ClosedQueue> {
        &self.closed
    }

    #[inline]
    pub(crate) fn number(&self) -> OwnerNumber {
        self.number
    }

    /// Returns the pool whose use table it puts blocks into.
    #[must_use]
    #[inline]
    pub fn pool(&self) -> StreamPoolId {
        self.pool
    }
}

impl StreamPool {
    /// Returns a new owner of blocks in the use table of this pool. It owns no block yet.
    #[must_use]
    pub fn register(&self) -> BlockOwner {
        BlockOwner::new(self.id(), self.closed_queues())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_two_owners_have_the_same_number() {
        assert_ne!(OwnerNumber::new(), OwnerNumber::new());
    }
}
