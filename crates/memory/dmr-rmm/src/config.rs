//! The settings of a resource of RMM.

use std::fmt;

/// The kind of a resource of RMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RmmKind {
    /// `cuda_memory_resource`: `cudaMalloc` and `cudaFree`. The free waits for the device.
    Cuda,
    /// `cuda_async_memory_resource`: a pool of the driver.
    CudaAsync,
    /// `pool_memory_resource`: best fit in segments from `cudaMalloc`, which it keeps.
    Pool,
    /// `arena_memory_resource`: a part of one segment for each stream.
    Arena,
    /// `binning_memory_resource`: blocks of fixed sizes over a pool.
    Binning,
}

impl RmmKind {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Cuda, Self::CudaAsync, Self::Pool, Self::Arena, Self::Binning];
}

/// RMM's own name of the kind, without `_memory_resource`.
impl fmt::Display for RmmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "cuda",
            Self::CudaAsync => "cuda_async",
            Self::Pool => "pool",
            Self::Arena => "arena",
            Self::Binning => "binning",
        })
    }
}

/// The settings of an [`RmmResource`](crate::RmmResource). What is `None` is RMM's own default.
///
/// ```
/// use dmr_rmm::{RmmConfig, RmmKind};
///
/// let config = RmmConfig::new(RmmKind::Pool).with_initial_bytes(1 << 30);
/// assert_eq!(config.maximum_bytes, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RmmConfig {
    /// The kind.
    pub kind: RmmKind,
    /// Bytes that a pool takes from the device at once (0), and all that an arena has (half of the
    /// device's free memory). A multiple of 256.
    pub initial_bytes: Option<u64>,
    /// Bytes that a pool may take from the device (no limit). A multiple of 256.
    pub maximum_bytes: Option<u64>,
    /// Bytes that the driver's pool of [`CudaAsync`](RmmKind::CudaAsync) keeps when a stream is
    /// synchronised (all).
    pub release_threshold: Option<u64>,
    /// The smallest and the largest block of [`Binning`](RmmKind::Binning), as powers of two; what
    /// is larger is the pool's.
    pub bins: (u8, u8),
}

impl RmmConfig {
    /// Makes the settings with RMM's defaults, and with the bins of its own benchmarks: 256 KiB to
    /// 4 MiB.
    #[must_use]
    pub const fn new(kind: RmmKind) -> Self {
        Self {
            kind,
            initial_bytes: None,
            maximum_bytes: None,
            release_threshold: None,
            bins: (18, 22),
        }
    }

    /// Sets [`initial_bytes`](Self::initial_bytes).
    #[must_use]
    pub const fn with_initial_bytes(mut self, bytes: u64) -> Self {
        self.initial_bytes = Some(bytes);
        self
    }

    /// Sets [`maximum_bytes`](Self::maximum_bytes).
    #[must_use]
    pub const fn with_maximum_bytes(mut self, bytes: u64) -> Self {
        self.maximum_bytes = Some(bytes);
        self
    }

    /// Sets [`release_threshold`](Self::release_threshold), in bytes.
    #[must_use]
    pub const fn with_release_threshold(mut self, bytes: u64) -> Self {
        self.release_threshold = Some(bytes);
        self
    }

    /// Sets [`bins`](Self::bins).
    #[must_use]
    pub const fn with_bins(mut self, smallest: u8, largest: u8) -> Self {
        self.bins = (smallest, largest);
        self
    }
}
