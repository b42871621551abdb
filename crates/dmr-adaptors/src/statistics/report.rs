//! What the statistics say.

use std::fmt;

use dmr_core::AllocTag;
use dmr_core::size::human_bytes;

/// A number that goes up and down, in bytes or in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// What it is now.
    pub current: u64,
    /// The most it has been since the start, or since the peaks were
    /// [reset](super::StatisticsResource::reset_peaks).
    pub peak: u64,
    /// All that was ever added. Never decreases.
    pub total: u64,
}

/// What passed through a [`StatisticsResource`](super::StatisticsResource) so far.
///
/// A block counts from when `allocate` returned it until `deallocate` took it. `current` and
/// `total` are exact at every quiescent moment (no call in progress); for `peak`, see
/// [`StatisticsLayer::with_peak_precision`](super::StatisticsLayer::with_peak_precision).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes, as asked for.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks given back.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// The same for each tag, the one with the most current bytes first.
    pub by_tag: Vec<TagStatistics>,
    /// The same for each stream, the one with the most current bytes first.
    pub by_stream: Vec<StreamStatistics>,
}

/// What was allocated with one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagStatistics {
    /// The tag.
    pub tag: AllocTag,
    /// Bytes, as asked for.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks given back.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
}

/// What was allocated on one home stream, whoever leased it. Failures are not told apart by
/// stream, because the stream itself may be what was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStatistics {
    /// The stream's slot in the resource's pool ([`StreamId::slot`](dmr_core::StreamId::slot)).
    pub slot: usize,
    /// Bytes, as asked for.
    pub bytes: Counter,
    /// Blocks.
    pub allocations: Counter,
    /// Blocks given back.
    pub frees: u64,
}

/// A line over all, then one for each tag and each stream.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, &"all", &self.bytes, &self.allocations)?;
        write!(f, ", {} failed", self.failures)?;
        for of_tag in &self.by_tag {
            f.write_str("\n  ")?;
            line(
                f,
                &format_args!("tag {:?}", of_tag.tag.name()),
                &of_tag.bytes,
                &of_tag.allocations,
            )?;
            if of_tag.failures != 0 {
                write!(f, ", {} failed", of_tag.failures)?;
            }
        }
        for of_stream in &self.by_stream {
            f.write_str("\n  ")?;
            let name = format_args!("stream {}", of_stream.slot);
            line(f, &name, &of_stream.bytes, &of_stream.allocations)?;
        }
        Ok(())
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    name: &dyn fmt::Display,
    bytes: &Counter,
    blocks: &Counter,
) -> fmt::Result {
    let [current, peak, total] = [bytes.current, bytes.peak, bytes.total].map(human_bytes);
    let (count, most, all) = (blocks.current, blocks.peak, blocks.total);
    write!(f, "{name}: {current} in {count} blocks, peak {peak} in {most}, total {total} in {all}")
}
