//! The state of one use slot: its occupant, and the windows and uses of its block.
//!
//! Makes no driver call, so that it can be model-checked.

use dmr_core::ledger::{Ledger, PartLedger, UseId};
use dmr_core::{Access, BlockUse, ByteRange, ResourceError, ResourceResult, StreamId, UseTokens};
use smallvec::SmallVec;

use super::closed::OwnerNumber;

/// The state of the launches on the streams of a pool, for the slots. A launch is named by the slot
/// of its stream and its number there, which is that of its uses if no other launch overtakes it.
pub(crate) trait Launches {
    /// Returns whether the launch is over, and no other launch has overtaken it: its windows are
    /// closed, and its uses have its number.
    fn is_over(&self, launch: UseId) -> bool;

    /// Has the end of the launch look at its blocks, so that it finds a block that is retired. Does
    /// nothing if the launch [is over](Self::is_over) already.
    fn watch(&self, launch: UseId);

    /// Returns whether a use is known to be done.
    fn is_done(&self, used: UseId) -> bool;

    /// Returns whether work on the stream in `slot` would have to wait for a use.
    fn holds_up(&self, slot: usize, used: UseId) -> bool;
}

/// The mark of windows in the list.
pub(super) const WINDOWS: u8 = 1;
/// The mark of a window that is not in the list yet.
pub(super) const LAST: u8 = 2;
/// The mark of uses beside the allocation and writes of the same stream.
pub(super) const USES: u8 = 4;
/// The mark of uses by the bytes that they use.
pub(super) const PARTS: u8 = 8;
/// The mark of a retired block whose last window is awaited: the thread that closes it passes the
/// block to its owner.
pub(super) const AWAITED: u8 = 16;

// In this order: what an allocation and a free need shares a cache line with the slot's word.
#[repr(C)]
pub(super) struct SlotState {
    pub(super) occupant: Occupant,
    /// The stream slot whose list of free use slots it returns to.
    pub(super) home: u32,
    /// Marks of everything beside an allocation: [`WINDOWS`], [`LAST`], [`USES`], [`PARTS`],
    /// [`AWAITED`].
    pub(super) marks: u8,
    /// The uses of all bytes, unless `parts` has uses.
    pub(super) ledger: Ledger,
    /// The window of the last launch on the regular path, if [`LAST`] is set: it is not in the list
    /// yet.
    last: OpenWindow,
    /// Windows that are open, or whose launch is over and that are not settled.
    pub(super) windows: SmallVec<[OpenWindow; 1]>,
    /// The uses and windows by the bytes that they use, if [`PARTS`] is set. Kept for the next
    /// block otherwise, for its memory on the host heap.
    pub(super) parts: Option<Box<PartUses>>,
}

/// The windows and uses of a block by the bytes that they use.
#[derive(Default)]
pub(super) struct PartUses {
    /// The uses of each range; without uses, the slot's ledger has them.
    pub(super) ledger: PartLedger,
    /// The bytes of each window of the slot, by its index there.
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

/// The window of a use, from preparing to settling it.
#[derive(Clone, Copy)]
pub(super) struct OpenWindow {
    pub(super) stream: StreamId,
    /// The launch, whose number is even, and [`WRITES`] if it writes.
    word: u64,
}

const WRITES: u64 = 1;

impl OpenWindow {
    #[inline(always)]
    pub(super) fn new(stream: StreamId, launch: UseId, access: Access) -> Self {
        Self { stream, word: launch.get() | u64::from(access.writes()) }
    }

    #[inline(always)]
    pub(super) fn launch(&self) -> UseId {
        UseId::from_word(self.word & !WRITES).unwrap_or(UseId::new(0, 0))
    }

    #[inline(always)]
    pub(super) fn writes(&self) -> bool {
        self.word & WRITES != 0
    }

    pub(super) fn access(&self) -> Access {
        if self.writes() { Access::Write } else { Access::Read }
    }
}

/// Returns the launch of tokens.
#[inline(always)]
pub(super) fn launch_of(tokens: &UseTokens) -> UseId {
    UseId::from_parts(tokens.stream().slot(), tokens.launch())
}

/// The end of a use whose window closes.
#[derive(Clone, Copy)]
pub(crate) enum WindowEnd {
    /// Its work was never submitted.
    Unused,
    /// Its work was submitted.
    Used(UseId),
}

impl SlotState {
    pub(super) fn empty() -> Self {
        Self {
            home: 0,
            marks: 0,
            occupant: Occupant::NONE,
            ledger: Ledger::new(),
            last: OpenWindow { stream: StreamId::UNISSUED, word: 0 },
            windows: SmallVec::new(),
            parts: None,
        }
    }

    /// Returns whether uses are by the bytes that they use.
    #[inline(always)]
    pub(super) fn has_parts(&self) -> bool {
        self.marks & PARTS != 0
    }

    /// Makes `allocation` the only use in the ledger. There is no window.
    #[inline(always)]
    pub(super) fn restart(&mut self, allocation: UseId) {
        if self.marks != 0 {
            self.forget_uses();
        }
        self.ledger.set_last_write(allocation);
    }

    #[inline(never)]
    fn forget_uses(&mut self) {
        self.marks = 0;
        self.ledger.clear();
        if let Some(parts) = &mut self.parts {
            parts.ledger.clear();
        }
    }

    /// Calls `need` with each use that the free of the block must come after.
    #[inline]
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

    /// Adds the window of a use of the whole block.
    #[inline(always)]
    pub(super) fn open_whole(&mut self, window: OpenWindow) {
        self.windows.push(window);
        self.marks |= WINDOWS;
    }

    /// Returns [`WindowConflict`](ResourceError::WindowConflict) if a window of another stream
    /// conflicts with a use.
    pub(super) fn refuse_conflict(&self, used: &BlockUse, stream: StreamId) -> ResourceResult<()> {
        match self.conflict(used, stream) {
            None => Ok(()),
            Some(&OpenWindow { stream: holder, .. }) => {
                let generation = used.block.generation();
                Err(ResourceError::window_conflict(generation, holder, stream, used.access))
            }
        }
    }

    /// Returns an open window of another stream that conflicts with a use.
    pub(super) fn conflict(&self, used: &BlockUse, stream: StreamId) -> Option<&OpenWindow> {
        let conflicts = |(at, window): &(usize, &OpenWindow)| {
            window.stream.slot() != stream.slot()
                && window.access().conflicts_with(used.access)
                && self.bytes_of_window(*at).overlaps(used.bytes)
        };
        self.windows.iter().enumerate().find(conflicts).map(|(_, window)| window)
    }

    /// Settles the block: closes the windows of launches that are over, and records their uses.
    #[inline]
    pub(super) fn settle(&mut self, launches: &impl Launches) {
        if self.marks & (WINDOWS | LAST) != 0 {
            self.list_last();
            self.settle_windows(launches);
        }
    }

    /// Puts the window of the last launch on the regular path into the list.
    pub(super) fn list_last(&mut self) {
        if self.marks & LAST != 0 {
            self.marks ^= LAST;
            self.open_whole(self.last);
        }
    }

    /// Settles the block on the regular path: one that was used as a whole, by one launch after the
    /// other. Returns `false` if it is another block, or its last launch is not over.
    #[inline(always)]
    pub(super) fn settle_last(&mut self, is_over: impl FnOnce(UseId) -> bool) -> bool {
        if self.marks & LAST == 0 {
            return self.marks & (WINDOWS | PARTS) == 0;
        }
        let last = self.last;
        if self.marks & (WINDOWS | PARTS) != 0 || !is_over(last.launch()) {
            return false;
        }
        self.marks ^= LAST;
        let is_plain = last.writes()
            && self.marks & USES == 0
            && self.ledger.is_written_on(last.launch().slot());
        match is_plain {
            true => self.ledger.set_last_write(last.launch()),
            false => self.commit_whole(last.access(), last.launch()),
        }
        true
    }

    /// Opens the window of a use on the regular path, for a block that
    /// [was settled](Self::settle_last).
    #[inline(always)]
    pub(super) fn open_last(&mut self, window: OpenWindow) {
        self.last = window;
        self.marks |= LAST;
    }

    #[inline(never)]
    fn settle_windows(&mut self, launches: &impl Launches) {
        let mut kept = 0;
        for at in 0..self.windows.len() {
            let window = self.windows[at];
            let bytes = self.bytes_of_window(at);
            let launch = window.launch();
            if launches.is_over(launch) {
                self.commit(bytes, window.access(), launch, launches);
            } else {
                self.windows[kept] = window;
                if let Some(place) = self.part_windows().get_mut(kept) {
                    *place = bytes;
                }
                kept += 1;
            }
        }
        self.windows.truncate(kept);
        if self.has_parts()
            && let Some(parts) = &mut self.parts
        {
            parts.windows.truncate(kept);
        }
        self.update_marks();
    }

    /// Closes `windows` windows of a launch, those that were opened last; returns the number of
    /// those that were found.
    pub(super) fn close(
        &mut self,
        windows: usize,
        launch: UseId,
        end: WindowEnd,
        launches: &impl Launches,
    ) -> usize {
        self.list_last();
        let mut closed = 0;
        // From the end: a launch closes what was opened last.
        let mut behind = self.windows.len();
        while closed < windows
            && let Some(at) = self.windows[..behind].iter().rposition(|it| it.launch() == launch)
        {
            let bytes = self.bytes_of_window(at);
            let window = self.windows.remove(at);
            if self.has_parts()
                && let Some(parts) = &mut self.parts
            {
                parts.windows.remove(at);
            }
            if let WindowEnd::Used(used) = end {
                self.commit(bytes, window.access(), used, launches);
            }
            behind = at;
            closed += 1;
        }
        self.update_marks();
        closed
    }

    /// Records a use whose window was removed.
    fn commit(&mut self, bytes: ByteRange, access: Access, used: UseId, launches: &impl Launches) {
        match self.has_parts() {
            true => self.commit_part(bytes, access, used, launches),
            false => self.commit_whole(access, used),
        }
    }

    /// Records a use of the whole block.
    #[inline(never)]
    pub(super) fn commit_whole(&mut self, access: Access, used: UseId) {
        // A write of the stream of the last one leaves it at that.
        let is_plain = access.writes() && self.ledger.is_written_on(used.slot());
        if !is_plain {
            self.marks |= USES;
        }
        self.ledger.commit(access, used);
    }

    /// Sets the marks after windows were closed.
    fn update_marks(&mut self) {
        if self.has_parts() {
            self.end_parts();
        }
        if self.windows.is_empty() {
            self.marks &= !WINDOWS;
        }
    }
}
