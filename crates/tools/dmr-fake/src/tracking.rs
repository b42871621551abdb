//! Use tracking of the fake: windows, waits and the ledger of each block.

use dmr_core::ledger::{PartLedger, UseId};
use dmr_core::{Access, BlockUse, ByteRange, ResourceError, ResourceResult, StreamId, UseToken};

use super::device::{Event, Op};
use super::resource::{FakeResource, FakeState, HeldBlock, OpenWindow};
use super::{Fault, leased};

impl FakeResource {
    /// Returns an error unless a use may be prepared now.
    pub(super) fn admit(
        &self,
        state: &FakeState,
        used: &BlockUse,
        stream: StreamId,
    ) -> ResourceResult<()> {
        let BlockUse { block, access, bytes } = *used;
        let generation = block.generation();
        let held = state.blocks.get(&generation).filter(|held| held.retired.is_none());
        let held = held.ok_or_else(|| ResourceError::use_after_free(generation))?;
        let conflict = held.windows.iter().find(|window| {
            if window.stream == stream {
                return self.has(Fault::RefusesNesting);
            }
            let overlaps = window.bytes.overlaps(bytes) || self.has(Fault::RefusesDisjointParts);
            let conflicts = window.access.conflicts_with(access) && overlaps;
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
    pub(super) fn open(&self, state: &mut FakeState, used: &BlockUse, stream: StreamId) -> u32 {
        let BlockUse { block, access, bytes } = *used;
        state.calls += 1;
        let ticket = state.calls as u32;
        if let Some(held) = state.blocks.get_mut(&block.generation()) {
            self.wait(held, stream, access, bytes);
            held.windows.push(OpenWindow { ticket, stream, access, bytes });
        }
        ticket
    }

    pub(super) fn wait(
        &self,
        held: &HeldBlock,
        stream: StreamId,
        access: Access,
        bytes: ByteRange,
    ) {
        if self.has(Fault::SkipsWaits) {
            return;
        }
        let mut device = self.device();
        for entry in held.waits(bytes, stream.slot(), access) {
            device.submit(stream.slot(), Op::Wait(Event::of(entry)));
        }
    }

    pub(super) fn commit(
        &self,
        held: &mut HeldBlock,
        stream: StreamId,
        access: Access,
        bytes: ByteRange,
    ) {
        if self.has(Fault::ForgetsReads) && !access.writes() {
            return;
        }
        if self.has(Fault::KeepsOneReader) && !access.writes() {
            let write = held.waits(ByteRange::WHOLE, usize::MAX, Access::Read).pop();
            held.ledger = write.map_or_else(PartLedger::default, PartLedger::allocated);
        }
        let event = self.device().record(stream.slot());
        held.ledger.commit(bytes, access, event.id());
    }

    /// Closes a window; `used` is the stream to record a use on.
    pub(super) fn close(&self, token: &UseToken, used: Option<StreamId>) -> ResourceResult<()> {
        let generation = token.generation();
        let mut state = self.state();
        let held = state.blocks.get_mut(&generation);
        let held = held.ok_or_else(|| ResourceError::use_after_free(generation))?;
        let window = held.windows.iter().position(|window| window.ticket == token.ticket());
        let window = window.ok_or_else(|| ResourceError::use_after_free(generation))?;
        let bytes = held.windows[window].bytes;
        if used.is_some() || !self.has(Fault::CancelKeepsTheWindow) {
            held.windows.remove(window);
        }
        if let Some(stream) = used {
            self.commit(held, stream, token.access(), bytes);
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

impl HeldBlock {
    /// Returns the uses that the stream in `slot` must wait for before it uses these bytes.
    pub(super) fn waits(&self, bytes: ByteRange, slot: usize, access: Access) -> Vec<UseId> {
        let mut waits = Vec::new();
        self.ledger.visit_waits(bytes, slot, access, |used| waits.push(used));
        waits
    }

    /// Returns the uses that the free must come after.
    pub(super) fn free_waits(&self) -> Vec<UseId> {
        let mut waits = Vec::new();
        self.ledger.visit_free_waits(|used| waits.push(used));
        waits
    }
}
