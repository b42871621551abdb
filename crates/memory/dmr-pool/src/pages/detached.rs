//! A chunk that is out of its arena while pages are mapped and unmapped in it.
//!
//! The driver is called with no lock held, and may fail half-way. The page map has which parts
//! have memory by then, so that dropping the value is right whatever has happened.

use dmr_streams::uses::{Dependencies, UseTable};

use crate::arena::{Arena, State};
use crate::heap::ChunkId;

/// An acquired chunk of an arena, some of whose pages are mapped. When this is dropped, also by a
/// panic of upstream, those are freed and the others become holes.
pub(super) struct Detached<'p> {
    pub(super) arena: &'p Arena,
    uses: UseTable<'p>,
    /// `None` if it was kept.
    chunk: Option<ChunkId>,
    /// The sequence number of the arena's stream when it became free.
    since: u64,
    /// The work of other streams that its next user comes after.
    pub(super) after: Dependencies,
}

impl<'p> Detached<'p> {
    /// Wraps an acquired chunk.
    pub(super) fn new(
        arena: &'p Arena,
        state: &State,
        chunk: ChunkId,
        after: Dependencies,
        uses: UseTable<'p>,
    ) -> Self {
        let since = state.heap.acquired(chunk).since;
        Self { arena, uses, chunk: Some(chunk), since, after }
    }

    /// Returns all work with its memory.
    pub(super) fn last_uses(&self) -> Dependencies {
        let mut uses = self.after.clone();
        uses.add(self.arena.home, self.since);
        uses
    }

    /// Returns the addresses of its pages at which nothing is mapped.
    pub(super) fn unmapped(&self) -> Vec<u64> {
        self.chunk.map(|chunk| self.arena.lock().unmapped(chunk)).unwrap_or_default()
    }

    /// Returns the first `units`, which are all mapped, as an acquired chunk, and frees the rest.
    pub(super) fn keep(mut self, units: u32) -> Option<ChunkId> {
        let chunk = self.chunk.take()?;
        let mut state = self.arena.lock();
        if let Some(rest) = state.heap.cut_off(chunk, units) {
            self.release(&mut state, rest);
        }
        Some(chunk)
    }

    /// Frees a part that is mapped. The pages of other streams may be used by these still.
    fn release(&self, state: &mut State, part: ChunkId) {
        if self.after.is_empty() {
            state.heap.merge(part, self.since);
        } else if self.uses.is_after(self.arena.home, &self.after) {
            state.heap.merge(part, self.uses.submitted(self.arena.home));
        } else {
            state.push(part, self.after.clone(), self.since);
        }
    }
}

impl Drop for Detached<'_> {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.arena.lock().divide(chunk, |state, part| self.release(state, part));
        }
    }
}
