//! The accounting of a resource.

/// What a resource has handed out and holds, in bytes.
///
/// Exact at every quiescent moment (no call in progress), under any number of threads: then
/// `total_allocated - total_freed` is [`outstanding`](Self::outstanding).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes asked for in blocks that are handed out.
    pub live: u64,
    /// Bytes asked for in blocks that were given back but that device work may still need.
    pub retired: u64,
    /// Bytes that this resource and its upstream have from the driver, in use or not. Where several
    /// resources share an upstream, everything that the upstream has.
    pub reserved: u64,
    /// Bytes asked for in all successful allocations so far. Never decreases.
    pub total_allocated: u64,
    /// Bytes asked for in all blocks freed so far. Never decreases.
    pub total_freed: u64,
}

impl Usage {
    /// Live and retired: what
    /// [`bytes_outstanding`](crate::DeviceMemoryResource::bytes_outstanding) answers.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.live.saturating_add(self.retired)
    }
}
