//! The patterns that a program has written to a block.
//!
//! A check of a pattern may read any bytes that a single pattern covers. So the model keeps which
//! pattern each byte has, however writes of parts have cut earlier ones.

use std::ops::Range;

use rangemap::RangeMap;

/// The bytes of a block that hold a pattern. A pattern counts from the start of the block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    filled: RangeMap<usize, u32>,
}

/// Bytes that hold a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) bytes: Range<usize>,
    pub(crate) pattern: u32,
}

impl Content {
    /// Records that a pattern was written.
    pub(crate) fn write(&mut self, bytes: Range<usize>, pattern: u32) {
        if !bytes.is_empty() {
            self.filled.insert(bytes, pattern);
        }
    }

    /// Returns the parts of a range that hold patterns.
    pub(crate) fn inside(&self, range: Range<usize>) -> Vec<Filled> {
        let overlapping = self.filled.overlapping(range.clone());
        let inside = overlapping.map(|(bytes, pattern)| Filled {
            bytes: bytes.start.max(range.start)..bytes.end.min(range.end),
            pattern: *pattern,
        });
        inside.filter(|filled| !filled.bytes.is_empty()).collect()
    }

    /// Returns whether some bytes of a range hold a pattern.
    pub(crate) fn is_in(&self, range: Range<usize>) -> bool {
        !self.inside(range).is_empty()
    }

    /// Returns the pattern of the first bytes.
    pub(crate) fn first(&self) -> Option<Filled> {
        let (bytes, pattern) = self.filled.get_key_value(&0)?;
        Some(Filled { bytes: bytes.clone(), pattern: *pattern })
    }

    /// Keeps a range, whose first byte becomes byte 0. It starts at a multiple of 4.
    pub(crate) fn narrow(&mut self, range: Range<usize>) {
        let inside = self.inside(range.clone()).into_iter();
        let moved = |bytes: Range<usize>| bytes.start - range.start..bytes.end - range.start;
        self.filled = inside.map(|Filled { bytes, pattern }| (moved(bytes), pattern)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_replaces_what_it_overlaps() {
        let mut content = Content::default();
        content.write(0..100, 1);
        content.write(40..60, 2);
        content.write(50..55, 3);
        let found = content.inside(10..58);
        let expected = [(10..40, 1), (40..50, 2), (50..55, 3), (55..58, 2)];
        assert_eq!(found, expected.map(|(bytes, pattern)| Filled { bytes, pattern }));
        assert_eq!(content.first(), Some(Filled { bytes: 0..40, pattern: 1 }));
        content.narrow(52..70);
        assert!(content.is_in(0..1) && !content.is_in(18..30) && !content.is_in(5..5));
        assert_eq!(content.first(), Some(Filled { bytes: 0..3, pattern: 3 }));
    }
}
