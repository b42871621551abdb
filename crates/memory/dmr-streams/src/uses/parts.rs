//! The windows and uses of parts of a block, in its slot.
//!
//! A slot has them from the first use of a part on, until a use of the whole block leaves nothing
//! of them. They keep their memory on the host heap, for this block and the next ones. A slot whose
//! blocks are only used as wholes has none.

use dmr_core::ledger::UseId;
use dmr_core::{Access, BlockUse, ByteRange, ResourceError, ResourceResult, StreamId, UseTokens};
use smallvec::SmallVec;

use super::needs::Needs;
use super::slot_state::{LAST, Launches, OpenWindow, PARTS, SlotState, USES, WINDOWS, launch_of};

impl SlotState {
    /// Opens windows for uses of bytes of the block, and adds them to `tokens`. Returns the uses
    /// that the new ones must wait for. On an error no window was opened.
    // It takes no closure, which would cost uses of whole blocks several instructions.
    #[inline(never)]
    pub(super) fn open_parts(
        &mut self,
        uses: &[BlockUse],
        tokens: &mut UseTokens,
    ) -> ResourceResult<Needs> {
        let stream = tokens.stream();
        let mut needs = Needs::new(0);
        self.refuse_conflicts(uses, stream)?;
        tokens.reserve(uses.len());
        self.begin_parts();
        for used in uses {
            self.open_part(
                used,
                OpenWindow::new(stream, launch_of(tokens), used.access),
                &mut needs,
            );
            // SAFETY: the window was opened just now, and this is its only token.
            unsafe { tokens.push(used.block, used.access, 0) };
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
            let conflicting = match window.access().writes() {
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

    /// Tells the windows apart by their bytes from now on. Those that the slot has were opened on
    /// the whole block.
    fn begin_parts(&mut self) {
        if !self.has_parts() {
            let parts = self.parts.get_or_insert_default();
            parts.windows.clear();
            parts.windows.resize(self.windows.len(), ByteRange::WHOLE);
            self.marks |= PARTS;
        }
    }

    fn open_part(&mut self, used: &BlockUse, window: OpenWindow, needs: &mut Needs) {
        let BlockUse { access, bytes, .. } = *used;
        let slot = window.stream.slot();
        let Some(parts) = &mut self.parts else { return };
        let need = |used| needs.add(used, 0);
        match parts.ledger.is_empty() {
            true => self.ledger.visit_waits(slot, access, need),
            false => parts.ledger.visit_waits(bytes, slot, access, need),
        }
        parts.windows.push(bytes);
        self.windows.push(window);
        self.marks |= WINDOWS;
    }

    /// Records a use of bytes.
    pub(super) fn commit_part(
        &mut self,
        bytes: ByteRange,
        access: Access,
        used: UseId,
        launches: &impl Launches,
    ) {
        let Some(parts) = &mut self.parts else { return };
        if parts.ledger.is_empty() {
            if bytes.is_whole() {
                return self.commit_whole(access, used);
            }
            parts.ledger.copy(&self.ledger);
            self.ledger.clear();
        }
        parts.ledger.make_room(|used| launches.is_done(used));
        parts.ledger.commit(bytes, access, used);
        self.marks |= USES;
    }

    /// Goes back to uses of the whole block, where there are no others.
    #[inline(never)]
    pub(super) fn end_parts(&mut self) {
        let Some(parts) = &mut self.parts else { return };
        if let Some(whole) = parts.ledger.take_whole() {
            self.ledger = whole;
        }
        if self.windows.is_empty() && parts.ledger.is_empty() {
            self.marks &= !PARTS;
        }
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
        let parts = self.parts.as_ref().filter(|_| self.has_parts());
        parts.and_then(|parts| parts.windows.get(at)).copied().unwrap_or(ByteRange::WHOLE)
    }

    /// Returns the bytes of all windows, if [`PARTS`] is set.
    pub(super) fn part_windows(&mut self) -> &mut [ByteRange] {
        let has_parts = self.has_parts();
        let parts = self.parts.as_mut().filter(|_| has_parts);
        parts.map_or(&mut [], |parts| &mut parts.windows)
    }

    /// Closes all windows without recording uses.
    pub(super) fn close_all(&mut self) {
        self.windows.clear();
        self.marks &= !(WINDOWS | LAST);
        if let Some(parts) = &mut self.parts {
            parts.windows.clear();
        }
    }
}
