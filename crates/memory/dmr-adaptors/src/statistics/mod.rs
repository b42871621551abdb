//! [`StatisticsResource`] counts allocations and frees: current, peak and total, overall, by tag,
//! by stream and by scope.
//!
//! A block counts from the call of `allocate` that returned it to the call of `deallocate` that
//! took it, with the bytes that were requested. A block that grows in place adds bytes, and no
//! allocation. Bytes that were freed and that device work may still use are
//! [`Usage::retired`](dmr_core::Usage::retired) of the upstream resource.
//!
//! Peaks are exact, and a [`snapshot`](StatisticsResource::snapshot) is of one instant. Below its
//! peak a counter is changed in cells that few threads share; a new peak is counted under one lock.
//! No lock is held during a call to the upstream resource.
//!
//! **Inside or outside.** Outside a pool it counts what the program allocates; inside, what the
//! pool takes from the driver. Outside an adaptor that retries, a rescued allocation is one
//! allocation; inside, each failed attempt is one failure.

mod counts;
#[cfg(feature = "metrics")]
mod export;
#[cfg(all(test, loom))]
mod models;
mod report;
mod scope;

use std::fmt;

use dmr_core::{
    AllocTag, BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, DriverAllocation,
    ResourceResult, StreamId, forward,
};

use crate::ResourceLayer;
use counts::{Call, Counts, Event};

#[cfg(feature = "metrics")]
pub use export::describe_metrics;
pub use report::{
    Counter, ScopeCounter, ScopeStatistics, Statistics, StreamStatistics, TagStatistics,
};
pub use scope::StatisticsScope;

/// Makes a [`StatisticsResource`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
#[must_use = "a layer does nothing until it wraps a resource"]
pub struct StatisticsLayer;

impl StatisticsLayer {
    /// Makes the layer. It has no settings.
    pub const fn new() -> Self {
        Self
    }
}

impl<R: DeviceMemoryResource> ResourceLayer<R> for StatisticsLayer {
    type Resource = StatisticsResource<R>;

    fn layer(&self, upstream: R) -> StatisticsResource<R> {
        StatisticsResource { upstream, counts: Counts::default() }
    }
}

/// Counts the allocations and frees that pass through it; see the [module](self).
///
/// Counting never changes what a call returns. In a forked child nothing is counted.
pub struct StatisticsResource<R> {
    upstream: R,
    counts: Counts,
}

impl<R> StatisticsResource<R> {
    /// Returns the counts of one instant: the sums over tags and over streams are the overall
    /// counts. A call in progress on another thread is counted, or not yet.
    ///
    /// Adds up the counts of each tag and stream over the cells of all threads, while other calls
    /// wait. Empty in a forked child.
    #[must_use]
    pub fn snapshot(&self) -> Statistics {
        self.counts.statistics().sorted()
    }

    /// Sets each peak to what is current. Scopes keep theirs.
    pub fn reset_peaks(&self) {
        self.counts.reset_peaks();
    }

    /// Opens a scope, which counts what the calling thread does through this resource until the
    /// scope is popped or dropped.
    pub fn push(&self, tag: AllocTag) -> StatisticsScope<'_> {
        StatisticsScope::open(&self.counts, tag)
    }

    /// Returns the upstream resource.
    pub const fn upstream(&self) -> &R {
        &self.upstream
    }

    /// Returns the upstream resource, and drops the counts.
    pub fn into_upstream(self) -> R {
        self.upstream
    }

    #[inline]
    fn count(&self, event: Event, tag: AllocTag, stream: Option<StreamId>) {
        self.counts.count(Call { event, tag, stream });
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
        // Matched and rebuilt, not passed on: the compiler then leaves the block where upstream
        // wrote it.
        match self.upstream.allocate(bytes, stream, tag) {
            Ok(block) => {
                let allocated = Event::Allocated(block.bytes() as u64);
                self.count(allocated, block.tag(), Some(block.alloc_stream()));
                Ok(block)
            }
            Err(error) => {
                // Not counted by stream: the stream itself may be what was refused.
                self.count(Event::Failed, tag, None);
                Err(error)
            }
        }
    }

    #[inline]
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        let bytes = block.bytes() as u64;
        let tag = block.tag();
        let stream = block.alloc_stream();
        match self.upstream.deallocate(block) {
            Ok(state) => {
                self.count(Event::Freed(bytes), tag, Some(stream));
                Ok(state)
            }
            Err(refused) => Err(refused),
        }
    }

    fn give_away(&self, block: DeviceBlock) -> Result<DriverAllocation, Box<DeallocateError>> {
        let bytes = block.bytes() as u64;
        let tag = block.tag();
        let stream = block.alloc_stream();
        let given = self.upstream.give_away(block)?;
        self.count(Event::Freed(bytes), tag, Some(stream));
        Ok(given)
    }

    fn try_grow(&self, block: &mut DeviceBlock, bytes: usize) -> ResourceResult<bool> {
        let before = block.bytes();
        let is_grown = self.upstream.try_grow(block, bytes)?;
        let more = block.bytes().saturating_sub(before);
        if more > 0 {
            self.count(Event::Grown(more as u64), block.tag(), Some(block.alloc_stream()));
        }
        Ok(is_grown)
    }

    forward!(
        upstream: is_retired,
        device_ordinal,
        stream_pool,
        bytes_outstanding,
        usage,
        try_reap,
        reap_pending,
        trim_to,
        allow_access,
        use_tracking,
        // Not wrapped: blocks are counted, pages are not.
        virtual_memory,
    );
}

impl<R: fmt::Debug> fmt::Debug for StatisticsResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Statistics({:?})", self.upstream)
    }
}

impl<R: fmt::Debug> fmt::Display for StatisticsResource<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
