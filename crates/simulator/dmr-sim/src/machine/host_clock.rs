//! The clocks of host threads: the operations that each has found complete.
//!
//! A host thread orders work by waiting: when it has waited for an operation, all that it submits
//! later comes after that operation and after all that come before it. By default what one thread
//! has found complete counts for all threads, because the simulator sees no mutex and no channel
//! that orders them; with [`HostOrder::PerThread`] a test reports that order itself.

use std::collections::HashMap;
use std::thread::ThreadId;

use crate::access::{Clock, Epoch};
use crate::machine::HostOrder;

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

    /// Returns the clock of the calling thread: the operations that it has found complete.
    pub(crate) fn of_this_thread(&self) -> Clock {
        self.clock().cloned().unwrap_or_default()
    }

    /// Returns whether the calling thread has found the operation, and all that come before,
    /// complete.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.clock().is_some_and(|known| known.covers(epoch))
    }

    /// Adds the clock of the calling thread to another one.
    pub(crate) fn join_to(&self, clock: &mut Clock) {
        if let Some(known) = self.clock() {
            clock.join(known);
        }
    }

    /// Adds a clock to that of the calling thread.
    pub(crate) fn learn(&mut self, clock: &Clock) {
        self.clock_mut().join(clock);
    }

    /// Returns the clocks of all threads.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Clock> {
        std::iter::once(&mut self.shared).chain(self.per_thread.values_mut())
    }

    /// Returns the operations that some thread has found complete: a lock of the program may order
    /// the threads.
    pub(crate) fn of_all_threads(&self) -> Clock {
        let mut all = self.shared.clone();
        self.per_thread.values().for_each(|clock| all.join(clock));
        all
    }
}
