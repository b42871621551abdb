//! The live bytes by tag: now, and at the peak.

use std::cmp::Reverse;
use std::collections::HashMap;

use dmr_core::AllocTag;

use crate::summary::TagPeak;

/// The bytes and blocks of a tag.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
}

/// Follows the live bytes by tag.
#[derive(Debug, Default)]
pub(super) struct TagPeaks {
    now: HashMap<AllocTag, Held>,
    bytes: u64,
    peak: u64,
    /// The tags at the peak, copied when the live bytes leave it.
    at_peak: Vec<TagPeak>,
    is_at_peak: bool,
}

impl TagPeaks {
    /// Adds a block.
    pub(super) fn add(&mut self, tag: AllocTag, bytes: u64) {
        let held = self.now.entry(tag).or_default();
        held.bytes = held.bytes.saturating_add(bytes);
        held.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.peak {
            self.peak = self.bytes;
            self.is_at_peak = true;
        }
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, tag: AllocTag, bytes: u64) {
        if self.is_at_peak {
            self.at_peak = self.tags();
            self.is_at_peak = false;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        let held = self.now.entry(tag).or_default();
        held.bytes = held.bytes.saturating_sub(bytes);
        held.blocks = held.blocks.saturating_sub(1);
        if held.blocks == 0 {
            self.now.remove(&tag);
        }
    }

    /// Returns the tags at the peak, the largest first.
    pub(super) fn at_peak(&self) -> Vec<TagPeak> {
        let mut tags = if self.is_at_peak { self.tags() } else { self.at_peak.clone() };
        tags.sort_by(|a, b| (Reverse(a.bytes), &a.tag).cmp(&(Reverse(b.bytes), &b.tag)));
        tags
    }

    fn tags(&self) -> Vec<TagPeak> {
        let tags = self.now.iter();
        let peak = |(tag, held): (&AllocTag, &Held)| TagPeak {
            tag: tag.name().to_owned(),
            bytes: held.bytes,
            blocks: held.blocks,
        };
        tags.map(peak).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_peaks_counts_with_the_tags_that_held_it() {
        let a = AllocTag::new("a");
        let b = AllocTag::new("b");
        let mut peaks = TagPeaks::default();
        peaks.add(a, 10);
        peaks.add(b, 20);
        peaks.add(b, 5);
        peaks.remove(b, 20);
        peaks.remove(b, 5);
        peaks.add(a, 25);
        let peak = |tag: &str, bytes, blocks| TagPeak { tag: tag.to_owned(), bytes, blocks };
        assert_eq!(peaks.at_peak(), [peak("b", 25, 2), peak("a", 10, 1)]);
        peaks.add(a, 1);
        assert_eq!(peaks.at_peak(), [peak("a", 36, 3)]);
    }
}
