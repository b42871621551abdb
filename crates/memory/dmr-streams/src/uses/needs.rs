//! The uses that one launch must wait for, before those that others cover are left out.

use dmr_core::ledger::UseId;
use smallvec::SmallVec;

/// Uses to wait for: of each stream the latest.
#[derive(Default)]
pub(super) struct Needs(SmallVec<[UseId; 8]>);

impl Needs {
    #[inline]
    pub(super) fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Adds a use: of each stream the latest is enough.
    #[inline]
    pub(super) fn add(&mut self, used: UseId) {
        match self.0.iter_mut().find(|known| known.slot() == used.slot()) {
            Some(known) => *known = used.max(*known),
            None => self.0.push(used),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[UseId] {
        &self.0
    }
}
