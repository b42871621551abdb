//! The configuration of a stream pool: numbers of streams, and their priority.

use dmr_core::StreamId;

/// The maximum number of library streams of a pool: the reclaim stream and those that serve home
/// streams. With more of them, fewer streams share one; each slot costs host memory, used or not.
pub(crate) const LIBRARY_STREAMS: usize = 9;

/// The configuration of a [`StreamPool`](crate::StreamPool).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamPoolConfig {
    /// The maximum number of streams that the pool leases, clamped to 1 ..=
    /// [`MAX_STREAMS`](Self::MAX_STREAMS).
    pub max_streams: usize,
    /// The maximum number of streams of other owners that are adopted at a time: a stream is one of
    /// them until it is retired and its lease is dropped. The sum of both is limited to
    /// [`MAX_STREAMS`](Self::MAX_STREAMS).
    pub max_adopted: usize,
    /// The priority of streams that are acquired without one: lower is more urgent, 0 is CUDA's
    /// default. The driver clamps it to the device's range.
    pub priority: i32,
}

impl StreamPoolConfig {
    /// The maximum number of streams of a pool, leased and adopted: the rest of
    /// [`StreamId::MAX_SLOTS`] is for streams of the library.
    pub const MAX_STREAMS: usize = StreamId::MAX_SLOTS - LIBRARY_STREAMS;

    /// Returns the default: 32 streams of priority 0, and room for 32 adopted ones.
    #[must_use]
    pub const fn new() -> Self {
        Self { max_streams: 32, max_adopted: 32, priority: 0 }
    }

    /// Sets [`max_streams`](Self::max_streams).
    #[must_use]
    pub const fn with_max_streams(mut self, max_streams: usize) -> Self {
        self.max_streams = max_streams;
        self
    }

    /// Sets [`max_adopted`](Self::max_adopted).
    #[must_use]
    pub const fn with_max_adopted(mut self, max_adopted: usize) -> Self {
        self.max_adopted = max_adopted;
        self
    }

    /// Sets [`priority`](Self::priority).
    #[must_use]
    pub const fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

impl Default for StreamPoolConfig {
    fn default() -> Self {
        Self::new()
    }
}
