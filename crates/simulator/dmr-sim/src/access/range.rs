//! Ranges of addresses, and those that one operation accesses.

use crate::access::AccessKind;

/// The addresses from `start` on, as many as `len`. A range that passes the end of the address
/// space ends there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AddressRange {
    start: u64,
    len: u64,
}

impl AddressRange {
    #[inline]
    pub(crate) const fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }

    /// Makes the range from `start` to `end`, the first address behind it; empty if it is not
    /// behind `start`.
    #[inline]
    pub(crate) const fn between(start: u64, end: u64) -> Self {
        Self { start, len: end.saturating_sub(start) }
    }

    #[inline]
    pub(crate) const fn start(self) -> u64 {
        self.start
    }

    #[inline]
    pub(crate) const fn len(self) -> u64 {
        self.len
    }

    /// Returns the first address behind the range.
    #[inline]
    pub(crate) const fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns whether the other range is inside of this one, or empty at its end.
    #[inline]
    pub(crate) fn holds(self, other: Self) -> bool {
        let skipped = other.start.checked_sub(self.start);
        skipped.is_some_and(|skipped| skipped <= self.len && other.len <= self.len - skipped)
    }
}

/// Ranges that an operation accesses in one way.
#[derive(Clone, Copy)]
pub(crate) struct AccessedRanges<'a> {
    pub(crate) kind: AccessKind,
    pub(crate) ranges: &'a [AddressRange],
}

impl<'a> AccessedRanges<'a> {
    pub(crate) fn new(kind: AccessKind, ranges: &'a [AddressRange]) -> Self {
        Self { kind, ranges }
    }
}
