//! The last accesses to each byte of shared memory, to find threads that access it without order.

use std::collections::HashMap;

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
    fn writes(self) -> bool {
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

/// An access that was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub(super) thread: u16,
    pub(super) touching: Touching,
    pub(super) instruction: u32,
    stamp: u32,
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
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    write: Option<Mark>,
    /// Two readers since the last write: an access conflicts with one of them if it does with any of more.
    reads: [Option<Mark>; 2],
}

impl Cell {
    /// Notes an access, and returns an earlier one that is not ordered before it.
    fn touch(&mut self, mark: Mark, order: &Order) -> Option<Mark> {
        let unseen = |other: &Mark| {
            (!other.touching.is_strong() || !mark.touching.is_strong())
                && !order.has_seen(u32::from(mark.thread), u32::from(other.thread), other.stamp)
        };
        let mut conflict = self.write.filter(unseen);
        if mark.touching.writes() {
            conflict = conflict.or_else(|| self.reads.into_iter().flatten().find(unseen));
            *self = Self { write: Some(mark), reads: [None; 2] };
            return conflict;
        }
        match &mut self.reads {
            [Some(first), second] if first.thread != mark.thread => {
                if order.has_seen(u32::from(mark.thread), u32::from(first.thread), first.stamp) {
                    *first = mark;
                } else {
                    *second = Some(mark);
                }
            }
            [first, _] => *first = Some(mark),
        }
        conflict
    }
}

/// The last accesses to shared memory of a block.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    words: Vec<Cell>,
    /// The bytes of words that were accessed in part.
    split: HashMap<usize, [Cell; 4]>,
}

impl Shadow {
    pub(super) fn new(bytes: usize) -> Self {
        Self { words: vec![Cell::default(); bytes.div_ceil(4)], split: HashMap::new() }
    }

    /// Notes an access, and returns the first earlier one that is not ordered before it.
    pub(super) fn touch(&mut self, touch: &Touch, order: &Order) -> Option<Conflict> {
        let mut found = None;
        for index in 0..touch.run.count {
            let lane = touch.run.first + index;
            let start = touch.run.address + index as u64 * u64::from(touch.bytes);
            let mark = Mark {
                thread: (touch.first_thread + lane as u32) as u16,
                touching: touch.touching,
                instruction: touch.instruction,
                stamp: order.now(),
            };
            let end = start + u64::from(touch.bytes);
            let mut at = start;
            while at < end {
                let word = (at / 4) as usize;
                let whole = at.is_multiple_of(4) && at + 4 <= end;
                let conflict =
                    if whole && (self.split.is_empty() || !self.split.contains_key(&word)) {
                        self.words.get_mut(word)?.touch(mark, order)
                    } else {
                        self.touch_bytes(word, at, end, mark, order)
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
        let cells = self.split.entry(word).or_insert([cell; 4]);
        let from = (at % 4) as usize;
        let to = (end - word as u64 * 4).min(4) as usize;
        let mut found = None;
        for cell in cells.get_mut(from..to)? {
            found = found.or(cell.touch(mark, order));
        }
        found
    }
}
