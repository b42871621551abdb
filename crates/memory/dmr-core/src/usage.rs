//! The accounting of a resource, in bytes.

/// The bytes that a resource has allocated and reserved.
///
/// Exact while no call is in progress, after any number of threads: then
/// `total_allocated - total_freed` is [`outstanding`](Self::outstanding).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Requested bytes of live blocks.
    pub live: u64,
    /// Requested bytes of retired blocks: deallocated, and not freed because device work may use
    /// them.
    pub retired: u64,
    /// Bytes that this resource and its upstream have reserved from the driver, in use or not. If
    /// several resources share an upstream, each of them includes all bytes of the upstream.
    pub reserved: u64,
    /// Requested bytes of all successful allocations so far. Never decreases.
    pub total_allocated: u64,
    /// Requested bytes of all blocks freed so far. Never decreases.
    pub total_freed: u64,
}

impl Usage {
    /// Returns the sum of live and retired bytes, as
    /// [`bytes_outstanding`](crate::DeviceMemoryResource::bytes_outstanding) does.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.live.saturating_add(self.retired)
    }
}
