//! The memory that one stream was the first to have: what of it is free, what is free once others
//! are done, and the segments that it came in.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dmr_core::{DeviceBlock, StreamId};
use dmr_streams::uses::{Carried, UseTable};

use crate::heap::{ChunkId, Heap, Taken};

/// An arena. Its lock is never held across a driver call, and threads of other streams take it
/// only when their own arena has no room.
///
/// Its own stream may use whatever is free in its heap without waiting: that is what *free* means
/// there. Another stream may use it after what was submitted to the arena's stream when it became
/// free.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Arena {
    /// Its stream.
    pub(crate) home: StreamId,
    state: Mutex<State>,
    /// The heap has a free chunk of so many units. Read without the lock, by those who look for
    /// an arena to take from.
    largest: AtomicU32,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) heap: Heap,
    /// Freed, oldest first; the arena's stream is not after all of it yet.
    pub(crate) pending: VecDeque<Pending>,
    /// Units in `pending`.
    pub(crate) pending_units: u64,
    /// Added to `pending` since the driver was last asked.
    pub(crate) unasked: usize,
    pub(crate) segments: Vec<Segment>,
    pub(crate) counts: Counts,
}

/// A chunk that was freed, and what it still depends on.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) chunk: ChunkId,
    pub(crate) after: Carried,
}

/// Memory from upstream.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) block: DeviceBlock,
    /// Its first chunk.
    pub(crate) first: ChunkId,
    /// It serves one block, and goes back when that is freed.
    pub(crate) is_dedicated: bool,
}

/// Bytes as asked for; none of these ever decreases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) allocated: u64,
    /// Given back by the owner.
    pub(crate) returned: u64,
    /// In the pool again.
    pub(crate) freed: u64,
}

/// How many chunks one question is asked for. As many younger ones are left alone meanwhile: their
/// users have had no time.
const BATCH: usize = 16;
/// How many chunks become free with each that is added to those pending: more than one, so that
/// they never gather.
const AT_ONCE: usize = 2;

impl Arena {
    pub(crate) fn new(home: StreamId) -> Self {
        Self { home, state: Mutex::default(), largest: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state, largest: &self.largest }
    }

    /// A locked arena, unless another thread has it.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        Some(Locked { state, largest: &self.largest })
    }

    /// A size, in units, that the heap had lately.
    #[inline]
    pub(crate) fn largest(&self) -> u32 {
        self.largest.load(Ordering::Relaxed)
    }
}

/// An arena's state. Tells what is largest when it is let go.
pub(crate) struct Locked<'a> {
    state: MutexGuard<'a, State>,
    largest: &'a AtomicU32,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let largest = self.state.heap.largest();
        if self.largest.load(Ordering::Relaxed) != largest {
            self.largest.store(largest, Ordering::Relaxed);
        }
    }
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl State {
    /// A free chunk, and what is counted for it.
    #[inline]
    pub(crate) fn take(&mut self, units: u32, bytes: u64) -> Option<Taken> {
        let taken = self.heap.take(units)?;
        self.counts.allocated += bytes;
        Some(taken)
    }

    /// The chunk was not handed out after all.
    pub(crate) fn untake(&mut self, taken: Taken, bytes: u64) {
        self.counts.allocated -= bytes;
        self.heap.release(taken.id, taken.since);
    }

    /// Keeps a chunk until the arena's stream is after all of `after`.
    pub(crate) fn push(&mut self, chunk: ChunkId, after: Carried) {
        self.pending_units += u64::from(self.heap.range(chunk).1);
        self.pending.push_back(Pending { chunk, after });
        self.unasked += 1;
    }

    /// Makes the oldest chunks free, up to a few, as long as `stream`, whose arena this is, is
    /// after all that they depend on.
    #[inline]
    pub(crate) fn settle_some(&mut self, stream: StreamId, uses: UseTable<'_>) {
        for _ in 0..AT_ONCE {
            match self.pending.front() {
                Some(oldest) if uses.is_after(stream, &oldest.after) => {}
                _ => return,
            }
            if let Some(oldest) = self.pending.pop_front() {
                self.free_pending(&oldest, stream, uses);
            }
        }
    }

    /// What the driver is to be asked, if it is time: the youngest chunk that has had time, whose
    /// answer counts for all earlier uses of its streams; and the oldest.
    #[inline]
    pub(crate) fn question(&mut self) -> Option<[Carried; 2]> {
        if self.unasked < BATCH || self.pending.len() < 2 * BATCH {
            return None;
        }
        self.unasked = 0;
        let due = self.pending.len() - BATCH - 1;
        Some([self.pending.get(due)?.after.clone(), self.pending.front()?.after.clone()])
    }

    /// Makes all chunks free for which that holds; answers whether there were any.
    pub(crate) fn settle_all(&mut self, stream: StreamId, uses: UseTable<'_>) -> bool {
        let before = self.pending.len();
        for _ in 0..before {
            let Some(oldest) = self.pending.pop_front() else { break };
            if uses.is_after(stream, &oldest.after) {
                self.free_pending(&oldest, stream, uses);
            } else {
                self.pending.push_back(oldest);
            }
        }
        self.pending.len() < before
    }

    /// Takes one of the pending chunks that is large enough, of those for which `such` holds.
    pub(crate) fn take_pending(
        &mut self,
        units: u32,
        such: impl Fn(&Carried) -> bool,
    ) -> Option<Pending> {
        let fits = |pending: &Pending| {
            let have = self.heap.range(pending.chunk).1;
            have >= units && have - units <= units / 2 && such(&pending.after)
        };
        let at = self.pending.iter().position(fits)?;
        let pending = self.pending.remove(at)?;
        self.pending_units -= u64::from(self.heap.range(pending.chunk).1);
        Some(pending)
    }

    fn free_pending(&mut self, pending: &Pending, stream: StreamId, uses: UseTable<'_>) {
        self.pending_units -= u64::from(self.heap.range(pending.chunk).1);
        self.heap.release(pending.chunk, uses.submitted(stream));
    }
}
