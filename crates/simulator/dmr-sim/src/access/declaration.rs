//! The accesses that a library declares for its launches.

use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::access::AddressRange;

/// A use that a launch declares, as the library passes it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DeclaredUse {
    /// An address in the block.
    pub ptr: u64,
    /// The number of the block.
    pub block: u64,
    /// The first address; 0 for the whole block.
    pub start: u64,
    /// The address behind the last; `u64::MAX` for the whole block.
    pub end: u64,
    /// 1 if the launch reads the bytes, otherwise 0.
    pub reads: u32,
    /// 1 if the launch writes the bytes, otherwise 0.
    pub writes: u32,
}

/// Changes the uses that a launch declares: a planted mistake.
pub(crate) type AlterUses = Box<dyn FnMut(&mut Vec<DeclaredUse>) + Send>;

/// The uses that the launches in force declare. What they do not allow is a finding.
#[derive(Debug, Default)]
pub(crate) struct Declaration {
    /// Its own id, and those of the declarations whose uses it includes.
    pub(crate) ids: SmallVec<[u64; 2]>,
    pub(crate) uses: Vec<DeclaredUse>,
    /// The bytes that may be accessed, once the blocks of the uses are known.
    pub(crate) allowed: OnceLock<Allowed>,
}

/// Disjoint ranges of addresses, in order.
#[derive(Debug, Default)]
pub(crate) struct DisjointRanges(Vec<AddressRange>);

/// The bytes that a launch may access.
#[derive(Debug, Default)]
pub(crate) struct Allowed {
    pub(crate) accesses: DisjointRanges,
    pub(crate) writes: DisjointRanges,
    /// The uses, for messages.
    pub(crate) listed: String,
}

impl DisjointRanges {
    /// Orders the ranges, and joins those that touch.
    pub(crate) fn new(mut ranges: Vec<AddressRange>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|later, earlier| {
            let touches = later.start() <= earlier.end();
            if touches {
                *earlier = AddressRange::between(earlier.start(), earlier.end().max(later.end()));
            }
            touches
        });
        Self(ranges)
    }

    /// Returns the first bytes of the range that are in none of these.
    pub(crate) fn first_outside(&self, range: AddressRange) -> Option<AddressRange> {
        let mut at = range.start();
        let mut next = self.first_behind(at);
        while let Some(known) = self.0.get(next)
            && known.start() <= at
        {
            at = known.end();
            next += 1;
        }
        let limit = self.0.get(next).map_or(range.end(), |known| known.start().min(range.end()));
        (at < range.end()).then(|| AddressRange::between(at, limit))
    }

    pub(crate) fn contains(&self, at: u64) -> bool {
        self.0.get(self.first_behind(at)).is_some_and(|known| known.start() <= at)
    }

    /// Returns the place of the first range that ends behind `at`.
    fn first_behind(&self, at: u64) -> usize {
        self.0.partition_point(|known| known.end() <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressRange, DisjointRanges};

    fn joined(ranges: &[(u64, u64)]) -> DisjointRanges {
        DisjointRanges::new(ranges.iter().map(between).collect())
    }

    fn between(&(start, end): &(u64, u64)) -> AddressRange {
        AddressRange::between(start, end)
    }

    fn outside(ranges: &DisjointRanges, start: u64, end: u64) -> Option<(u64, u64)> {
        let found = ranges.first_outside(AddressRange::between(start, end));
        found.map(|range| (range.start(), range.end()))
    }

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let ranges = joined(&[(20, 30), (0, 4), (4, 8), (22, 25), (29, 31)]);
        assert_eq!(ranges.0, [(0, 8), (20, 31)].map(|range| between(&range)));
        assert!(ranges.contains(7) && !ranges.contains(8) && !ranges.contains(19));
        assert!(ranges.contains(20) && ranges.contains(30) && !ranges.contains(31));
    }

    #[test]
    fn the_first_bytes_outside_are_found_before_between_and_behind_the_ranges() {
        let ranges = joined(&[(10, 20), (30, 40)]);
        assert_eq!(outside(&ranges, 0, 50), Some((0, 10)));
        assert_eq!(outside(&ranges, 10, 50), Some((20, 30)));
        assert_eq!(outside(&ranges, 15, 25), Some((20, 25)));
        assert_eq!(outside(&ranges, 30, 45), Some((40, 45)));
        assert_eq!(outside(&ranges, 12, 20), None);
        assert_eq!(outside(&joined(&[]), 3, 4), Some((3, 4)));
        assert_eq!(outside(&joined(&[(0, 4), (4, 9)]), 1, 9), None);
    }
}
