//! Trimming of the fake resource: only retired blocks keep memory.

use super::{FakeResource, Fault};

impl FakeResource {
    /// Frees the blocks whose work has completed; returns the decrease of `reserved`, in bytes.
    pub(super) fn trim(&self) -> u64 {
        let mut state = self.state();
        let before = state.usage.reserved;
        self.reap(&mut state, false);
        if self.has(Fault::TrimsLiveBlocks) {
            let all: Vec<_> = state.blocks.keys().copied().collect();
            all.into_iter().for_each(|generation| drop(self.free(&mut state, generation)));
        }
        before - state.usage.reserved + u64::from(self.has(Fault::ReturnsTooMuchOnTrim))
    }
}
