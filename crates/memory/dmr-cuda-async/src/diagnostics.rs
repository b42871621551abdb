//! A report of the resource's blocks and uses, for people.

/// A report of an [`AsyncCudaResource`](crate::AsyncCudaResource).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostics {
    /// Requested bytes of live blocks.
    pub live_bytes: u64,
    /// Requested bytes of blocks that are deallocated and not freed.
    pub pending_free_bytes: u64,
    /// The number of recorded uses in the ledgers of the stream pool, of all its resources.
    pub pending_use_event_count: usize,
}
