//! The last accesses to each byte of shared memory, to find threads that access it without order.
//!
//! Most accesses are of whole words, and are ordered by the last barrier of the block: for these
//! [`Cell::record_seen`] compares a few numbers. A word that is accessed in part gets a cell for
//! each of its bytes until the next barrier: in kernels of 8 and 16 bit types, different threads
//! own neighbouring values of one word.

use std::ops::Range;

use super::access::AccessKind;
use super::order::Order;
use super::space::Run;

/// An access by lanes of one warp.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedAccess {
    /// The lanes and the first byte.
    pub(super) run: Run,
    /// The bytes of each lane.
    pub(super) bytes: u32,
    /// The number in the block of the thread of lane 0.
    pub(super) first_thread: u32,
    pub(super) kind: AccessKind,
    pub(super) instruction: u32,
}

impl SharedAccess {
    /// Returns the access of a lane, to be noted.
    #[inline(always)]
    fn mark(&self, lane: usize, order: &Order) -> Mark {
        Mark {
            thread: (self.first_thread + lane as u32) as u16,
            kind: self.kind,
            instruction: self.instruction,
            stamp: order.now(),
        }
    }
}

/// An access that was made. One with stamp 0 is none: every thread has seen it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) thread: u16,
    pub(super) kind: AccessKind,
    pub(super) instruction: u32,
    stamp: u32,
}

impl Mark {
    const NONE: Self = Self { thread: 0, kind: AccessKind::Read, instruction: 0, stamp: 0 };
}

/// Two accesses of the same byte without order.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedConflict {
    pub(super) offset: u64,
    /// The lane of the later access.
    pub(super) lane: usize,
    pub(super) earlier: Mark,
}

/// The last accesses to one word, or to one byte of a split word.
#[derive(Clone, Copy, Debug)]
struct Cell {
    write: Mark,
    /// Two readers since the last write: an access conflicts with one of them if it does with any
    /// of more.
    reads: [Mark; 2],
}

impl Cell {
    const NONE: Self = Self { write: Mark::NONE, reads: [Mark::NONE; 2] };

    /// Records an access, and returns true, if all earlier ones are ordered before it as they
    /// mostly are: a barrier of the block is between them, or they are of one thread.
    #[inline(always)]
    fn record_seen(&mut self, mark: Mark, order: &Order) -> bool {
        let is_seen =
            |other: &Mark| order.is_before_barrier(other.stamp) || other.thread == mark.thread;
        let [first, second] = &mut self.reads;
        if !is_seen(&self.write) {
            return false;
        }
        if mark.kind.writes() {
            if !is_seen(first) || !is_seen(second) {
                return false;
            }
            *self = Self { write: mark, reads: [Mark::NONE; 2] };
        } else if is_seen(first) {
            *first = mark;
        } else if order.has_barriers_only() {
            *second = mark;
        } else {
            return false;
        }
        true
    }

    /// Records an access, and returns an earlier one that is not ordered before it.
    fn record_any(&mut self, mark: Mark, order: &Order) -> Option<Mark> {
        let is_seen = |other: &Mark| order.has_seen(mark.thread, other.thread, other.stamp);
        let is_ordered =
            |other: &Mark| is_seen(other) || (other.kind.is_strong() && mark.kind.is_strong());
        let mut conflict = (!is_ordered(&self.write)).then_some(self.write);
        if mark.kind.writes() {
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

/// The thread of [`Cell::write`] in a word that is split, a number that no thread has: until the
/// next barrier of the block, which all accesses to its bytes are before.
const SPLIT: u16 = u16::MAX;

/// The last accesses to the bytes of words that were accessed in part since a barrier of the block.
#[derive(Debug, Default)]
struct Split {
    /// The stamp at which a word was last split. Once a barrier is after it, no word is split.
    stamp: u32,
    words: Vec<[Cell; 4]>,
}

impl Split {
    /// Records an access to some bytes of a word, and returns an earlier one that is not ordered
    /// before it.
    #[inline(never)]
    fn record(
        &mut self,
        word: &mut Cell,
        bytes: Range<usize>,
        (access, lane): (&SharedAccess, usize),
        order: &Order,
    ) -> Option<Mark> {
        let mark = access.mark(lane, order);
        let is_split = word.write.thread == SPLIT && !order.is_before_barrier(word.write.stamp);
        if !is_split {
            if bytes.len() == 4 {
                return word.record_any(mark, order);
            }
            if order.is_before_barrier(self.stamp) {
                self.words.clear();
            }
            self.stamp = mark.stamp;
            self.words.push([*word; 4]);
            let instruction = self.words.len() as u32 - 1;
            *word = Cell { write: Mark { thread: SPLIT, instruction, ..mark }, ..Cell::NONE };
        }
        let mut found = None;
        for cell in self.words.get_mut(word.write.instruction as usize)?.get_mut(bytes)? {
            if !cell.record_seen(mark, order)
                && let Some(earlier) = cell.record_any(mark, order)
                && found.is_none()
            {
                found = Some(earlier);
            }
        }
        found
    }
}

/// The last accesses to shared memory of a block.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    words: Vec<Cell>,
    split: Split,
}

impl Shadow {
    pub(super) fn new(bytes: usize) -> Self {
        Self { words: vec![Cell::NONE; bytes.div_ceil(4)], split: Split::default() }
    }

    /// Records an access, and returns the first earlier one that is not ordered before it.
    pub(super) fn record(
        &mut self,
        access: &SharedAccess,
        order: &Order,
    ) -> Option<SharedConflict> {
        let run = access.run;
        let each = access.bytes as usize;
        let mut found = None;
        let start = run.address as usize;
        if (start | each).is_multiple_of(4) {
            let words = self.words.get_mut(start / 4..(start + run.count * each) / 4)?;
            let mut lane = run.first;
            let mut rest = each;
            for (word, cell) in words.iter_mut().enumerate() {
                if !cell.record_seen(access.mark(lane, order), order)
                    && let Some(earlier) = self.split.record(cell, 0..4, (access, lane), order)
                    && found.is_none()
                {
                    found = Some(SharedConflict {
                        offset: run.address + 4 * word as u64,
                        lane,
                        earlier,
                    });
                }
                rest -= 4;
                if rest == 0 {
                    lane += 1;
                    rest = each;
                }
            }
            return found;
        }
        let mut at = start;
        for lane in run.first..run.first + run.count {
            let end = at + each;
            while at < end {
                let word = at / 4 * 4;
                let bytes = at - word..(end - word).min(4);
                let next = word + bytes.end;
                let cell = self.words.get_mut(at / 4)?;
                let earlier = self.split.record(cell, bytes, (access, lane), order);
                if let (Some(earlier), None) = (earlier, &found) {
                    found = Some(SharedConflict { offset: at as u64, lane, earlier });
                }
                at = next;
            }
        }
        found
    }
}
