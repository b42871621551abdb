//! The times at which the operations of a stream ended, on the virtual clock: the last one, and
//! those in use.

use std::collections::HashSet;

/// The number of end times above which those that nothing names are removed.
const MANY: usize = 1_024;

/// The times at which operations of a stream ended, in virtual nanoseconds.
#[derive(Default)]
pub(crate) struct EndTimes {
    /// In the order of the operations.
    times: Vec<EndTime>,
    /// The end of the last operation.
    last: u64,
    /// The number of times that were in use when the others were last removed.
    in_use: usize,
}

struct EndTime {
    seq: u64,
    time: u64,
}

impl EndTimes {
    /// Records the end of the next operation, which takes `duration` and begins at `start`, or
    /// behind the one before it. Returns whether the list is long enough to remove the times that
    /// nothing names.
    pub(crate) fn record(&mut self, seq: u64, start: u64, duration: u64) -> bool {
        self.last = start.max(self.last) + duration;
        self.times.push(EndTime { seq, time: self.last });
        self.times.len() >= MANY + 2 * self.in_use
    }

    /// Returns the end of an operation; 0 if it was removed.
    pub(crate) fn of(&self, seq: u64) -> u64 {
        let at = self.times.binary_search_by_key(&seq, |end| end.seq);
        at.map_or(0, |at| self.times[at].time)
    }

    /// Removes the ends of other operations.
    pub(crate) fn keep(&mut self, named: &HashSet<u64>) {
        self.times.retain(|end| named.contains(&end.seq));
        self.in_use = self.times.len();
    }
}
