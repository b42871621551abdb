//! The uses that one launch must wait for, before those that others cover are left out.

use dmr_core::ledger::UseId;
use smallvec::SmallVec;

/// Uses to wait for: of each stream the latest.
pub(super) struct Needs {
    needs: SmallVec<[Need; 8]>,
    /// The launch that needs them, for recordings; 0 for none.
    pub(super) launch: u64,
}

/// A use to wait for.
#[derive(Clone, Copy)]
pub(super) struct Need {
    pub(super) used: UseId,
    /// The generation of the block because of which it is, for recordings; 0 for none.
    pub(super) block: u64,
}

impl Needs {
    #[inline]
    pub(super) fn new(launch: u64) -> Self {
        Self { needs: SmallVec::new(), launch }
    }

    /// Adds a use of a block: of each stream the latest is enough.
    #[inline]
    pub(super) fn add(&mut self, used: UseId, block: u64) {
        match self.needs.iter_mut().find(|known| known.used.slot() == used.slot()) {
            Some(known) if known.used < used => *known = Need { used, block },
            Some(_) => {}
            None => self.needs.push(Need { used, block }),
        }
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[Need] {
        &self.needs
    }
}
