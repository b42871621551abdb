//! [`StatisticsResource`]: current, peak, total and count, over all, by tag, by stream, by scope.
//!
//! Each thread counts for itself, so that counting costs a few nanoseconds however many threads
//! there are; [`snapshot`](StatisticsResource::snapshot) adds them up.
//!
//! What is counted is what was handed out through this adaptor and not given back, in bytes as
//! asked. A block that grows in place counts its new bytes, and no allocation. Bytes that were given back and that device work may still need are
//! [`Usage::retired`](dmr_core::Usage::retired) of the resource, which the adaptor forwards.
//!
//! **Inside or outside.** Outside a pool it counts what the program asks for; below a pool, what
//! the pool takes from the driver. Outside an adaptor that tries again, an allocation that was
//! rescued is one allocation; inside, each try that failed counts as a failure.

mod counts;
#[cfg(feature = "metrics")]
mod export;
mod gauge;
mod meter;
mod report;
mod scope;

use std::fmt;

use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceResult,
    StreamId,
};

use crate::ResourceLayer;
use crate::forward::forward;
use counts::{Counts, Item};
use meter::{Precision, Step};

#[cfg(feature = "metrics")]
pub use export::describe_metrics;
pub use report::{Counter, Statistics, StreamStatistics, TagStatistics};
pub use scope::{ScopeCounter, ScopeStatistics, StatisticsScope};

/// Makes a [`StatisticsResource`].
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "a layer does nothing until it is put around a resource"]
pub struct StatisticsLayer {
    peak_precision: Option<u64>,
}

/// Bytes that a thread may keep back at any rate.
const LEAST_BYTES: i64 = 256 << 10;
/// Blocks that a thread may keep back at any rate.
const LEAST_BLOCKS: i64 = 8;
/// So many blocks of the size that is just counted, too: a large block that comes and goes is told
/// to nobody.
const BLOCKS_OF_THE_SIZE: i64 = 4;

impl StatisticsLayer {
    /// Peaks are exact while one thread makes all calls. With *n* threads, a thread keeps back up
    /// to an *n*-th of a quarter of the peak over all (at least 256 KiB and 8 blocks, and four
    /// blocks of the size that is just counted), so that they are off by about a quarter of it at
    /// the very worst, where no block is that large, and by far less as a rule:
    /// [`with_peak_precision`](Self::with_peak_precision) says how that adds up.
    pub const fn new() -> Self {
        Self { peak_precision: None }
    }

    /// How many bytes a thread keeps back before it tells the others: fewer make the peaks more
    /// exact and cost more.
    ///
    /// The bound: while one thread makes all calls, every peak is exact, at every reading. With
    /// *n* threads (the most that were alive at one time), a peak read at a quiescent moment is
    /// too low by at most what *n* − 1 threads keep back and too high by at most what *n* do,
    /// against the highest sum of blocks handed out whose `deallocate` had not returned. This
    /// holds over all and for each tag and stream, with the same number of bytes.
    ///
    /// `0` makes the peaks exact, of blocks too, and lets all threads write one cache line.
    /// Without this setting, a thread works out how much it may keep back when it tells; one that
    /// has told nothing since fewer threads counted may keep back as much as was right then.
    pub const fn with_peak_precision(self, bytes: u64) -> Self {
        Self { peak_precision: Some(bytes) }
    }

    fn precision(self) -> Precision {
        match self.peak_precision {
            None => {
                let (bytes, blocks, times) = (LEAST_BYTES, LEAST_BLOCKS, BLOCKS_OF_THE_SIZE);
                Precision::AtLeast(Step { bytes, blocks, times })
            }
            Some(0) => Precision::Fixed(Step { bytes: 0, blocks: 0, times: 0 }),
            Some(bytes) => {
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                Precision::FixedBytes(Step { bytes, blocks: LEAST_BLOCKS, times: 0 })
            }
        }
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for StatisticsLayer {
    type Resource = StatisticsResource<R>;

    fn layer(&self, inner: R) -> StatisticsResource<R> {
        StatisticsResource { inner, counts: Counts::new(self.precision()) }
    }
}

/// Counts what passes through it; see the [module](self).
///
/// Nothing that is counted changes what a call answers.
pub struct StatisticsResource<R> {
    inner: R,
    counts: Counts,
}

impl<R> StatisticsResource<R> {
    /// What was counted so far. Exact at every quiescent moment, peaks as
    /// [`StatisticsLayer::with_peak_precision`] says; otherwise calls in progress may be missing.
    ///
    /// Takes time in proportion to threads × (tags + streams). In a forked child it is empty.
    #[must_use]
    pub fn snapshot(&self) -> Statistics {
        self.counts.snapshot()
    }

    /// Starts all peaks again from what is current, as exactly as peaks are.
    pub fn reset_peaks(&self) {
        self.counts.reset_peaks();
    }

    /// Opens a scope: from now on, what the calling thread does through this resource is counted
    /// in it too. It ends when it is popped or dropped.
    pub fn push(&self, tag: AllocTag) -> StatisticsScope<'_> {
        StatisticsScope::open(&self.counts, tag)
    }

    /// The resource inside.
    pub const fn get_ref(&self) -> &R {
        &self.inner
    }

    /// The resource inside, without the counts.
    pub fn into_inner(self) -> R {
        self.inner
    }

    const fn inner(&self) -> &R {
        &self.inner
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: DeviceMemoryResource> DeviceMemoryResource for StatisticsResource<R> {
    #[inline]
    fn allocate(
        &self,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        // Taken apart and put together: so the compiler leaves the answer where it is, and does not
        // copy it before its parts have reached the cache.
        match self.inner.allocate(bytes, stream, tag) {
            Ok(block) => {
                self.counts.allocated(Item::from(&block));
                Ok(block)
            }
            Err(error) => {
                self.counts.failed(tag);
                Err(error)
            }
        }
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let item = Item::from(&block);
        match self.inner.deallocate(block) {
            Ok(state) => {
                self.counts.freed(item);
                Ok(state)
            }
            Err(refused) => Err(refused),
        }
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let before = block.bytes();
        let grown = self.inner.try_grow(block, bytes)?;
        let more = block.bytes().saturating_sub(before);
        if more > 0 {
            self.counts.grown(Item::growth(block, more as u64));
        }
        Ok(grown)
    }

    forward!(
        inner: is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        try_reap,
        reap_pending,
        trim_to,
        use_tracking,
        // Past it: blocks are counted, pages are not.
        virtual_memory,
    );
}

impl<R: fmt::Debug> fmt::Debug for StatisticsResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Statistics({:?})", self.inner)
    }
}

impl<R: fmt::Debug> fmt::Display for StatisticsResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
