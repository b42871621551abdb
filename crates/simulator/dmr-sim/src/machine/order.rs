//! The order of operations that the machine learns after their submission: what host threads find
//! complete, and what ends a wait for a word.

use crate::access::{Clock, Epoch};
use crate::machine::Machine;

impl Machine {
    /// Returns whether the calling host thread has found the operation, and all that come before,
    /// complete.
    pub(crate) fn host_has_found(&self, epoch: Epoch) -> bool {
        epoch.seq == 0 || self.host.covers(epoch)
    }

    /// Adds `clock` to the clock of the calling host thread.
    pub(crate) fn host_learns(&mut self, clock: &Clock) {
        let clock = self.checks.shadow.words.up_to_date(clock.clone());
        self.host.learn(&clock);
    }

    /// Adds `clock` to the clocks of all host threads: which of them reads a word, or gets the
    /// message of a host function, is not known.
    pub(crate) fn all_threads_learn(&mut self, clock: &Clock) {
        let clock = self.checks.shadow.words.up_to_date(clock.clone());
        self.host.all_mut().for_each(|known| known.join(&clock));
    }

    /// Orders all operations that come after `epoch` after all of `gained` as well.
    pub(crate) fn join_behind(&mut self, epoch: Epoch, gained: &Clock) {
        let recorded = self.events.values_mut().filter_map(|event| event.recorded.as_mut());
        let streams = self.streams.iter_mut().map(|stream| &mut stream.clock);
        let host = self.host.all_mut();
        for clock in streams.chain(recorded.map(|recorded| &mut recorded.clock)).chain(host) {
            if clock.covers(epoch) {
                clock.join(gained);
            }
        }
    }

    pub(crate) fn join_host_clock(&mut self, stream: u32) {
        self.host.join_to(&mut self.streams[stream as usize].clock);
    }
}
