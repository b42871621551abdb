//! Fills each block with its own pattern and checks it before the free.

use std::ops::Range;

use dmr_core::{DeviceOps, ResourceResult};

use super::Verify;
use super::blocks::Held;
use crate::summary::Corrupt;

/// Checks of blocks, with the rows that their results are for.
#[derive(Debug)]
pub(crate) struct Verifier<'a> {
    ops: &'a dyn DeviceOps,
    is_sample: bool,
    /// The checks without a result.
    pending: Vec<PendingCheck>,
    /// The key of the first of them.
    first_key: u64,
}

/// The rows that allocate and free the block of a check.
#[derive(Clone, Copy, Debug)]
struct PendingCheck {
    line: u64,
    free_line: Option<u64>,
}

/// Results are fetched for this many checks at once, because that waits for the device.
const PENDING: usize = 4096;

impl<'a> Verifier<'a> {
    pub(crate) fn new(Verify { ops, is_sample }: Verify<'a>) -> Self {
        Self { ops, is_sample, pending: Vec::new(), first_key: 0 }
    }

    /// Fills a new block, on its home stream.
    pub(crate) fn fill(&self, held: &mut Held) -> ResourceResult<()> {
        let block = &held.block;
        let pattern = pattern(held.line);
        self.ops.fill_pattern(block, 0..block.bytes(), pattern, block.alloc_stream())?;
        held.pattern = Some(pattern);
        Ok(())
    }

    /// Fills the bytes from `before` on of a block that has grown, with the pattern of its first
    /// bytes.
    pub(crate) fn fill_grown(&self, held: &Held, before: usize) -> ResourceResult<()> {
        let Some(pattern) = held.pattern else { return Ok(()) };
        let block = &held.block;
        self.ops.fill_pattern(block, before..block.bytes(), pattern, block.alloc_stream())
    }

    /// Submits the checks of a block, on its home stream. A block that was not filled has none.
    pub(crate) fn check(&mut self, held: &Held, free_line: Option<u64>) -> ResourceResult<()> {
        let Some(pattern) = held.pattern else { return Ok(()) };
        let block = &held.block;
        for range in checked_ranges(block.bytes(), self.is_sample) {
            // Keys are consecutive, so that a mismatch is found by its distance from the first.
            let key = self.first_key + self.pending.len() as u64;
            self.ops.check_pattern(block, range, pattern, block.alloc_stream(), key)?;
            self.pending.push(PendingCheck { line: held.line, free_line });
        }
        Ok(())
    }

    /// Returns whether enough checks are pending to [`collect`](Self::collect) them.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() >= PENDING
    }

    /// Waits for all checks, and returns the blocks whose pattern had changed.
    pub(crate) fn collect(&mut self) -> ResourceResult<Vec<Corrupt>> {
        let mismatches = self.ops.collect()?;
        let corrupt = mismatches.iter().filter_map(|mismatch| {
            let index = usize::try_from(mismatch.key.checked_sub(self.first_key)?).ok()?;
            let PendingCheck { line, free_line } = *self.pending.get(index)?;
            Some(Corrupt { line, free_line, offset: mismatch.offset as u64 })
        });
        let mut corrupt: Vec<_> = corrupt.collect();
        // The first wrong byte of each block: its checks were submitted one after the other, from
        // its start.
        corrupt.dedup_by_key(|corrupt| corrupt.line);
        self.first_key += self.pending.len() as u64;
        self.pending.clear();
        Ok(corrupt)
    }
}

/// The most bytes of a block that is checked as a whole where larger ones are sampled.
const SMALL: usize = 64 << 10;
/// The length of a sample, and the distance between the starts of two: the size of the device's
/// pages, so that none is left out.
const SAMPLE: usize = 1 << 10;
const DISTANCE: usize = 2 << 20;

/// Returns the ranges of a block that are checked, from its start.
fn checked_ranges(bytes: usize, is_sample: bool) -> impl Iterator<Item = Range<usize>> {
    let (length, distance) =
        if is_sample && bytes > SMALL { (SAMPLE, DISTANCE) } else { (bytes, bytes.max(1)) };
    let last = bytes - length;
    let starts = (0..last).step_by(distance).chain([last]);
    starts.map(move |start| start..start + length)
}

/// Returns the pattern of the block of a row. Different for any two rows less than 2³² lines apart:
/// each step can be undone.
fn pattern(line: u64) -> u32 {
    let folded = line as u32 ^ (line >> 32) as u32;
    let spread = folded.wrapping_mul(0x9e37_79b1);
    let again = (spread ^ (spread >> 15)).wrapping_mul(0x9e37_79b1);
    again ^ (again >> 16)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_block_is_checked_as_a_whole_or_in_samples_of_each_page_and_of_its_end() {
        let ranges = |bytes, is_sample| -> Vec<_> {
            checked_ranges(bytes, is_sample).map(|range| (range.start, range.end)).collect()
        };
        assert_eq!(ranges(9 << 20, false), [(0, 9 << 20)]);
        for bytes in [0, 1, SMALL] {
            assert_eq!(ranges(bytes, true), [(0, bytes)]);
        }
        assert_eq!(ranges(SMALL + 3, true), [(0, SAMPLE), (SMALL + 3 - SAMPLE, SMALL + 3)]);
        let expected = [0, DISTANCE, 2 * DISTANCE, 3 * DISTANCE - SAMPLE];
        assert_eq!(ranges(3 * DISTANCE, true), expected.map(|start| (start, start + SAMPLE)));
    }

    #[test]
    fn no_two_rows_have_the_same_pattern_and_few_neighbours_the_same_first_byte() {
        let patterns: Vec<_> = (0..100_000).map(pattern).collect();
        assert_eq!(patterns.iter().collect::<HashSet<_>>().len(), patterns.len());
        let same = patterns.windows(2).filter(|pair| pair[0] as u8 == pair[1] as u8).count();
        assert!(same < patterns.len() / 100, "{same}");
    }
}
