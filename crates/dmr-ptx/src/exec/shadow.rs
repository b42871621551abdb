//! The last accesses to each byte of shared memory, to find threads that access it without order.

use super::order::Order;
use super::space::Run;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touching {
    Read,
    Write,
    /// An atomic or volatile read.
    StrongRead,
    /// An atomic change or volatile write.
    StrongWrite,
}

impl Touching {
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::StrongWrite)
    }

    fn is_strong(self) -> bool {
        matches!(self, Self::StrongRead | Self::StrongWrite)
    }

    /// Returns what the access is, for a report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::StrongRead => "atomic read",
            Self::StrongWrite => "atomic write",
        }
    }
}

/// An access by lanes of one warp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    /// The lanes and the first byte.
    pub(super) run: Run,
    /// The bytes of each lane.
    pub(super) bytes: u32,
    /// The number in the block of the thread of lane 0.
    pub(super) first_thread: u32,
    pub(super) touching: Touching,
    pub(super) instruction: u32,
}

/// An access that was made. One with stamp 0 is none: every thread has seen it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) thread: u16,
    pub(super) touching: Touching,
    pub(super) instruction: u32,
    stamp: u32,
}

impl Mark {
    const NONE: Self = Self { thread: 0, touching: Touching::Read, instruction: 0, stamp: 0 };
}

/// Two accesses of the same byte without order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conflict {
    pub(super) offset: u64,
    /// The lane of the later access.
    pub(super) lane: usize,
    pub(super) earlier: Mark,
}

/// The last accesses to one word, or to one byte of a split word.
#[derive(Clone, Copy, Debug)]
struct Cell {
    write: Mark,
    /// Two readers since the last write: an access conflicts with one of them if it does with any of more.
    reads: [Mark; 2],
}

impl Cell {
    const NONE: Self = Self { write: Mark::NONE, reads: [Mark::NONE; 2] };

    /// Notes an access, and returns an earlier one that is not ordered before it.
    #[inline(always)]
    fn touch(&mut self, mark: Mark, order: &Order) -> Option<Mark> {
        // What has_seen returns for most accesses: a barrier of the block is between them, or they are of one thread.
        let is_seen =
            |other: &Mark| order.is_before_barrier(other.stamp) || other.thread == mark.thread;
        let [first, second] = &mut self.reads;
        if is_seen(&self.write) {
            if mark.touching.writes() {
                if is_seen(first) && is_seen(second) {
                    *self = Self { write: mark, reads: [Mark::NONE; 2] };
                    return None;
                }
            } else if is_seen(first) {
                *first = mark;
                return None;
            } else if order.has_barriers_only() {
                *second = mark;
                return None;
            }
        }
        self.touch_any(mark, order)
    }

    fn touch_any(&mut self, mark: Mark, order: &Order) -> Option<Mark> {
        let is_seen = |other: &Mark| order.has_seen(mark.thread, other.thread, other.stamp);
        let is_ordered = |other: &Mark| {
            is_seen(other) || (other.touching.is_strong() && mark.touching.is_strong())
        };
        let mut conflict = (!is_ordered(&self.write)).then_some(self.write);
        if mark.touching.writes() {
            let mut reads = self.reads.into_iter();
            conflict = conflict.or_else(|| reads.find(|read| !is_ordered(read)));
            *self = Self { write: mark, reads: [Mark::NONE; 2] };
        } else if is_seen(&self.reads[0]) {
            self.reads[0] = mark;
        } else {
            self.reads[1] = mark;
        }
        conflict
    }
}

/// The last accesses to shared memory of a block.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    words: Vec<Cell>,
    /// For each word the number of its bytes in `bytes`, if it was accessed in part, from 1; empty if none was.
    split: Vec<u32>,
    bytes: Vec<[Cell; 4]>,
}

impl Shadow {
    pub(super) fn new(bytes: usize) -> Self {
        let words = vec![Cell::NONE; bytes.div_ceil(4)];
        Self { words, split: Vec::new(), bytes: Vec::new() }
    }

    /// Notes an access, and returns the first earlier one that is not ordered before it.
    pub(super) fn touch(&mut self, touch: &Touch, order: &Order) -> Option<Conflict> {
        let (run, lane_bytes) = (touch.run, u64::from(touch.bytes));
        let mark = |lane: usize| Mark {
            thread: (touch.first_thread + lane as u32) as u16,
            touching: touch.touching,
            instruction: touch.instruction,
            stamp: order.now(),
        };
        let mut found = None;
        let is_whole = run.address.is_multiple_of(4) && lane_bytes.is_multiple_of(4);
        if is_whole && self.split.is_empty() {
            let (first, each) = ((run.address / 4) as usize, (lane_bytes / 4) as usize);
            let words = self.words.get_mut(first..first + run.count * each)?;
            for (index, cells) in words.chunks_exact_mut(each.max(1)).enumerate() {
                let lane = run.first + index;
                let mark = mark(lane);
                for (word, cell) in cells.iter_mut().enumerate() {
                    if let Some(earlier) = cell.touch(mark, order) {
                        let offset = run.address + 4 * (index * each + word) as u64;
                        found = found.or(Some(Conflict { offset, lane, earlier }));
                    }
                }
            }
            return found;
        }
        for lane in run.first..run.first + run.count {
            let mut at = run.address + (lane - run.first) as u64 * lane_bytes;
            let end = at + lane_bytes;
            while at < end {
                let word = (at / 4) as usize;
                let whole = at.is_multiple_of(4) && at + 4 <= end;
                let conflict = if whole && self.split.get(word).is_none_or(|&split| split == 0) {
                    self.words.get_mut(word)?.touch(mark(lane), order)
                } else {
                    self.touch_bytes(word, at, end, mark(lane), order)
                };
                if let (Some(earlier), None) = (conflict, &found) {
                    found = Some(Conflict { offset: at, lane, earlier });
                }
                at = (at / 4 + 1) * 4;
            }
        }
        found
    }

    /// Notes an access to some bytes of a word.
    fn touch_bytes(
        &mut self,
        word: usize,
        at: u64,
        end: u64,
        mark: Mark,
        order: &Order,
    ) -> Option<Mark> {
        let cell = *self.words.get(word)?;
        if self.split.is_empty() {
            self.split.resize(self.words.len(), 0);
        }
        let split = self.split.get_mut(word)?;
        if *split == 0 {
            self.bytes.push([cell; 4]);
            *split = self.bytes.len() as u32;
        }
        let cells = self.bytes.get_mut(*split as usize - 1)?;
        let from = (at % 4) as usize;
        let to = (end - word as u64 * 4).min(4) as usize;
        let mut found = None;
        for cell in cells.get_mut(from..to)? {
            found = found.or(cell.touch(mark, order));
        }
        found
    }
}
