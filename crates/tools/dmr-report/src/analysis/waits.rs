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
    let mut pairs: Vec<_> = counts
        .into_iter()
        .map(|((waiting, awaited), tags)| {
            let tags = tags.into_iter().map(|(tag, count)| TagCount { tag, count });
            let mut tags: Vec<_> = tags.collect();
            tags.sort_by_key(|of| (std::cmp::Reverse(of.count), of.tag));
            Pair { waiting, awaited, count: tags.iter().map(|of| of.count).sum(), tags }
        })
        .collect();
    pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.count), pair.waiting, pair.awaited));
    pairs
}
