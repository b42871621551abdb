//! The clock of the host: the operations that its threads have found complete.

use std::collections::HashMap;
use std::thread::ThreadId;

use crate::access::clock::{Clock, Epoch};
use crate::machine::state::Machine;
use crate::process::universe::HostOrder;

/// The operations that host threads have found complete.
pub(crate) struct HostClock {
    order: HostOrder,
    /// The operations that are complete for all threads.
    shared: Clock,
    per_thread: HashMap<ThreadId, Clock>,
}

impl HostClock {
    pub(crate) fn new(order: HostOrder) -> Self {
        Self { order, shared: Clock::default(), per_thread: HashMap::new() }
    }

    fn clock(&self) -> Option<&Clock> {
        match self.order {
            HostOrder::Linearised => Some(&self.shared),
            HostOrder::PerThread => {
                self.per_thread.get(&std::thread::current().id()).or(Some(&self.shared))
            }
        }
    }

    fn clock_mut(&mut self) -> &mut Clock {
        match self.order {
            HostOrder::Linearised => &mut self.shared,
            HostOrder::PerThread => {
                let shared = &self.shared;
                let entry = self.per_thread.entry(std::thread::current().id());
                entry.or_insert_with(|| shared.clone())
            }
        }
    }
}

impl Machine {
    /// Returns the clock of the calling host thread: the operations that it has found complete.
    pub(crate) fn host_clock(&self) -> Clock {
        self.host.clock().cloned().unwrap_or_default()
    }

    /// Returns whether the calling host thread has found the operation, and all that come before,
    /// complete.
    pub(crate) fn host_has_found(&self, epoch: Epoch) -> bool {
        epoch.seq == 0 || self.host.clock().is_some_and(|known| known.covers(epoch))
    }

    /// Returns the operations that some host thread has found complete: a lock of the program may
    /// order the threads.
    pub(crate) fn clock_of_all_threads(&self) -> Clock {
        let mut all = self.host.shared.clone();
        self.host.per_thread.values().for_each(|clock| all.join(clock));
        all
    }

    /// Adds `clock` to the clock of the calling host thread.
    pub(crate) fn host_learns(&mut self, clock: &Clock) {
        let clock = self.shadow.words.up_to_date(clock.clone());
        self.host.clock_mut().join(&clock);
    }

    /// Adds `clock` to the clocks of all host threads: which of them reads a word, or gets the
    /// message of a host function, is not known.
    pub(crate) fn all_threads_learn(&mut self, clock: &Clock) {
        let clock = self.shadow.words.up_to_date(clock.clone());
        self.host.shared.join(&clock);
        self.host.per_thread.values_mut().for_each(|known| known.join(&clock));
    }

    /// Orders all operations that come after `epoch` after all of `gained` as well.
    pub(crate) fn join_behind(&mut self, epoch: Epoch, gained: &Clock) {
        let recorded = self.events.values_mut().filter_map(|event| event.recorded.as_mut());
        let streams = self.streams.iter_mut().map(|stream| &mut stream.clock);
        let host = std::iter::once(&mut self.host.shared).chain(self.host.per_thread.values_mut());
        for clock in streams.chain(recorded.map(|recorded| &mut recorded.clock)).chain(host) {
            if clock.covers(epoch) {
                clock.join(gained);
            }
        }
    }

    pub(crate) fn join_host_clock(&mut self, stream: u32) {
        if let Some(known) = self.host.clock() {
            self.streams[stream as usize].clock.join(known);
        }
    }
}
