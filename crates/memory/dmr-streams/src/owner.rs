//! The right to put blocks into the use table and to take them out.

use std::sync::Arc;

use dmr_core::StreamPoolId;

use crate::StreamPool;
use crate::uses::{ClosedQueue, ClosedQueues, OwnerNumber};

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
