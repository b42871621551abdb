//! What the resource holds and what it waits for, for people.

/// A look at an [`AsyncCudaResource`](crate::AsyncCudaResource).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostics {
    /// Bytes asked for in blocks that are handed out.
    pub live_bytes: u64,
    /// Bytes asked for in blocks that were given back and that the driver does not have yet.
    pub pending_free_bytes: u64,
    /// Recorded uses that the stream pool remembers, of all resources on it: each holds an event.
    pub pending_use_event_count: usize,
}
