//! Sets of bytes by address: a bit for each byte of a touched page, and ranges where an access is
//! long.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use crate::access::AddressRange;

/// The bytes of a page. Its bits take an eighth of that.
const PAGE: u64 = 4096;
/// The bytes whose bits are in one word.
const WORD: u64 = 64;
/// The length from which on an access is stored as a range.
const LONG: u64 = 64 << 10;

/// A set of bytes. The time to add a short range does not depend on what is in the set.
#[derive(Default)]
pub(crate) struct ByteSet {
    /// Disjoint ranges that do not touch: start and end.
    long: BTreeMap<u64, u64>,
    /// The index of each touched page in `bits`.
    pages: HashMap<u64, u32>,
    bits: Vec<[u64; (PAGE / WORD) as usize]>,
    /// The page that was used last, and its index.
    last: Cell<Option<(u64, u32)>>,
}

/// Some of the 64 bytes from `WORD * index` on: bit `i` is byte `i` of them.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub(crate) index: u64,
    pub(crate) mask: u64,
}

impl Chunk {
    /// Returns the chunks of a range.
    pub(crate) fn of(from: u64, to: u64) -> impl Iterator<Item = Self> {
        let last = if from < to { to.div_ceil(WORD) } else { 0 };
        (from / WORD..last).map(move |index| {
            let start = index * WORD;
            let skipped = from.saturating_sub(start);
            let end = (to - start).min(WORD);
            Self { index, mask: (u64::MAX >> (WORD - end)) & (u64::MAX << skipped) }
        })
    }

    /// Returns the contiguous ranges of the chunk.
    fn ranges(self) -> impl Iterator<Item = AddressRange> {
        let mut rest = self.mask;
        let start = self.index * WORD;
        std::iter::from_fn(move || {
            let from = u64::from(rest.trailing_zeros());
            if from == WORD {
                return None;
            }
            let length = u64::from((!(rest >> from)).trailing_zeros()).min(WORD - from);
            rest &= !((u64::MAX >> (WORD - length)) << from);
            Some(AddressRange::new(start + from, length))
        })
    }
}

impl ByteSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.long.is_empty() && self.bits.is_empty()
    }

    /// Adds the bytes from `from` to `to`.
    pub(crate) fn insert(&mut self, from: u64, to: u64) {
        if to <= from {
            return;
        }
        if to - from >= LONG {
            self.insert_long(from, to);
            return;
        }
        for chunk in Chunk::of(from, to) {
            self.insert_chunk(chunk);
        }
    }

    /// Adds the bytes of a chunk. Returns whether one of them is new.
    pub(crate) fn insert_chunk(&mut self, chunk: Chunk) -> bool {
        let page = chunk.index / (PAGE / WORD);
        let index = match self.page(page) {
            Some(index) => index,
            None => {
                let index = self.bits.len() as u32;
                self.bits.push([0; (PAGE / WORD) as usize]);
                self.pages.insert(page, index);
                self.last.set(Some((page, index)));
                index
            }
        };
        let word = &mut self.bits[index as usize][(chunk.index % (PAGE / WORD)) as usize];
        let is_new = chunk.mask & !*word != 0;
        *word |= chunk.mask;
        is_new
    }

    /// Removes bytes, which are not part of a range of [`LONG`] bytes that was added at once.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        for Chunk { index, mask } in Chunk::of(from, to) {
            if let Some(page) = self.page(index / (PAGE / WORD)) {
                self.bits[page as usize][(index % (PAGE / WORD)) as usize] &= !mask;
            }
        }
    }

    /// Returns the bytes of a chunk that are in the set.
    pub(crate) fn within(&self, chunk: Chunk) -> u64 {
        let page = chunk.index / (PAGE / WORD);
        let mut found = self
            .page(page)
            .map_or(0, |index| self.bits[index as usize][(chunk.index % (PAGE / WORD)) as usize]);
        let start = chunk.index * WORD;
        if self.long.is_empty() {
            return found & chunk.mask;
        }
        // One range can contain the start of the chunk, and others can start in it.
        let around = self.long.range(..start).next_back();
        for (&from, &to) in around.into_iter().chain(self.long.range(start..start + WORD)) {
            let part = Chunk::of(from.max(start), to.min(start + WORD).max(start)).next();
            found |= part.map_or(0, |part| part.mask);
        }
        found & chunk.mask
    }

    /// Returns whether the set has the byte.
    pub(crate) fn contains(&self, at: u64) -> bool {
        self.within(Chunk { index: at / WORD, mask: 1 << (at % WORD) }) != 0
    }

    /// Returns whether the set may have a byte of the range: `false` if it has none.
    pub(crate) fn may_overlap(&self, from: u64, to: u64) -> bool {
        let last = self.long.range(..to).next_back();
        last.is_some_and(|(_, end)| *end > from)
            || self.pages.keys().any(|page| page * PAGE < to && (page + 1) * PAGE > from)
    }

    /// Returns the ranges of the set: maximal ones, by address.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        let mut pages: Vec<_> = self.pages.iter().map(|(&page, &index)| (page, index)).collect();
        pages.sort_unstable();
        let short = pages.into_iter().flat_map(|(page, index)| {
            let words = self.bits[index as usize].iter().enumerate();
            words.flat_map(move |(word, &mask)| {
                Chunk { index: page * (PAGE / WORD) + word as u64, mask }.ranges()
            })
        });
        let long = self.long.iter().map(|(&from, &to)| AddressRange::between(from, to));
        merged(short.peekable(), long.peekable())
    }

    fn page(&self, page: u64) -> Option<u32> {
        match self.last.get() {
            Some((last, index)) if last == page => Some(index),
            _ => {
                let index = *self.pages.get(&page)?;
                self.last.set(Some((page, index)));
                Some(index)
            }
        }
    }

    fn insert_long(&mut self, mut from: u64, mut to: u64) {
        while let Some((&start, &end)) = self.long.range(..=to).next_back() {
            if end < from {
                break;
            }
            self.long.remove(&start);
            from = from.min(start);
            to = to.max(end);
        }
        self.long.insert(from, to);
    }
}

/// Merges two sequences of ranges, each by its start, into maximal ranges.
fn merged<I, J>(
    mut a: std::iter::Peekable<I>,
    mut b: std::iter::Peekable<J>,
) -> impl Iterator<Item = AddressRange>
where
    I: Iterator<Item = AddressRange>,
    J: Iterator<Item = AddressRange>,
{
    let mut next = move || match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if x.start() <= y.start() => a.next(),
        (Some(_), None) => a.next(),
        _ => b.next(),
    };
    let mut pending = None;
    std::iter::from_fn(move || {
        let mut joined: AddressRange = pending.take().or_else(&mut next)?;
        while let Some(range) = next() {
            if range.start() > joined.end() {
                pending = Some(range);
                break;
            }
            joined = AddressRange::between(joined.start(), joined.end().max(range.end()));
        }
        Some(joined)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lengths around those of a word, of a page and of a long range.
    fn range() -> impl Strategy<Value = (u64, u64)> {
        let length = prop_oneof![1..9u64, 60..70u64, 4090..4100u64, LONG - 2..LONG + 3];
        let start = prop_oneof![0..200u64, 4000..4200u64, LONG - 100..LONG + 100];
        (start, length).prop_map(|(from, length)| (from, from + length))
    }

    proptest! {
        #[test]
        fn a_byte_set_is_a_set_of_bytes(
            inserted in proptest::collection::vec(range(), 1..12),
            (from, to) in range(),
        ) {
            let mut set = ByteSet::default();
            let mut model = vec![false; 4 * LONG as usize];
            for &(from, to) in &inserted {
                set.insert(from, to);
                model[from as usize..to as usize].fill(true);
            }
            let mut ranges = Vec::new();
            let mut start = None;
            for (at, &is_in) in model.iter().enumerate() {
                match (is_in, start) {
                    (true, None) => start = Some(at as u64),
                    (false, Some(from)) => {
                        ranges.push(AddressRange::between(from, at as u64));
                        start = None;
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(set.ranges().collect::<Vec<_>>(), ranges);
            for chunk in Chunk::of(from, to) {
                for bit in 0..WORD {
                    let at = chunk.index * WORD + bit;
                    let inside = (from..to).contains(&at);
                    prop_assert_eq!(chunk.mask >> bit & 1 == 1, inside);
                    prop_assert_eq!(set.within(chunk) >> bit & 1 == 1, inside && model[at as usize]);
                    prop_assert_eq!(set.contains(at), model[at as usize]);
                }
            }
            let overlaps = model[from as usize..to as usize].contains(&true);
            prop_assert!(!overlaps || set.may_overlap(from, to));
        }
    }
}
