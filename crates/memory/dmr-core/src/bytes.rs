//! Ranges of bytes in device memory.

use std::fmt;

/// A range of device addresses: the part of a block that a use reads or writes.
///
/// The addresses are absolute, so that a range means the same bytes in a block, in a
/// [part](crate::DeviceBlock::narrow) of it, and after the block has grown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    start: u64,
    /// `u64::MAX` in [`WHOLE`](Self::WHOLE) alone.
    end: u64,
}

impl ByteRange {
    /// Every address: the range of a use of a whole block, whatever its size is by now.
    pub const WHOLE: Self = Self { start: 0, end: u64::MAX };

    /// Makes the range of `bytes` bytes from the device address `ptr` on. A range that would not
    /// end below the last two addresses ends there.
    #[must_use]
    #[inline]
    pub const fn new(ptr: u64, bytes: usize) -> Self {
        let end = ptr.saturating_add(bytes as u64);
        Self { start: ptr, end: if end == u64::MAX { u64::MAX - 1 } else { end } }
    }

    /// Returns the first address.
    #[must_use]
    #[inline]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// Returns the address after the last one.
    #[must_use]
    #[inline]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns whether this is [`WHOLE`](Self::WHOLE).
    #[must_use]
    #[inline]
    pub const fn is_whole(self) -> bool {
        self.end == u64::MAX
    }

    /// Returns whether there is no byte in it.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Returns whether a byte is in both ranges.
    #[must_use]
    #[inline]
    pub const fn overlaps(self, other: Self) -> bool {
        let start = if self.start > other.start { self.start } else { other.start };
        let end = if self.end < other.end { self.end } else { other.end };
        start < end
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            f.write_str("whole")
        } else {
            write!(f, "{:#x}..{:#x}", self.start, self.end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_if_they_share_a_byte() {
        let [first, second] = [ByteRange::new(256, 16), ByteRange::new(272, 16)];
        assert!(!first.overlaps(second) && !second.overlaps(first));
        for other in [ByteRange::new(271, 1), ByteRange::new(0, 257), first, ByteRange::WHOLE] {
            assert!(first.overlaps(other) && other.overlaps(first), "{other:?}");
        }
        let empty = ByteRange::new(260, 0);
        assert!(empty.is_empty() && !empty.overlaps(first) && !first.overlaps(empty));
        assert!(!ByteRange::WHOLE.overlaps(empty));
    }

    #[test]
    fn no_range_of_a_part_is_the_whole() {
        for (ptr, bytes) in [(0, usize::MAX), (1, usize::MAX), (u64::MAX, 1), (u64::MAX, 0)] {
            assert!(!ByteRange::new(ptr, bytes).is_whole(), "{ptr} {bytes}");
        }
        assert!(ByteRange::WHOLE.is_whole() && !ByteRange::WHOLE.is_empty());
    }
}
