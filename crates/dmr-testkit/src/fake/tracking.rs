//! Use tracking of the fake: windows, waits and the ledger of each block.

use dmr_core::ledger::Ledger;
use dmr_core::{Access, BlockId, ResourceError, ResourceResult, StreamId, UseToken};

use super::device::{Event, Op};
use super::resource::{FakeResource, FakeState, HeldBlock, OpenWindow};
use super::{Fault, leased};

impl FakeResource {
    /// Returns an error unless a use may be prepared now.
    pub(super) fn admit(
        &self,
        state: &FakeState,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> ResourceResult<()> {
        let generation = block.generation();
        let held = state.blocks.get(&generation).filter(|held| held.retired.is_none());
        let held = held.ok_or_else(|| ResourceError::use_after_free(generation))?;
        let conflict = held.windows.iter().find(|window| {
            if window.stream == stream {
                return self.has(Fault::RefusesNesting);
            }
            let conflicts = window.access.conflicts_with(access);
            (conflicts || self.has(Fault::RefusesASecondReader))
                && !self.has(Fault::IgnoresConflicts)
        });
        match conflict {
            None => Ok(()),
            Some(window) => {
                Err(ResourceError::window_conflict(generation, window.stream, stream, access))
            }
        }
    }

    /// Opens a window that was admitted, and returns its ticket.
    pub(super) fn open(
        &self,
        state: &mut FakeState,
        block: BlockId,
        stream: StreamId,
        access: Access,
    ) -> u32 {
        state.calls += 1;
        let ticket = state.calls as u32;
        if let Some(held) = state.blocks.get_mut(&block.generation()) {
            self.wait(held, stream, access);
            held.windows.push(OpenWindow { ticket, stream, access });
        }
        ticket
    }

    pub(super) fn wait(&self, held: &HeldBlock, stream: StreamId, access: Access) {
        if self.has(Fault::SkipsWaits) {
            return;
        }
        let mut device = self.device();
        for entry in held.ledger.waits(stream.slot(), access) {
            device.submit(stream.slot(), Op::Wait(Event::of(entry)));
        }
    }

    pub(super) fn commit(&self, held: &mut HeldBlock, stream: StreamId, access: Access) {
        if self.has(Fault::ForgetsReads) && !access.writes() {
            return;
        }
        if self.has(Fault::KeepsOneReader) && !access.writes() {
            let write = held.ledger.waits(usize::MAX, Access::Read).next();
            held.ledger = write.map_or_else(Ledger::new, Ledger::allocated);
        }
        let event = self.device().record(stream.slot());
        held.ledger.commit(access, event.id());
    }

    /// Closes a window; `used` is the stream to record a use on.
    pub(super) fn close(&self, token: &UseToken, used: Option<StreamId>) -> ResourceResult<()> {
        let generation = token.generation();
        let mut state = self.state();
        let held = state.blocks.get_mut(&generation);
        let held = held.ok_or_else(|| ResourceError::use_after_free(generation))?;
        let window = held.windows.iter().position(|window| window.ticket == token.ticket());
        let window = window.ok_or_else(|| ResourceError::use_after_free(generation))?;
        if used.is_some() || !self.has(Fault::CancelKeepsTheWindow) {
            held.windows.remove(window);
        }
        if let Some(stream) = used {
            self.commit(held, stream, token.access());
        }
        Ok(())
    }

    pub(super) fn tracked(&self, stream: StreamId) -> ResourceResult<StreamId> {
        if !self.tracks || self.has(Fault::RefusesWhatItClaims) {
            return Err(ResourceError::not_tracked(stream));
        }
        if self.has(Fault::TracksOnForeignStreams) && !stream.is_default() {
            return Ok(leased(self.pool, stream.slot()));
        }
        self.resolve(stream)
    }
}
