//! Checks that wait for launches whose footprint is known only when they have run.
//!
//! The footprint of a kernel that runs as PTX is recorded while it runs, which may be long after
//! its submission: under the lazy policy only when a call waits for it. The checks of later work
//! need this footprint, because they have to run in the order of submission. So each check that
//! follows such a launch is logged behind it, with the clock that its operation has at submission,
//! and all of them run when the launch has run. The shadow, the words and the findings change in
//! the same order under every policy.
//!
//! A check changes only these, and clocks by the order of a word wait. It submits nothing.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::access::{Clock, Epoch, Operation};
use crate::kernel::Recording;

/// The number of logged checks from which on calls run the launch that they wait for.
const FULL: usize = 1 << 16;

/// Checks that wait for launches whose footprints are not known yet, in the order of submission.
/// The first is such a launch. A check changes a machine `M`.
pub(crate) struct CheckLog<M> {
    entries: VecDeque<Logged<M>>,
    /// The number of entries that were removed.
    removed: u64,
}

/// A check that waits, or a launch that checks wait for.
pub(crate) enum Logged<M> {
    Check(Box<dyn FnOnce(&mut M) + Send>),
    Launch(Box<LoggedLaunch>),
}

/// A launch whose footprint is recorded.
pub(crate) struct LoggedLaunch {
    pub(crate) operation: Operation,
    pub(crate) clock: Clock,
    pub(crate) peers: SmallVec<[usize; 2]>,
    /// The footprint, once it has run.
    pub(crate) recording: Option<Recording>,
}

/// The number of an entry in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

impl<M> Default for CheckLog<M> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), removed: 0 }
    }
}

impl<M> CheckLog<M> {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn push(&mut self, entry: Logged<M>) -> Ticket {
        self.entries.push_back(entry);
        Ticket(self.removed + self.entries.len() as u64 - 1)
    }

    /// Adds the footprint of a launch that has run.
    pub(crate) fn set_recording(&mut self, ticket: Ticket, recording: Recording) {
        let index = (ticket.0 - self.removed) as usize;
        if let Some(Logged::Launch(launch)) = self.entries.get_mut(index) {
            launch.recording = Some(recording);
        }
    }

    /// Removes the first entry, unless it is a launch that has not run.
    pub(crate) fn pop_ready(&mut self) -> Option<Logged<M>> {
        if let Logged::Launch(launch) = self.entries.front()?
            && launch.recording.is_none()
        {
            return None;
        }
        self.removed += 1;
        self.entries.pop_front()
    }

    /// Returns the launch to run because too many checks wait for it.
    pub(crate) fn overdue(&self) -> Option<Epoch> {
        self.awaited().filter(|_| self.entries.len() >= FULL)
    }

    /// Returns the launch that checks wait for; `None` if no check waits.
    pub(crate) fn awaited(&self) -> Option<Epoch> {
        match self.entries.front() {
            Some(Logged::Launch(launch)) => Some(launch.operation.epoch),
            _ => None,
        }
    }
}
