//! Vector clocks over streams: which operations come before which.
//!
//! A stream's operations are numbered from 1. A clock has, for each stream, the last operation that
//! is known to come before; because a stream executes in order, all earlier ones do, too. So one
//! number a stream is enough, and "ordered" is a comparison: an operation comes before another if
//! the other's clock has its number. Waits for events and for words, and the legacy stream, join
//! clocks.
//!
//! Host threads submit work and find it complete, but do not access device memory themselves, so
//! they have clocks and no component in them.

use smallvec::SmallVec;

/// An operation: stream index and number on that stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Epoch {
    pub(crate) stream: u32,
    pub(crate) seq: u64,
}

/// The operations that come before: per stream, the number of the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(SmallVec<[u64; 8]>);

impl Clock {
    /// Returns whether the operation comes before.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.0.get(epoch.stream as usize).is_some_and(|&seq| seq >= epoch.seq)
    }

    /// Adds the operation.
    pub(crate) fn raise(&mut self, epoch: Epoch) {
        let at = epoch.stream as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = self.0[at].max(epoch.seq);
    }

    /// Keeps only the operations that come before `other` as well.
    pub(crate) fn meet(&mut self, other: &Self) {
        self.0.truncate(other.0.len());
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).min(*theirs);
        }
    }

    /// Adds all operations that come before `other`.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }
}
