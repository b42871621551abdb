//! The times at which the operations of a stream ended, on the virtual clock: the last one, and
//! those in use.

use std::collections::HashSet;

use crate::access::clock::Epoch;
use crate::machine::state::Machine;

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

impl Machine {
    /// Notes the end of the next operation of a stream, which takes `duration` and begins at
    /// `start`, or behind the one before it.
    pub(crate) fn note_end(&mut self, epoch: Epoch, start: u64, duration: u64) {
        let ended = &mut self.streams[epoch.stream as usize].ended;
        ended.last = start.max(ended.last) + duration;
        ended.times.push(EndTime { seq: epoch.seq, time: ended.last });
        if ended.times.len() >= MANY + 2 * ended.in_use {
            self.forget_ends(epoch.stream);
        }
    }

    /// Returns the time at which an executed operation ended: one that an event or an operation in
    /// a queue names.
    pub(crate) fn end_of(&self, epoch: Epoch) -> u64 {
        let ended = &self.streams[epoch.stream as usize].ended;
        let at = ended.times.binary_search_by_key(&epoch.seq, |end| end.seq);
        at.map_or(0, |at| ended.times[at].time)
    }

    /// Forgets the ends of operations that no event and no operation in a queue names.
    fn forget_ends(&mut self, stream: u32) {
        let recorded =
            self.events.values().filter_map(|event| Some(event.recorded.as_ref()?.epoch));
        let queued = self.streams.iter().flat_map(|stream| &stream.queue);
        let named = queued.flat_map(|op| op.deps.iter().copied()).chain(recorded);
        let named: HashSet<u64> =
            named.filter(|epoch| epoch.stream == stream).map(|epoch| epoch.seq).collect();
        let ended = &mut self.streams[stream as usize].ended;
        ended.times.retain(|end| named.contains(&end.seq));
        ended.in_use = ended.times.len();
    }
}
