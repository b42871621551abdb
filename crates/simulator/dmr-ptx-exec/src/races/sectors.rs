//! The last accesses to each byte of memory: one cell for 32 bytes as long as full lanes of a warp
//! access all of them, then one for each word, then one for each byte.

use super::records::Entry;
use super::{AccessKind, Check};
use rustc_hash::FxHashMap;

/// The number of bytes of a sector.
pub(super) const SECTOR: u64 = 32;
const WORDS: usize = 8;
const BYTES: usize = 32;
/// The number of sectors of a page.
const PAGE: u64 = 128;

/// A function that returns whether a thread has seen an access of another thread of its block.
pub(super) trait Seen: Fn(u32, u32, u32) -> bool {}

impl<F: Fn(u32, u32, u32) -> bool> Seen for F {}

/// The last accesses to some bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cell {
    write: Entry,
    /// The last atomic change since the write.
    change: Entry,
    /// Two reads since the write, which were not ordered when the second was made.
    reads: [Entry; 2],
}

impl Cell {
    fn after(self, lanes: impl Fn(Entry) -> u32) -> Self {
        let after = |entry: Entry| entry.after(lanes(entry));
        Self { write: after(self.write), change: after(self.change), reads: self.reads.map(after) }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        [self.write, self.change, self.reads[0], self.reads[1]]
            .into_iter()
            .filter(|&entry| entry != Entry::NONE)
    }

    /// Records an access, and returns an earlier one that races with it.
    fn record<S: Seen>(&mut self, mine: Entry, check: &Check<'_, S>) -> Option<Entry> {
        let [first, second] = self.reads;
        if first == mine || second == mine || self.change == mine {
            return None;
        }
        let found = self.entries().find(|&other| check.races(mine, other));
        match check.record.kind {
            AccessKind::Write => *self = Self { write: mine, ..Self::default() },
            AccessKind::StrongWrite | AccessKind::BlockWrite => self.change = mine,
            // What is ordered after this read is ordered after one that is ordered before it.
            _ if first == Entry::NONE || check.is_ordered(mine, first) => self.reads[0] = mine,
            _ => self.reads[1] = mine,
        }
        found
    }
}

/// The last accesses to 32 bytes.
#[derive(Debug)]
enum Sector {
    /// Each access was to all bytes by lanes that follow each other; an entry has the lane of byte
    /// 0.
    Whole(Cell),
    Words(Box<[Cell; WORDS]>),
    Bytes(Box<[Cell; BYTES]>),
}

/// The bytes of a sector that an access is to.
pub(super) struct Span {
    pub(super) from: usize,
    pub(super) bytes: usize,
    /// The access by the lane of byte `from`.
    pub(super) entry: Entry,
    /// The bytes of a lane.
    pub(super) lane_bytes: u32,
}

impl Span {
    /// Returns the entry of the byte at `offset` of the sector.
    fn entry_at(&self, offset: usize) -> Entry {
        self.entry.after((offset - self.from) as u32 / self.lane_bytes)
    }

    fn is_whole(&self) -> bool {
        self.bytes == BYTES
    }

    /// Returns whether each word that it touches is all of one lane.
    fn has_words(&self) -> bool {
        self.from.is_multiple_of(4)
            && self.bytes.is_multiple_of(4)
            && self.lane_bytes.is_multiple_of(4)
    }
}

impl Sector {
    fn record<S: Seen>(&mut self, span: &Span, check: &Check<'_, S>) -> Option<(usize, Entry)> {
        if let Self::Whole(cell) = self
            && span.is_whole()
            && cell.entries().all(|other| is_apart_or_equal(span, other, check))
        {
            return cell.record(span.entry, check).map(|other| (0, other));
        }
        self.split(span, check);
        let (size, cells): (usize, &mut [Cell]) = match self {
            Self::Words(cells) => (4, &mut cells[..]),
            Self::Bytes(cells) => (1, &mut cells[..]),
            Self::Whole(_) => return None,
        };
        let mut found = None;
        for (index, cell) in cells
            .iter_mut()
            .enumerate()
            .take((span.from + span.bytes) / size)
            .skip(span.from / size)
        {
            let offset = index * size;
            let conflict = cell.record(span.entry_at(offset), check);
            found = found.or(conflict.map(|other| (offset, other)));
        }
        if check.record.kind == AccessKind::Write && span.is_whole() {
            *self = Self::Whole(Cell { write: span.entry, ..Cell::default() });
        }
        found
    }

    /// Splits it as far as an access needs.
    fn split<S: Seen>(&mut self, span: &Span, check: &Check<'_, S>) {
        let cells: [Cell; BYTES] = match self {
            Self::Whole(cell) => {
                let lane_bytes =
                    |entry: Entry| u32::from(check.records.get(entry).lane_bytes.max(1));
                let at = |offset: usize| cell.after(|entry| offset as u32 / lane_bytes(entry));
                if span.has_words() && cell.entries().all(|entry| lane_bytes(entry) % 4 == 0) {
                    *self = Self::Words(Box::new(std::array::from_fn(|word| at(4 * word))));
                    return;
                }
                std::array::from_fn(at)
            }
            Self::Words(cells) if !span.has_words() => std::array::from_fn(|byte| cells[byte / 4]),
            Self::Words(_) | Self::Bytes(_) => return,
        };
        *self = Self::Bytes(Box::new(cells));
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Words(_) => size_of::<[Cell; WORDS]>(),
            Self::Bytes(_) => size_of::<[Cell; BYTES]>(),
        }
    }
}

/// Returns whether an access to all bytes relates to `other` in each byte as it does in the first:
/// it is of another warp, or each byte is of the same lane in both.
fn is_apart_or_equal<S: Seen>(span: &Span, other: Entry, check: &Check<'_, S>) -> bool {
    let mine = &check.record;
    let other_record = check.records.get(other);
    mine.block != other_record.block
        || mine.first_thread != other_record.first_thread
        || (mine.lane_bytes == other_record.lane_bytes && span.entry.lane() == other.lane())
}

/// The last accesses to each byte of memory.
#[derive(Debug, Default)]
pub(super) struct Sectors {
    /// Page after page, in the order in which they were first accessed.
    sectors: Vec<Sector>,
    /// The place in `sectors` of the first sector of each page.
    places: FxHashMap<u64, usize>,
    /// The page that was used last, and its place.
    last: Option<(u64, usize)>,
    split_bytes: usize,
}

impl Sectors {
    /// Records an access to bytes of a sector, and returns an earlier one that races with it: the
    /// offset in the sector of the first byte, and the access.
    pub(super) fn record<S: Seen>(
        &mut self,
        sector: u64,
        span: &Span,
        check: &Check<'_, S>,
    ) -> Option<(usize, Entry)> {
        let page = sector / PAGE;
        let index = (sector % PAGE) as usize;
        let place = match self.last {
            Some((last, place)) if last == page => place,
            _ => self.find(page),
        };
        let sector = &mut self.sectors[place + index];
        let before = sector.bytes();
        let found = sector.record(span, check);
        self.split_bytes = self.split_bytes + sector.bytes() - before;
        found
    }

    fn find(&mut self, page: u64) -> usize {
        let sectors = &mut self.sectors;
        let place = *self.places.entry(page).or_insert_with(|| {
            let place = sectors.len();
            sectors.resize_with(place + PAGE as usize, || Sector::Whole(Cell::default()));
            place
        });
        self.last = Some((page, place));
        place
    }

    /// Returns the bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.sectors[..]) + self.split_bytes
    }
}
