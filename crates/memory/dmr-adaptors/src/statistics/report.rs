//! The types that a snapshot and a scope return.

use std::cmp::Reverse;
use std::fmt;

use dmr_core::AllocTag;
use dmr_core::size::human_bytes;

use super::scope::ScopeCounters;

/// A number of bytes or blocks that goes up and down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The current value.
    pub current: u64,
    /// The highest value since the start, or since
    /// [`reset_peaks`](super::StatisticsResource::reset_peaks). Exact: the counter had this value.
    pub peak: u64,
    /// The sum of all that was added. Never decreases.
    pub total: u64,
}

/// The counts of a [`StatisticsResource`](super::StatisticsResource) at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes, as requested.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// The counts of each tag, the one with the most current bytes first.
    pub by_tag: Vec<TagStatistics>,
    /// The counts of each stream, the one with the most current bytes first.
    pub by_stream: Vec<StreamStatistics>,
}

/// The counts of one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagStatistics {
    /// The tag.
    pub tag: AllocTag,
    /// Bytes, as requested.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
}

/// The counts of one home stream, over all its leases. Failures are not counted by stream, because
/// the stream itself may be the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStatistics {
    /// The stream's slot in the resource's pool ([`StreamId::slot`](dmr_core::StreamId::slot)).
    pub slot: usize,
    /// Bytes, as requested.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks freed.
    pub frees: u64,
}

impl StreamStatistics {
    pub(super) fn is_used(&self) -> bool {
        self.allocations.total != 0 || self.frees != 0
    }
}

impl Statistics {
    /// Puts the tags and the streams with the most current bytes first.
    pub(super) fn sorted(mut self) -> Self {
        self.by_tag.sort_by_key(|of_tag| (Reverse(of_tag.bytes.current), of_tag.tag));
        self.by_stream.sort_by_key(|of_stream| (Reverse(of_stream.bytes.current), of_stream.slot));
        self
    }
}

/// The counts of a scope. Exact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeStatistics {
    /// The scope's tag.
    pub tag: AllocTag,
    /// Bytes, as requested.
    pub bytes: ScopeCounter,
    /// Blocks.
    pub allocations: ScopeCounter,
    /// Blocks freed.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
}

impl ScopeStatistics {
    pub(super) fn new(tag: AllocTag, counted: ScopeCounters) -> Self {
        let ScopeCounters { bytes, blocks, failures } = counted;
        let frees = counted.frees();
        Self { tag, bytes, allocations: blocks, frees, failures }
    }
}

/// A number of bytes or blocks that goes up and down from zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeCounter {
    /// The sum of all that was added, less all that was removed: negative if the scope freed more
    /// than it allocated.
    pub current: i64,
    /// The highest value of `current`, at least zero.
    pub peak: u64,
    /// The sum of all that was added.
    pub total: u64,
}

impl ScopeCounter {
    #[inline]
    pub(super) fn add(&mut self, amount: u64) {
        self.current = self.current.wrapping_add_unsigned(amount);
        self.total = self.total.wrapping_add(amount);
        self.peak = self.peak.max(self.current.max(0).unsigned_abs());
    }

    #[inline]
    pub(super) fn subtract(&mut self, amount: u64) {
        self.current = self.current.wrapping_sub_unsigned(amount);
    }
}

/// One line overall, then one for each tag and each stream.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all: {}", line(&self.bytes, &self.allocations))?;
        write!(f, ", {} failed", self.failures)?;
        for of_tag in &self.by_tag {
            let line = line(&of_tag.bytes, &of_tag.allocations);
            write!(f, "\n  tag {:?}: {line}", of_tag.tag.name())?;
            if of_tag.failures != 0 {
                write!(f, ", {} failed", of_tag.failures)?;
            }
        }
        for of_stream in &self.by_stream {
            let line = line(&of_stream.bytes, &of_stream.allocations);
            write!(f, "\n  stream {}: {line}", of_stream.slot)?;
        }
        Ok(())
    }
}

fn line(bytes: &Counter, blocks: &Counter) -> String {
    let [current, peak, total] = [bytes.current, bytes.peak, bytes.total].map(human_bytes);
    let count = blocks.current;
    let most = blocks.peak;
    let all = blocks.total;
    format!("{current} in {count} blocks, peak {peak} in {most}, total {total} in {all}")
}
