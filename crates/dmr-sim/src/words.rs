//! Words in memory that streams write and wait for (`cuStreamWriteValue`, `cuStreamWaitValue`):
//! which write lets a wait go on, and what therefore comes before the work behind it.
//!
//! Races are found at submission, and a wait may be submitted before the write that it waits for.
//! Until such a write is submitted the wait is *open*: what it comes after is not known, so nothing
//! behind it is reported as unordered. Words are known by their physical address.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::clock::{Clock, Epoch};
use crate::history::Check;

/// How many writes of one word are remembered.
const REMEMBERED: usize = 256;

#[derive(Default)]
pub(crate) struct Words {
    writes: BTreeMap<u64, VecDeque<Write>>,
    open: Vec<Wait>,
    /// What came out for waits that were open, latest last.
    late: VecDeque<(Epoch, Clock)>,
    /// Waits that are submitted and not over.
    waiting: usize,
}

/// Something that was written to a word.
struct Write {
    epoch: Epoch,
    /// What comes before, the write included.
    clock: Clock,
    /// `None`: other work did it, and the value is not known.
    value: Option<Value>,
}

/// A value of 4 or 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) bits: u64,
    pub(crate) wide: bool,
}

/// What a wait waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Test {
    pub(crate) how: How,
    pub(crate) value: Value,
}

/// `CUstreamWaitValue_flags`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// The signed difference is not negative.
    AtLeast,
    Equal,
    /// A bit is set in both.
    And,
    /// A bit is set in neither.
    Nor,
}

/// A wait that nothing submitted so far lets go on.
pub(crate) struct Wait {
    pub(crate) epoch: Epoch,
    at: u64,
    test: Test,
    /// Per stream, the first operation that is known to come after it.
    behind: SmallVec<[Epoch; 4]>,
}

impl Value {
    pub(crate) fn bytes(self) -> u64 {
        if self.wide { 8 } else { 4 }
    }
}

impl Test {
    /// Whether the word, of which the test's width counts, lets the wait go on.
    pub(crate) fn holds(self, word: u64) -> bool {
        let wanted = self.value.bits;
        if self.value.wide {
            match self.how {
                How::AtLeast => word.wrapping_sub(wanted) as i64 >= 0,
                How::Equal => word == wanted,
                How::And => word & wanted != 0,
                How::Nor => !(word | wanted) != 0,
            }
        } else {
            let (word, wanted) = (word as u32, wanted as u32);
            match self.how {
                How::AtLeast => word.wrapping_sub(wanted) as i32 >= 0,
                How::Equal => word == wanted,
                How::And => word & wanted != 0,
                How::Nor => !(word | wanted) != 0,
            }
        }
    }

    fn holds_for(self, value: Option<Value>) -> bool {
        value.is_some_and(|value| value.wide >= self.value.wide && self.holds(value.bits))
    }
}

impl Wait {
    /// Whether the operation is known to come after this wait.
    pub(crate) fn holds_up(&self, epoch: Epoch) -> bool {
        self.behind.iter().any(|first| first.stream == epoch.stream && epoch.seq >= first.seq)
    }
}

impl Words {
    /// The waits of which nobody knows yet what they come after.
    pub(crate) fn open(&self) -> &[Wait] {
        &self.open
    }

    /// Takes out the open waits, for a judgement that changes what is beside them.
    pub(crate) fn take_open(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.open)
    }

    /// Puts them back.
    pub(crate) fn put_open(&mut self, open: Vec<Wait>) {
        self.open = open;
    }

    /// Whether a stream is to wait, or waits.
    pub(crate) fn any_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// A wait is over.
    pub(crate) fn wait_ended(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// A stream writes the word. Answers the open waits that this lets go on.
    pub(crate) fn written(
        &mut self,
        at: u64,
        epoch: Epoch,
        clock: &Clock,
        value: Value,
    ) -> Vec<Epoch> {
        let writes = self.writes.entry(at).or_default();
        remember(writes, Write { epoch, clock: clock.clone(), value: Some(value) });
        let lets_go = |wait: &&Wait| {
            // Not what is itself behind the wait.
            wait.at == at && wait.test.holds_for(Some(value)) && !clock.covers(wait.epoch)
        };
        self.open.iter().filter(lets_go).map(|wait| wait.epoch).collect()
    }

    /// Other work writes what may be words.
    pub(crate) fn overwritten(&mut self, at: u64, bytes: u64, check: &Check<'_>) {
        for (_, writes) in self.writes.range_mut(at..at.saturating_add(bytes)) {
            let (epoch, clock) = (check.access.epoch, check.before.clock.clone());
            remember(writes, Write { epoch, clock, value: None });
        }
    }

    /// A stream, which comes after all of `clock`, waits for the word. Answers what it comes
    /// after in addition; `None`: the wait is open. `is_host`: the host may have reset the word
    /// unseen.
    pub(crate) fn waited(
        &mut self,
        at: u64,
        epoch: Epoch,
        clock: &Clock,
        test: Test,
        is_host: bool,
    ) -> Option<Clock> {
        self.waiting += 1;
        let mut gained: Option<Clock> = None;
        let mut known = false;
        let writes = self.writes.get(&at);
        let writes = || writes.into_iter().flatten();
        for (i, write) in writes().enumerate() {
            // Written over, before the wait.
            let mut later = writes().skip(i + 1);
            let gone = |by: &Write| by.clock.covers(write.epoch) && clock.covers(by.epoch);
            if !test.holds_for(write.value) || later.any(gone) {
                continue;
            }
            if is_host && clock.covers(write.epoch) {
                known = true;
                continue;
            }
            // Any one of these may be the one.
            match &mut gained {
                None => gained = Some(write.clock.clone()),
                Some(gained) => gained.meet(&write.clock),
            }
        }
        if gained.is_none() && known {
            gained = Some(Clock::default());
        }
        if gained.is_none() {
            self.open.push(Wait { epoch, at, test, behind: SmallVec::from_slice(&[epoch]) });
        }
        gained
    }

    /// An operation that comes after all of `clock`: perhaps after an open wait.
    pub(crate) fn submitted(&mut self, epoch: Epoch, clock: &Clock) {
        for wait in &mut self.open {
            if clock.covers(wait.epoch) && !wait.holds_up(epoch) {
                wait.behind.push(epoch);
            }
        }
    }

    /// The wait is open no more: whatever comes after it comes after all of `gained`.
    pub(crate) fn close(&mut self, wait: Epoch, gained: &Clock) {
        self.open.retain(|open| open.epoch != wait);
        if self.late.len() == REMEMBERED {
            self.late.pop_front();
        }
        self.late.push_back((wait, gained.clone()));
        for write in self.writes.values_mut().flatten() {
            if write.clock.covers(wait) {
                write.clock.join(gained);
            }
        }
    }

    /// The clock, taken before it was known what open waits come after, as it is known now.
    pub(crate) fn up_to_date(&self, clock: &Clock) -> Clock {
        let mut clock = clock.clone();
        for (wait, gained) in &self.late {
            if clock.covers(*wait) {
                clock.join(gained);
            }
        }
        clock
    }

    /// The memory has a new owner.
    pub(crate) fn forget(&mut self, at: u64, bytes: u64) {
        while let Some((&word, _)) = self.writes.range(at..at.saturating_add(bytes)).next() {
            self.writes.remove(&word);
        }
    }
}

fn remember(writes: &mut VecDeque<Write>, write: Write) {
    if writes.len() == REMEMBERED {
        writes.pop_front();
    }
    writes.push_back(write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_compare_as_the_driver_does() {
        let test = |how, bits, wide| Test { how, value: Value { bits, wide } };
        let narrow = u64::from(u32::MAX);
        for (how, wanted, word, wide, holds) in [
            (How::AtLeast, 5, 5, false, true),
            (How::AtLeast, 5, 4, false, false),
            (How::AtLeast, narrow, 0, false, true), // it has wrapped around
            (How::AtLeast, narrow, 0, true, false),
            (How::AtLeast, u64::MAX, 3, true, true),
            (How::Equal, 5, 5 | 1 << 32, false, true),
            (How::Equal, 5, 5 | 1 << 32, true, false),
            (How::And, 6, 2, false, true),
            (How::And, 6, 1, false, false),
            (How::And, 1 << 40, 1 << 40, true, true),
            (How::Nor, 1, narrow - 1, false, false),
            (How::Nor, 1, narrow - 3, false, true),
        ] {
            assert_eq!(test(how, wanted, wide).holds(word), holds, "{how:?} {wanted} {word}");
        }
    }
}
