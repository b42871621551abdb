//! One slot of a stream pool: its stream, which calls read without a lock, and its lease.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::CudaStream;

use crate::holds::Holds;

/// The lease number of ids that need no lease.
pub(crate) const PERMANENT: u32 = 0;

/// One stream of a pool. Read without a lock.
#[derive(Default)]
pub(crate) struct StreamSlot {
    /// Set once.
    pub(crate) stream: OnceLock<PoolStream>,
    /// The number of the current lease, or [`PERMANENT`].
    pub(crate) lease: AtomicU32,
    /// Counts the calls and windows on an adopted stream, which delay its retirement.
    pub(crate) holds: Holds,
}

/// A stream with its priority.
pub(crate) struct PoolStream {
    pub(crate) stream: Arc<CudaStream>,
    pub(crate) priority: i32,
}

/// The lease of a slot. Changed under the pool's lock.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotLease {
    /// The slot is leased, or its stream is being created.
    pub(crate) is_taken: bool,
    /// The number of the latest lease.
    pub(crate) last_number: u32,
    /// The handle of the stream that is being adopted.
    pub(crate) adopting: Option<usize>,
}

impl StreamSlot {
    /// Returns whether ids of this lease number name the stream.
    #[inline]
    pub(crate) fn admits(&self, lease: u32) -> bool {
        lease == PERMANENT || self.lease.load(Ordering::Acquire) == lease
    }

    /// Returns the stream, unless it is retired.
    #[inline]
    pub(crate) fn live(&self) -> Option<&PoolStream> {
        if self.holds.is_retired() { None } else { self.stream.get() }
    }

    /// Returns whether the stream has this handle.
    pub(crate) fn has_handle(&self, handle: usize) -> bool {
        self.stream.get().is_some_and(|known| known.stream.cu_stream() as usize == handle)
    }
}
