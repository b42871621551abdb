//! Waits of streams for each other, by pair.

use rustc_hash::FxHashMap;

use crate::model::{Model, NONE};

/// The waits of one stream for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The stream that waits.
    pub waiting: u32,
    /// The stream that it waits for.
    pub awaited: u32,
    /// The number of waits.
    pub count: u64,
    /// The tags of the blocks because of which it waits, and how often, the most frequent first.
    pub tags: Vec<TagCount>,
    /// The lengths of those that were measured.
    pub lengths: Lengths,
}

/// The lengths of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// The number of measured waits.
    pub count: u64,
    /// The median of their lengths, in nanoseconds; of an even number the larger of the two.
    pub median: u64,
    /// The longest, in nanoseconds.
    pub longest: u64,
    /// The sum, in nanoseconds.
    pub total: u64,
}

impl Lengths {
    fn of(mut lengths: Vec<u64>) -> Self {
        lengths.sort_unstable();
        Self {
            count: lengths.len() as u64,
            median: lengths.get(lengths.len() / 2).copied().unwrap_or(0),
            longest: lengths.last().copied().unwrap_or(0),
            total: lengths.iter().fold(0, |sum, length| sum.saturating_add(*length)),
        }
    }
}

/// The waits of one thread for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPair {
    /// The thread.
    pub thread: u32,
    /// The stream; [`NONE`] for the whole device.
    pub stream: u32,
    /// The waits.
    pub lengths: Lengths,
}

/// The number of waits because of blocks of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagCount {
    /// The tag, a name; [`NONE`] where the block is not known.
    pub tag: u32,
    /// The number of waits.
    pub count: u64,
}

/// Returns the waits by pair, the most frequent first.
#[must_use]
pub fn pairs(model: &Model) -> Vec<Pair> {
    let mut counts: FxHashMap<(u32, u32), FxHashMap<u32, u64>> = FxHashMap::default();
    for wait in &model.waits {
        let tag = match wait.block {
            NONE => NONE,
            block => model.blocks.tag[block as usize],
        };
        *counts.entry((wait.waiting, wait.awaited)).or_default().entry(tag).or_default() += 1;
    }
    let mut lengths: FxHashMap<(u32, u32), Vec<u64>> = FxHashMap::default();
    for wait in &model.wait_lengths {
        let pair = (wait.waiting, wait.awaited);
        lengths.entry(pair).or_default().push(wait.length);
        // The record of the wait may be missing.
        counts.entry(pair).or_default();
    }
    let mut pairs: Vec<_> = counts
        .into_iter()
        .map(|((waiting, awaited), tags)| {
            let tags = tags.into_iter().map(|(tag, count)| TagCount { tag, count });
            let mut tags: Vec<_> = tags.collect();
            tags.sort_by_key(|of| (std::cmp::Reverse(of.count), of.tag));
            let count = tags.iter().map(|of| of.count).sum();
            let lengths = lengths.remove(&(waiting, awaited)).unwrap_or_default();
            Pair { waiting, awaited, count, tags, lengths: Lengths::of(lengths) }
        })
        .collect();
    pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.count), pair.waiting, pair.awaited));
    pairs
}

/// Returns the waits of threads by thread and stream, the longest sum first.
#[must_use]
pub fn host_pairs(model: &Model) -> Vec<HostPair> {
    let mut lengths: FxHashMap<(u32, u32), Vec<u64>> = FxHashMap::default();
    for wait in &model.host_waits {
        lengths.entry((wait.thread, wait.stream)).or_default().push(wait.length);
    }
    let mut pairs: Vec<_> = lengths
        .into_iter()
        .map(|((thread, stream), lengths)| HostPair {
            thread,
            stream,
            lengths: Lengths::of(lengths),
        })
        .collect();
    pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.lengths.total), pair.thread, pair.stream));
    pairs
}
