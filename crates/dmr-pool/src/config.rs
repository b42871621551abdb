//! How a pool is made.

use dmr_core::size::BLOCK_ALIGNMENT;

/// Bytes in which a pool takes memory from upstream: a large page of the device.
pub(crate) const SEGMENT_STEP: u64 = 2 << 20;

/// How a [`PoolResource`](crate::PoolResource) takes, keeps and gives back memory. All sizes are
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Taken from upstream when the pool is made, for the default stream. Rounded up to 2 MiB.
    pub initial_size: u64,
    /// The most that is ever taken from upstream at one time; `None` for what upstream has.
    pub maximum_size: Option<u64>,
    /// A reap gives free memory back to upstream as long as more than this is reserved.
    pub release_threshold: u64,
    /// How much is taken at once.
    pub growth: Growth,
    /// Larger blocks get memory of their own from upstream, which goes back when they are freed.
    pub largest_pooled: usize,
    /// The alignment of every block: a power of two, at least 256, at most 2 MiB.
    pub alignment: usize,
}

/// How much a pool takes from upstream when it has no room: at least what it needs, rounded up to
/// 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Growth {
    /// A share of what is reserved already, up to a most: few calls for a pool that grows, little
    /// too much for one that does not.
    Share {
        /// One so-manieth of what is reserved.
        divisor: u32,
        /// The most at once, unless one block needs more.
        most: u64,
    },
    /// Always this much.
    Fixed(u64),
}

impl PoolConfig {
    /// Nothing at first, no maximum, all is kept, growth by 1/32 up to 256 MiB.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            initial_size: 0,
            maximum_size: None,
            release_threshold: u64::MAX,
            growth: Growth::Share { divisor: 32, most: 256 << 20 },
            largest_pooled: usize::MAX,
            alignment: BLOCK_ALIGNMENT,
        }
    }

    /// Sets [`initial_size`](Self::initial_size).
    #[must_use]
    pub const fn with_initial_size(mut self, bytes: u64) -> Self {
        self.initial_size = bytes;
        self
    }

    /// Sets [`maximum_size`](Self::maximum_size).
    #[must_use]
    pub const fn with_maximum_size(mut self, bytes: u64) -> Self {
        self.maximum_size = Some(bytes);
        self
    }

    /// Sets [`release_threshold`](Self::release_threshold).
    #[must_use]
    pub const fn with_release_threshold(mut self, bytes: u64) -> Self {
        self.release_threshold = bytes;
        self
    }

    /// Sets [`growth`](Self::growth).
    #[must_use]
    pub const fn with_growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    /// Sets [`largest_pooled`](Self::largest_pooled).
    #[must_use]
    pub const fn with_largest_pooled(mut self, bytes: usize) -> Self {
        self.largest_pooled = bytes;
        self
    }

    /// Sets [`alignment`](Self::alignment). What is no power of two between 256 and 2 MiB becomes
    /// the next that is.
    #[must_use]
    pub const fn with_alignment(mut self, bytes: usize) -> Self {
        let most = SEGMENT_STEP as usize;
        let least = if bytes < BLOCK_ALIGNMENT { BLOCK_ALIGNMENT } else { bytes };
        self.alignment = if least > most { most } else { least.next_power_of_two() };
        self
    }

    /// How much to take for a request of `needed` bytes when `reserved` bytes are reserved.
    pub(crate) fn step(&self, needed: u64, reserved: u64) -> u64 {
        let step = match self.growth {
            Growth::Share { divisor, most } => (reserved / u64::from(divisor.max(1))).min(most),
            Growth::Fixed(step) => step,
        };
        needed.max(step).next_multiple_of(SEGMENT_STEP)
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self::new()
    }
}
