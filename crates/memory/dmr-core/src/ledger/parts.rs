//! The uses of a block that is used in parts: a ledger for each range of bytes.

use smallvec::SmallVec;

use super::{Ledger, UseId};
use crate::{Access, ByteRange};

/// The number of ranges above which neighbours are joined: enough for 4,094 pages between which
/// there is other memory. A use adds two at most, so a list has 8,192 ranges of 56 bytes at most,
/// 448 KiB on the host heap.
const MOST: usize = 8190;

/// The number of ranges that a list without uses keeps memory for.
const KEPT: usize = 128;

/// The uses of one block that later uses may have to wait for, for each range of its bytes.
///
/// A list of ranges that cover all addresses. A use splits the ranges at its two ends, waits for
/// the uses of those inside, and is committed to each. Those inside that have the same uses then
/// are one range again, so a write of the whole block leaves one. Neighbours outside stay apart:
/// work on pages finds them split.
///
/// Each range keeps these invariants for each of its bytes:
///
/// - every finished write of the byte is a write in the range, or ordered before one, or known to
///   be done;
/// - every finished read is a read or a write in the range, or ordered before one, or known to be
///   done.
///
/// They are those of a [`Ledger`], except that a read in a range need not be ordered after the
/// writes there: a range can have writes of several streams. So a use waits for the writes although
/// it waits for a read as well; where the read came after a write, the event of the read covers
/// that wait.
///
/// # Why two ranges can be joined
///
/// A list that becomes too long first drops the uses that are known to be done, and then joins
/// those neighbours that have most in common. Their union has, of each stream, the latest of the
/// two writes and the latest of the two reads. Each use in one of the two is in the union, or a
/// later use of its stream is, with which it is ordered before; so the invariants hold for the
/// bytes of both, and a use waits for all that it waited for. That a write removes the other uses
/// needs what it needs in a [`Ledger`]: its stream has waited for all uses of *its* bytes, and a
/// use of other bytes that the union has brought in was not needed for these. A stream may wait for
/// a later use of other bytes: a wait more, never one less.
#[derive(Clone, Debug)]
pub struct PartLedger {
    /// Sorted; the first one starts at 0, and each one ends where the next one starts. Without
    /// ranges there are no uses.
    ranges: Vec<UsedRange>,
    /// The number of ranges above which neighbours are joined.
    most: usize,
}

impl Default for PartLedger {
    fn default() -> Self {
        Self { ranges: Vec::new(), most: MOST }
    }
}

/// The uses of the bytes from `start` to the start of the next range.
#[derive(Clone, Debug, Default)]
struct UsedRange {
    start: u64,
    writes: Latest,
    reads: Latest,
}

/// The latest use of each stream, by stream.
type Latest = SmallVec<[UseId; 2]>;

impl PartLedger {
    /// Makes the ledger of a new block: its allocation counts as a write on its home stream.
    #[must_use]
    pub fn allocated(home: UseId) -> Self {
        let mut allocated = Self::default();
        allocated.copy(&Ledger::allocated(home));
        allocated
    }

    /// Sets the number of ranges above which neighbours are joined. It is at least 4.
    #[must_use]
    pub fn with_most_ranges(mut self, most: usize) -> Self {
        self.most = most.max(4);
        self
    }

    /// Makes all bytes have the uses in `whole`, and no others.
    pub fn copy(&mut self, whole: &Ledger) {
        let mut reads = Latest::from_slice(&whole.reads);
        reads.sort_unstable();
        let writes = whole.last_write.into_iter().collect();
        self.ranges.clear();
        self.ranges.push(UsedRange { start: 0, writes, reads });
    }

    /// Returns a ledger with the same uses, and removes them here, if they are of all bytes and a
    /// [`Ledger`] can have them.
    pub fn take_whole(&mut self) -> Option<Ledger> {
        let [all] = self.ranges.as_slice() else { return None };
        let last_write = match all.writes.as_slice() {
            [] => None,
            // A wait for a read must be a wait for the write: a later read of the same stream.
            // Joined ranges may have an earlier one.
            [write] if all.reads.iter().all(|read| read.covers(*write)) => Some(*write),
            _ => return None,
        };
        let reads = self.ranges.pop()?.reads;
        Some(Ledger { last_write, reads })
    }

    /// Returns whether there are no uses.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Removes all uses, and keeps the memory of a short list on the host heap.
    pub fn clear(&mut self) {
        self.ranges.clear();
        if self.ranges.capacity() > KEPT {
            self.ranges = Vec::new();
        }
    }

    /// Drops the uses that are done and joins ranges, if the list has no room for another use.
    /// Without this call [`commit`](Self::commit) joins more ranges.
    #[inline]
    pub fn make_room(&mut self, is_done: impl Fn(UseId) -> bool) {
        if self.ranges.len() + 2 > self.most {
            self.drop_done(is_done);
        }
    }

    #[cold]
    fn drop_done(&mut self, is_done: impl Fn(UseId) -> bool) {
        self.ranges.iter_mut().for_each(|range| range.retain(|used| !is_done(used)));
        self.ranges.dedup_by(|later, earlier| later.has_uses_of(earlier));
        self.join_closest();
    }

    /// Calls `visit` with the uses that the stream in `slot` must wait for before it uses these
    /// bytes: a read with the writes of other streams, a write with their reads as well. A use of
    /// several ranges is visited several times.
    pub fn visit_waits(
        &self,
        bytes: ByteRange,
        slot: usize,
        access: Access,
        mut visit: impl FnMut(UseId),
    ) {
        for range in self.overlapping(bytes) {
            let reads = if access.writes() { range.reads.as_slice() } else { &[] };
            let uses = range.writes.iter().chain(reads);
            uses.filter(|used| used.slot() != slot).for_each(|used| visit(*used));
        }
    }

    /// Calls `visit` with the latest use of each stream: what the free of the block must come
    /// after.
    pub fn visit_free_waits(&self, visit: impl FnMut(UseId)) {
        let mut latest = Latest::new();
        self.entries().for_each(|used| raise(&mut latest, used));
        latest.into_iter().for_each(visit);
    }

    /// Records a finished use of these bytes, unless a later use of the same stream was committed
    /// first and covers it.
    pub fn commit(&mut self, bytes: ByteRange, access: Access, used: UseId) {
        if bytes.is_empty() {
            return;
        }
        let (first, end) = self.split(bytes);
        self.ranges[first..end].iter_mut().for_each(|range| range.commit(access, used));
        self.join(first, end);
    }

    /// Returns the uses of each range.
    pub fn entries(&self) -> impl Iterator<Item = UseId> {
        self.ranges.iter().flat_map(|range| range.reads.iter().chain(&range.writes)).copied()
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the ranges that have some of these bytes.
    fn overlapping(&self, bytes: ByteRange) -> impl Iterator<Item = &UsedRange> {
        let after_first = self.ranges.partition_point(|range| range.start <= bytes.start());
        let from_first = self.ranges.iter().skip(after_first.saturating_sub(1));
        from_first.take_while(move |range| range.start < bytes.end() && !bytes.is_empty())
    }

    /// Splits the ranges at both ends of these bytes. Returns the indices of the first range inside
    /// and of the first one behind them.
    fn split(&mut self, bytes: ByteRange) -> (usize, usize) {
        if self.ranges.is_empty() {
            self.ranges.push(UsedRange::default());
        }
        let first = self.split_at(bytes.start());
        let end = if bytes.is_whole() { self.ranges.len() } else { self.split_at(bytes.end()) };
        (first, end)
    }

    /// Makes a range start at this address, and returns its index.
    fn split_at(&mut self, start: u64) -> usize {
        let at = self.ranges.partition_point(|range| range.start < start);
        if self.ranges.get(at).is_none_or(|range| range.start != start) {
            // The first range starts at 0, so there is one before this.
            let split = UsedRange { start, ..self.ranges[at - 1].clone() };
            self.ranges.insert(at, split);
        }
        at
    }

    /// Joins those ranges with indices from `first` to `end` that have the same uses; if there are
    /// too many ranges, also others.
    fn join(&mut self, first: usize, end: usize) {
        let mut kept = first + 1;
        for at in first + 1..end {
            if !self.ranges[at].has_uses_of(&self.ranges[kept - 1]) {
                self.ranges.swap(at, kept);
                kept += 1;
            }
        }
        if kept < end {
            self.ranges.drain(kept..end);
        }
        if self.ranges.len() > self.most {
            self.join_closest();
        }
    }

    /// Joins the neighbours that have most in common, until the list is a quarter shorter than it
    /// may be: then many uses need no such search.
    #[cold]
    fn join_closest(&mut self) {
        let left = self.most / 4 * 3;
        let Some(mut surplus) = self.ranges.len().checked_sub(left).filter(|it| *it > 0) else {
            return;
        };
        let pairs = self.ranges.windows(2);
        let distances: Vec<_> = pairs.map(|pair| pair[0].distance(&pair[1])).collect();
        let mut sorted = distances.clone();
        let (_, limit, _) = sorted.select_nth_unstable(surplus - 1);
        let mut pairs = distances.iter();
        self.ranges.dedup_by(|later, earlier| {
            let is_close = pairs.next().is_some_and(|distance| distance <= limit);
            let joins = is_close && surplus > 0;
            if joins {
                earlier.add_all(later);
                surplus -= 1;
            }
            joins
        });
    }
}

impl UsedRange {
    fn commit(&mut self, access: Access, used: UseId) {
        if self.writes.iter().any(|write| write.covers(used)) {
            return;
        }
        if !access.writes() {
            return raise(&mut self.reads, used);
        }
        self.writes.clear();
        self.writes.push(used);
        // A read of the same stream that comes after this write stays, as the only one.
        self.reads.retain(|read| read.slot() == used.slot() && !used.covers(*read));
    }

    fn retain(&mut self, keep: impl Fn(UseId) -> bool) {
        self.writes.retain(|used| keep(*used));
        self.reads.retain(|used| keep(*used));
    }

    fn has_uses_of(&self, other: &Self) -> bool {
        self.writes == other.writes && self.reads == other.reads
    }

    /// Adds the uses of other bytes.
    fn add_all(&mut self, other: &Self) {
        other.writes.iter().for_each(|used| raise(&mut self.writes, *used));
        other.reads.iter().for_each(|used| raise(&mut self.reads, *used));
    }

    /// Returns what joining two ranges adds to the waits of later uses: first the number of
    /// streams, then by how much later their uses are.
    fn distance(&self, other: &Self) -> Distance {
        let writes = distance(&self.writes, &other.writes);
        let reads = distance(&self.reads, &other.reads);
        Distance {
            streams: writes.streams + reads.streams,
            later: writes.later.saturating_add(reads.later),
        }
    }
}

/// The difference of the uses of two ranges, in the order of what joining the ranges costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Distance {
    /// The number of streams with a use in one range only.
    streams: usize,
    /// The numbers by which the uses of the other streams become later.
    later: u64,
}

/// Adds a use, unless there is a later one of its stream.
fn raise(latest: &mut Latest, used: UseId) {
    let at = latest.partition_point(|known| known.slot() < used.slot());
    match latest.get_mut(at) {
        Some(known) if known.slot() == used.slot() => *known = used.max(*known),
        _ => latest.insert(at, used),
    }
}

fn distance(one: &Latest, other: &Latest) -> Distance {
    let mut of_both = Distance::default();
    let mut rest = other.iter().peekable();
    for used in one {
        while rest.next_if(|it| it.slot() < used.slot()).is_some() {
            of_both.streams += 1;
        }
        match rest.next_if(|it| it.slot() == used.slot()) {
            Some(it) => of_both.later = of_both.later.saturating_add(it.seq().abs_diff(used.seq())),
            None => of_both.streams += 1,
        }
    }
    of_both.streams += rest.count();
    of_both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_is_later_than_a_read_of_joined_bytes_is_not_left_to_the_read() {
        let used = |seq| Latest::from_slice(&[UseId::new(0, seq)]);
        let range = |reads, writes| UsedRange { start: 0, writes, reads };
        let mut joined = PartLedger::default();
        joined.ranges.push(range(used(3), used(5)));
        assert!(joined.take_whole().is_none());
        joined.ranges = vec![range(used(7), used(5))];
        assert_eq!(joined.take_whole().map(|whole| whole.entries().count()), Some(2));
    }
}
