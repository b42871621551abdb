//! The windows and uses of parts of a block, in its slot.
//!
//! A slot has them from the first use of a part on, for this block and the next ones: they keep
//! their memory on the host heap. A slot whose blocks are only used as wholes has none.

use dmr_core::ledger::{PartLedger, UseId};
use dmr_core::{
    Access, BlockUse, ByteRange, ResourceError, ResourceResult, StreamId, UseToken, UseTokens,
};
use smallvec::SmallVec;

use super::needs::Needs;
use super::slot_state::{OpenWindow, PartUses, SlotState, WindowEnd};

impl SlotState {
    /// Opens windows for uses of bytes of the block, and adds them to `tokens`. Returns the uses
    /// that the new ones must wait for. On an error, windows that were opened are in `tokens`.
    // It takes no closure, which would cost uses of whole blocks several instructions.
    #[inline(never)]
    pub(super) fn open_parts(
        &mut self,
        uses: &[BlockUse],
        tokens: &mut UseTokens,
    ) -> ResourceResult<Needs> {
        let stream = tokens.stream();
        let mut needs = Needs::new();
        self.refuse_conflicts(uses, stream)?;
        tokens.reserve(uses.len());
        let mut next_ticket = self.next_ticket();
        for used in uses {
            let ticket = self.free_ticket(next_ticket)?;
            next_ticket = next_ticket.max(ticket + 1);
            self.open_part(used, stream, ticket, &mut needs);
            // SAFETY: the window was opened just now, and this is its only token.
            unsafe { tokens.push(used.block, used.access, ticket) };
        }
        Ok(needs)
    }

    /// Returns [`WindowConflict`](ResourceError::WindowConflict) if another stream has a window
    /// open that conflicts with one of these uses of the block. Looks at each window once: many may
    /// be open on the parts of a block, and the slot is locked meanwhile.
    fn refuse_conflicts(&self, uses: &[BlockUse], stream: StreamId) -> ResourceResult<()> {
        let writes: SmallVec<[&BlockUse; 8]> =
            uses.iter().filter(|used| used.access.writes()).collect();
        for (at, window) in self.windows.iter().enumerate() {
            if window.stream.slot() == stream.slot() {
                continue;
            }
            let of_window = self.bytes_of_window(at);
            let overlaps = |used: &&BlockUse| used.bytes.overlaps(of_window);
            let conflicting = match window.access.writes() {
                true => uses.iter().find(overlaps),
                false => writes.iter().copied().find(overlaps),
            };
            if let Some(used) = conflicting {
                let generation = used.block.generation();
                let holder = window.stream;
                let access = used.access;
                return Err(ResourceError::window_conflict(generation, holder, stream, access));
            }
        }
        Ok(())
    }

    fn open_part(&mut self, used: &BlockUse, stream: StreamId, ticket: u32, needs: &mut Needs) {
        let BlockUse { access, bytes, .. } = *used;
        let open = self.windows.len();
        let parts = self.parts.get_or_insert_with(|| {
            // The windows that are open by now were opened on the whole block.
            let windows = vec![ByteRange::WHOLE; open];
            Box::new(PartUses { ledger: PartLedger::default(), windows })
        });
        let need = |used| needs.add(used);
        match parts.ledger.is_empty() {
            true => self.ledger.visit_waits(stream.slot(), access, need),
            false => parts.ledger.visit_waits(bytes, stream.slot(), access, need),
        }
        parts.windows.push(bytes);
        self.windows.push(OpenWindow { stream, ticket, access });
    }

    /// Closes the windows of tokens of the block, and returns their number. A token without a
    /// window changes nothing.
    #[inline(never)]
    pub(super) fn close_parts(
        &mut self,
        tokens: &[UseToken],
        end: WindowEnd,
        is_done: &dyn Fn(UseId) -> bool,
    ) -> usize {
        // The last one first, which is the last of the open windows.
        let closing = tokens.iter().rev();
        let closed = closing.filter(|token| self.close_part(token, end, is_done)).count();
        if let Some(whole) = self.parts.as_mut().and_then(|parts| parts.ledger.take_whole()) {
            self.ledger = whole;
        }
        closed
    }

    /// Closes a window. Returns `false` if there is no such window.
    fn close_part(
        &mut self,
        token: &UseToken,
        end: WindowEnd,
        is_done: &dyn Fn(UseId) -> bool,
    ) -> bool {
        let Some(at) = self.position_of(token.ticket()) else { return false };
        let Some(parts) = &mut self.parts else { return false };
        self.windows.swap_remove(at);
        let bytes = parts.windows.swap_remove(at);
        let access = token.access();
        if matches!(end, WindowEnd::Unused) {
            return true;
        }
        if parts.ledger.is_empty() {
            if bytes.is_whole() {
                self.end_whole(access, end);
                return true;
            }
            parts.ledger.copy(&self.ledger);
            self.ledger.clear();
        }
        parts.ledger.make_room(is_done);
        match end {
            WindowEnd::Unused => {}
            WindowEnd::Used(used) => {
                self.used = true;
                parts.ledger.commit(bytes, access, used);
            }
            WindowEnd::Done(done) => parts.ledger.remove_done(bytes, access, done),
        }
        true
    }

    /// Calls `need` with each use of these bytes that the host must wait for before it writes them.
    pub(super) fn visit_host_waits(&self, bytes: ByteRange, need: &mut dyn FnMut(UseId)) {
        /// The host is on no stream, so it waits for the uses of all.
        const HOST: usize = usize::MAX;
        match self.parts.as_ref().filter(|parts| !parts.ledger.is_empty()) {
            None => self.ledger.visit_waits(HOST, Access::Write, need),
            Some(parts) => parts.ledger.visit_waits(bytes, HOST, Access::Write, need),
        }
    }

    /// Returns the bytes of the window at this index.
    #[inline]
    pub(super) fn bytes_of_window(&self, at: usize) -> ByteRange {
        let of_parts = self.parts.as_ref().and_then(|parts| parts.windows.get(at));
        of_parts.copied().unwrap_or(ByteRange::WHOLE)
    }

    /// Closes all windows without recording uses.
    pub(super) fn close_all(&mut self) {
        self.windows.clear();
        if let Some(parts) = &mut self.parts {
            parts.windows.clear();
        }
    }
}
