//! Words in memory that streams write and wait for (`cuStreamWriteValue`, `cuStreamWaitValue`):
//! the write that ends a wait, and the resulting order of the work behind it.
//!
//! Races are found at submission, and a wait may be submitted before the write that it waits for.
//! Until such a write is submitted the wait is *open*: the operations that it comes after are not
//! known, so no work behind it is reported as unordered. When the write is submitted the wait is
//! closed, and every clock that has the wait gets the clock of the write; clocks that were taken
//! before, by logged checks, get it when they are used (`up_to_date`).
//!
//! If several writes can end a wait, only what comes before all of them is known to come before the
//! wait. Words are identified by their physical address.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::access::{AddressRange, Clock, Epoch};

/// The number of writes of one word that are recorded.
const REMEMBERED: usize = 256;

#[derive(Default)]
pub(crate) struct Words {
    writes: BTreeMap<u64, VecDeque<Write>>,
    open: Vec<Wait>,
    /// The orders of waits that were open, latest last.
    late: VecDeque<(Epoch, Clock)>,
}

/// A write of a word.
struct Write {
    epoch: Epoch,
    /// The operations that come before, the write included.
    clock: Clock,
    /// The value; `None`: other work has written the word, and the value is not known.
    value: Option<Value>,
}

/// A value of 4 or 8 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) bits: u64,
    pub(crate) wide: bool,
}

/// The condition of a wait.
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

/// A wait that no submitted write ends.
pub(crate) struct Wait {
    pub(crate) epoch: Epoch,
    at: u64,
    test: Test,
    /// Per stream, the first operation that comes after the wait.
    behind: SmallVec<[Epoch; 4]>,
}

impl Value {
    pub(crate) fn bytes(self) -> u64 {
        if self.wide { 8 } else { 4 }
    }
}

impl Test {
    /// Returns whether the word, in the width of the test, ends the wait.
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
            let word = word as u32;
            let wanted = wanted as u32;
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
    /// Returns whether the operation comes after this wait.
    pub(crate) fn holds_up(&self, epoch: Epoch) -> bool {
        self.behind.iter().any(|first| first.stream == epoch.stream && epoch.seq >= first.seq)
    }
}

impl Words {
    /// Returns whether no checked write ends the wait.
    pub(crate) fn is_open(&self, wait: Epoch) -> bool {
        self.open.iter().any(|open| open.epoch == wait)
    }

    /// Takes the open waits out, for a check that changes the other fields.
    pub(crate) fn take_open(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.open)
    }

    /// Puts the open waits back.
    pub(crate) fn put_open(&mut self, open: Vec<Wait>) {
        self.open = open;
    }

    /// Adds a write of the word by a stream. Returns the open waits that it ends.
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
            // Not a write that comes after the wait itself.
            wait.at == at && wait.test.holds_for(Some(value)) && !clock.covers(wait.epoch)
        };
        self.open.iter().filter(lets_go).map(|wait| wait.epoch).collect()
    }

    /// Adds a write by other work to bytes that may be words.
    pub(crate) fn overwritten(&mut self, range: AddressRange, epoch: Epoch, clock: &Clock) {
        for (_, writes) in self.writes.range_mut(range.start()..range.end()) {
            remember(writes, Write { epoch, clock: clock.clone(), value: None });
        }
    }

    /// Adds a wait of a stream, which comes after all of `clock`, for the word. Returns the
    /// operations that it comes after in addition; `None`: the wait is open. `is_host`: the host
    /// may have reset the word without a call.
    pub(crate) fn waited(
        &mut self,
        at: u64,
        epoch: Epoch,
        clock: &Clock,
        test: Test,
        is_host: bool,
    ) -> Option<Clock> {
        let mut gained: Option<Clock> = None;
        let mut known = false;
        let writes = self.writes.get(&at);
        let writes = || writes.into_iter().flatten();
        for (i, write) in writes().enumerate() {
            // Overwritten before the wait.
            let mut later = writes().skip(i + 1);
            let gone = |by: &Write| by.clock.covers(write.epoch) && clock.covers(by.epoch);
            if !test.holds_for(write.value) || later.any(gone) {
                continue;
            }
            if is_host && clock.covers(write.epoch) {
                known = true;
                continue;
            }
            // Any one of these may end the wait.
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

    /// Adds an operation that comes after all of `clock`, and so may come after an open wait.
    pub(crate) fn submitted(&mut self, epoch: Epoch, clock: &Clock) {
        for wait in &mut self.open {
            if clock.covers(wait.epoch) && !wait.holds_up(epoch) {
                wait.behind.push(epoch);
            }
        }
    }

    /// Closes an open wait: all operations that come after it come after all of `gained`.
    /// `is_current`: no clock of a logged check needs the order of an earlier wait.
    pub(crate) fn close(&mut self, wait: Epoch, gained: &Clock, is_current: bool) {
        self.open.retain(|open| open.epoch != wait);
        while is_current && self.late.len() >= REMEMBERED {
            self.late.pop_front();
        }
        self.late.push_back((wait, gained.clone()));
        for write in self.writes.values_mut().flatten() {
            if write.clock.covers(wait) {
                write.clock.join(gained);
            }
        }
    }

    /// Returns a clock, taken while waits were open or not checked yet, with the order of those
    /// that have been closed since.
    pub(crate) fn up_to_date(&self, mut clock: Clock) -> Clock {
        for (wait, gained) in &self.late {
            if clock.covers(*wait) {
                clock.join(gained);
            }
        }
        clock
    }

    /// Removes the words in memory that has a new owner.
    pub(crate) fn clear(&mut self, range: AddressRange) {
        while let Some((&word, _)) = self.writes.range(range.start()..range.end()).next() {
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
