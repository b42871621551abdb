//! The state of one use slot: its occupant, and the windows and uses of its block.
//!
//! Makes no driver call, so that it can be model-checked.

use dmr_core::ledger::{Ledger, PartLedger, UseId};
use dmr_core::{Access, BlockUse, ByteRange, ResourceError, ResourceResult, StreamId, UseToken};
use smallvec::SmallVec;

use super::closed::OwnerNumber;

pub(super) struct SlotState {
    /// The stream slot whose list of free use slots it returns to.
    pub(super) home: u32,
    pub(super) occupant: Occupant,
    /// The block was released and has not left the slot.
    pub(super) retired: bool,
    /// A use beside the allocation has been in the ledger.
    pub(super) used: bool,
    /// The uses of all bytes, unless `parts` has uses.
    pub(super) ledger: Ledger,
    pub(super) windows: SmallVec<[OpenWindow; 2]>,
    /// The uses and windows by the bytes that they use, once a part of a block of the slot was
    /// used.
    pub(super) parts: Option<Box<PartUses>>,
}

/// The windows and uses of a block by the bytes that they use.
#[derive(Default)]
pub(super) struct PartUses {
    /// The uses of each range; without uses, the slot's ledger has them.
    pub(super) ledger: PartLedger,
    /// The bytes of each open window of the slot, by its index there.
    pub(super) windows: Vec<ByteRange>,
}

/// The owner of the blocks in a slot, and its payload.
#[derive(Clone, Copy)]
pub(crate) struct Occupant {
    pub(crate) owner: Option<OwnerNumber>,
    pub(crate) payload: u64,
}

impl Occupant {
    /// The occupant of a slot that was never reserved.
    pub(crate) const NONE: Self = Self { owner: None, payload: 0 };
}

pub(super) struct OpenWindow {
    pub(super) stream: StreamId,
    /// Unique among the windows that are open on the slot.
    pub(super) ticket: u32,
    pub(super) access: Access,
}

/// The end of a use whose window closes.
#[derive(Clone, Copy)]
pub(crate) enum WindowEnd {
    /// Its work was never submitted.
    Unused,
    /// Its work was submitted.
    Used(UseId),
    /// Its work, and all work submitted to its stream up to this use, is done.
    Done(UseId),
}

impl SlotState {
    pub(super) fn empty() -> Self {
        Self {
            home: 0,
            occupant: Occupant::NONE,
            retired: false,
            used: false,
            ledger: Ledger::new(),
            windows: SmallVec::new(),
            parts: None,
        }
    }

    /// Makes `allocation` the only use in the ledger.
    #[inline(always)]
    pub(super) fn restart(&mut self, allocation: UseId) {
        self.ledger.restart(allocation);
        if let Some(parts) = &mut self.parts {
            parts.ledger.clear();
        }
    }

    /// Calls `need` with each use that the free of the block must come after.
    #[inline(always)]
    pub(super) fn visit_free_waits(&self, mut need: impl FnMut(UseId)) {
        if let Some(parts) = &self.parts {
            parts.ledger.visit_free_waits(&mut need);
        }
        self.ledger.visit_free_waits(need);
    }

    /// Returns the uses in the ledger.
    pub(super) fn entries(&self) -> impl Iterator<Item = UseId> {
        let of_parts = self.parts.iter().flat_map(|parts| parts.ledger.entries());
        self.ledger.entries().chain(of_parts)
    }

    /// Returns the ticket for another window beside those that are open.
    ///
    /// # Errors
    ///
    /// [`WindowConflict`](ResourceError::WindowConflict); [`Capacity`](ResourceError::Capacity) if
    /// there are no more tickets.
    #[inline(never)]
    pub(super) fn ticket_for_another(
        &self,
        used: &BlockUse,
        stream: StreamId,
    ) -> ResourceResult<u32> {
        if let Some(&OpenWindow { stream: holder, .. }) = self.conflict(used, stream) {
            let generation = used.block.generation();
            return Err(ResourceError::window_conflict(generation, holder, stream, used.access));
        }
        self.free_ticket(self.next_ticket())
    }

    /// Returns an open window of another stream that conflicts with a use.
    #[inline]
    pub(super) fn conflict(&self, used: &BlockUse, stream: StreamId) -> Option<&OpenWindow> {
        let conflicts = |(at, window): &(usize, &OpenWindow)| {
            window.stream.slot() != stream.slot()
                && window.access.conflicts_with(used.access)
                && self.bytes_of_window(*at).overlaps(used.bytes)
        };
        self.windows.iter().enumerate().find(conflicts).map(|(_, window)| window)
    }

    /// Returns a number above the tickets of all open windows.
    pub(super) fn next_ticket(&self) -> u32 {
        self.windows.iter().fold(0, |next, window| next.max(window.ticket + 1))
    }

    /// Returns `next`, which is above the tickets of all open windows, or a lower free ticket if
    /// that is too large.
    pub(super) fn free_ticket(&self, next: u32) -> ResourceResult<u32> {
        if next <= UseToken::MAX_TICKET { Ok(next) } else { self.lowest_free_ticket() }
    }

    /// Returns the lowest number that no open window has as its ticket.
    #[cold]
    fn lowest_free_ticket(&self) -> ResourceResult<u32> {
        let is_free = |ticket: &u32| self.windows.iter().all(|window| window.ticket != *ticket);
        (0..=UseToken::MAX_TICKET).find(is_free).ok_or_else(|| {
            ResourceError::capacity("windows on the block", UseToken::MAX_TICKET as usize)
        })
    }

    /// Closes a window of a block that was used as a whole only. Returns `false` if there is no
    /// such window.
    #[inline(always)]
    pub(super) fn close_whole(&mut self, token: &UseToken, end: WindowEnd) -> bool {
        match self.windows.as_slice() {
            [only] if only.ticket == token.ticket() => drop(self.windows.pop()),
            [] | [_] => return false,
            _ => match self.position_of(token.ticket()) {
                Some(at) => drop(self.windows.swap_remove(at)),
                None => return false,
            },
        }
        self.end_whole(token.access(), end);
        true
    }

    /// Changes the ledger of all bytes at the end of a use.
    #[inline(always)]
    pub(super) fn end_whole(&mut self, access: Access, end: WindowEnd) {
        match end {
            WindowEnd::Unused => {}
            WindowEnd::Used(used) => {
                self.used = true;
                self.ledger.commit(access, used);
            }
            WindowEnd::Done(done) => self.remove_done(access, done),
        }
    }

    /// Returns the index of the window with this ticket.
    #[inline(never)]
    pub(super) fn position_of(&self, ticket: u32) -> Option<usize> {
        // From the end: a launch closes what was opened last.
        self.windows.iter().rposition(|window| window.ticket == ticket)
    }

    /// Removes a use that is done from the ledger, and all earlier uses of its stream. If it is a
    /// write, removes all uses of other streams.
    #[cold]
    fn remove_done(&mut self, access: Access, done: UseId) {
        // Another thread may have finished a later use of the stream by now. Apart from that, a
        // write came after all uses.
        self.ledger.retain(|entry| {
            if entry.slot() == done.slot() { !done.covers(entry) } else { !access.writes() }
        });
    }
}
