//! The use table: the uses of blocks on streams, and the waits that follow from them.
//!
//! One table serves the streams of a pool and all memory that is used on them: blocks of any
//! resource that tracks uses, and pinned memory. It has a use slot for each; a [`BlockId`] contains
//! the index of the slot, and its generation shows whether the slot is still that block's. A
//! look-up takes an index, no hash and no lock that users of another block take.
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`windows`] | preparing, finishing and cancelling uses, by any caller |
//! | [`free_slot`] | the life of a slot, by its owner |
//! | [`dependencies`] | the work that freed memory comes after |
//! | [`in_use`], [`pending_queue`], [`pending_frees`] | memory that is released and cannot be freed yet |
//! | `slots`, `use_slot`, `slot_state`, `parts` | the slots, the word that locks one, the windows and uses in it, and those of parts of a block; make no driver call |

mod closed;
mod covering;
pub mod dependencies;
pub mod free_slot;
pub mod in_use;
mod needs;
mod parts;
pub mod pending_frees;
pub mod pending_queue;
mod slot_state;
mod slots;
mod use_slot;
pub mod windows;

use dmr_core::ledger::UseId;
use dmr_core::{BlockId, ResourceResult, StreamId};

use crate::StreamPool;
use crate::progress::Progress;

pub use crate::progress::RecordedEvent;
pub(crate) use closed::{ClosedQueue, ClosedQueues, OwnerNumber};
pub use dependencies::{Dependencies, DependencyOrder};
pub use free_slot::{FreeSlot, LockedBlock, Released, ReleasedBlock};
pub use in_use::{BlocksInUse, Patience};
pub use pending_frees::{PendingAmount, PendingFrees};
pub use pending_queue::{Pending, PendingQueue};
pub(crate) use slot_state::Launches;
pub(crate) use slots::Slots;

/// The uses of all blocks and pinned memory on a pool's streams: [`StreamPool::uses`].
#[derive(Clone, Copy, Debug)]
pub struct UseTable<'p> {
    pool: &'p StreamPool,
}

impl StreamPool {
    /// Returns the uses of blocks and pinned buffers on these streams.
    #[must_use]
    #[inline]
    pub fn uses(&self) -> UseTable<'_> {
        UseTable::of(self)
    }
}

impl<'p> UseTable<'p> {
    #[inline]
    pub(crate) fn of(pool: &'p StreamPool) -> Self {
        Self { pool }
    }

    /// Returns whether the block was released and its memory is not free yet. `false` in a forked
    /// child.
    #[must_use]
    pub fn is_retired(&self, block: BlockId) -> bool {
        !self.pool.device().is_forked() && self.slots().is_retired(block)
    }

    /// Returns whether a use of the block has been prepared and not finished. `false` in a forked
    /// child.
    #[must_use]
    pub fn has_open_window(&self, block: BlockId) -> bool {
        !self.pool.device().is_forked() && self.slots().has_open_window(block, self.launches())
    }

    /// Returns the number of recorded uses in all ledgers. For diagnoses: looks at every slot.
    #[must_use]
    pub fn recorded_uses(&self) -> usize {
        if self.pool.device().is_forked() {
            return 0;
        }
        self.slots().count_uses(self.launches())
    }

    /// Returns the number of slots that streams were given, for good. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn given_slots(&self) -> usize {
        self.slots().given()
    }

    /// Makes the work submitted to a block's home stream so far a part of its allocation. For a
    /// layer that fills fresh memory before it returns the block. Returns `false` if the block is
    /// not in the table, and changes nothing if it was used on another stream or a window is open.
    pub(crate) fn count_as_allocation(&self, block: BlockId) -> bool {
        let home = block.alloc_stream();
        if !self.is_ours(home) || self.pool.device().is_forked() {
            return false;
        }
        let submitted = self.pool.progress().submitted(home.slot());
        self.slots().restart(block, submitted, self.launches())
    }

    #[inline]
    fn slots(&self) -> &'p Slots {
        self.pool.slots()
    }

    /// Returns the launches that the slots ask for.
    #[inline]
    fn launches(&self) -> &'p Progress {
        self.pool.progress()
    }

    /// Returns whether work on the stream in `slot` would have to wait for a use.
    #[inline]
    fn holds_up(&self, slot: usize, used: UseId) -> bool {
        self.pool.progress().holds_up(slot, used)
    }

    /// Returns whether a stream is of this pool.
    #[inline]
    fn is_ours(&self, stream: StreamId) -> bool {
        stream.pool() == Some(self.pool.id())
    }

    /// Resolves the id of a stream whose lease may have been returned since.
    #[inline]
    fn of_this_pool(&self, stream: StreamId) -> ResourceResult<StreamId> {
        if self.is_ours(stream) && stream.slot() < self.pool.max_slots() {
            Ok(stream)
        } else if stream.is_default() {
            Ok(self.pool.default_stream())
        } else {
            Err(self.pool.misuse(stream))
        }
    }
}
