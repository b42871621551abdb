//! The patterns that a program has written to a block.

use std::ops::Range;

/// The bytes of a block that hold a pattern. A pattern counts from the start of the block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// Disjoint and not empty, in no order.
    filled: Vec<Filled>,
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
        let before = std::mem::take(&mut self.filled);
        for Filled { bytes: old, pattern } in before {
            for rest in [old.start..old.end.min(bytes.start), old.start.max(bytes.end)..old.end] {
                self.push(rest, pattern);
            }
        }
        self.push(bytes, pattern);
    }

    /// Returns the parts of a range that hold patterns.
    pub(crate) fn inside(&self, range: Range<usize>) -> Vec<Filled> {
        let mut inside = Self::default();
        for Filled { bytes, pattern } in &self.filled {
            inside.push(bytes.start.max(range.start)..bytes.end.min(range.end), *pattern);
        }
        inside.filled
    }

    /// Returns whether some bytes of a range hold a pattern.
    pub(crate) fn is_in(&self, range: Range<usize>) -> bool {
        !self.inside(range).is_empty()
    }

    /// Returns the pattern of the first bytes, and their number.
    pub(crate) fn first(&self) -> Option<(u32, usize)> {
        let first = self.filled.iter().find(|filled| filled.bytes.start == 0)?;
        Some((first.pattern, first.bytes.end))
    }

    /// Keeps a range, whose first byte becomes byte 0. It starts at a multiple of 4.
    pub(crate) fn narrow(&mut self, range: Range<usize>) {
        let mut inside = self.inside(range.clone());
        for Filled { bytes, .. } in &mut inside {
            *bytes = bytes.start - range.start..bytes.end - range.start;
        }
        self.filled = inside;
    }

    fn push(&mut self, bytes: Range<usize>, pattern: u32) {
        if !bytes.is_empty() {
            self.filled.push(Filled { bytes, pattern });
        }
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
        let mut found: Vec<_> = content
            .inside(10..58)
            .into_iter()
            .map(|it| (it.bytes.start, it.bytes.end, it.pattern))
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(10, 40, 1), (40, 50, 2), (50, 55, 3), (55, 58, 2)]);
        assert_eq!(content.first(), Some((1, 40)));
        content.narrow(52..70);
        assert!(content.is_in(0..1) && !content.is_in(18..30));
        assert_eq!(content.first(), Some((3, 3)));
    }
}
