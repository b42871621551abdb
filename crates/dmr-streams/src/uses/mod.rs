//! The use table: who uses what, on which stream, and what must therefore wait.
//!
//! One table serves a pool's streams and everything that is used on them: blocks of any resource
//! that tracks uses, pinned buffers. It has a slot for each; a [`BlockId`] names the slot, and its
//! generation tells whether the slot is still that block's. Looking one up is an index, no hash
//! and no lock that another block's user takes.
//!
//! No lock is held across a driver call. What makes that sound is the window: from preparing a
//! use to finishing it, no conflicting use of another stream can be prepared, so the waits that
//! were found needed stay needed, and what they wait for stays what it is.

mod carried;
mod covering;
mod departure;
mod dependencies;
mod resource;
mod slots;
mod vacancy;

use dmr_core::error::StreamProblem;
use dmr_core::ledger::UseId;
use dmr_core::{
    Access, BlockId, BlockSlot, BlockUse, Generation, ResourceError, ResourceResult, StreamId,
    UseToken, UseTokens,
};
use smallvec::SmallVec;

use crate::owner::OwnerNumber;
use crate::progress::Event;
use crate::{BlockOwner, HomeStream, StreamGuard, StreamPool};

pub use carried::{Carried, CarriedOrder};
pub use departure::{Departure, Leaving};
pub use dependencies::{Dependencies, FreeOrder, HomeOrder, LastUse};
pub(crate) use slots::Slots;
use slots::{Closing, Left, Tenancy};
pub use vacancy::{Surrender, Vacancy};

/// The uses of everything that lives on a pool's streams: [`StreamPool::uses`].
#[derive(Clone, Copy, Debug)]
pub struct UseTable<'p> {
    pool: &'p StreamPool,
}

/// Waits that one launch needs, before those that others imply are left out.
type Needs = SmallVec<[UseId; 8]>;

impl<'p> UseTable<'p> {
    #[inline]
    pub(crate) fn of(pool: &'p StreamPool) -> Self {
        Self { pool }
    }

    /// Enters a block of `owner`, whose allocation has just been submitted to `home`, and that may have
    /// had a slot elsewhere before. The allocation counts as a write: work on other streams waits for
    /// it. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an owner or a stream of another pool;
    /// [`Capacity`](ResourceError::Capacity) once 2²⁶ blocks are live.
    #[inline]
    pub fn insert(
        &self,
        owner: &BlockOwner,
        generation: Generation,
        home: &StreamGuard<'_>,
        payload: u64,
    ) -> ResourceResult<BlockSlot> {
        let home = self.of_this_pool(home.id())?;
        let owner = self.owner_here(owner, home)?;
        let allocation = self.pool.progress().submitted(home.slot());
        let tenancy = Tenancy { owner: Some(owner), payload };
        self.slots().insert(generation, allocation, tenancy).map(BlockSlot::new)
    }

    /// Takes a block back from its holder: preparing a use of it is
    /// [`UseAfterFree`](ResourceError::UseAfterFree) from now on. In one look at its slot this is
    /// [`retire`](Self::retire), [`free_order`](Self::free_order) and the first half of
    /// [`remove`](Self::remove), where the order holds on the home stream.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) if it was given back before.
    #[inline]
    pub fn give_back(&self, block: BlockId, owner: &BlockOwner) -> ResourceResult<Departure<'p>> {
        let home = block.alloc_stream().slot();
        let ordered = |used| !self.holds_up(home, used);
        // A stream that its owner has taken back orders nothing any more but by its last event.
        let alive = !self.pool.is_retired(home);
        Ok(match self.slots().give_back(block, owner.number(), alive, ordered) {
            Left::Foreign => Departure::Foreign,
            Left::Before => return Err(ResourceError::use_after_free(block.generation())),
            Left::Retired { payload, in_use, last } => {
                let order = match last {
                    _ if in_use => HomeOrder::InUse,
                    Some(last) if alive => HomeOrder::Others(last),
                    _ => HomeOrder::Ended,
                };
                Departure::Retired { payload, order }
            }
            Left::Gone { payload, empty, used } => {
                Departure::Home(Leaving { table: *self, block, empty, payload, used })
            }
        })
    }

    /// Makes `stream` wait for all that the uses must come after, and opens a window for each:
    /// all of them, or none. At most one wait for each stream that has used the blocks; none for
    /// what `stream` has waited for already or what is known to be done.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse);
    /// [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a stale id;
    /// [`WindowConflict`](ResourceError::WindowConflict);
    /// [`Driver`](ResourceError::Driver), when a wait that was queued before may remain.
    pub fn prepare(&self, uses: &[BlockUse], stream: StreamId) -> ResourceResult<UseTokens> {
        self.prepare_or(uses, stream, || ())
    }

    /// As [`prepare`](Self::prepare). Calls `failed` when windows were closed again because of an error.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    #[inline]
    pub fn prepare_or(
        &self,
        uses: &[BlockUse],
        stream: StreamId,
        failed: impl FnOnce(),
    ) -> ResourceResult<UseTokens> {
        let stream = self.pool.enter(stream)?;
        // They are half a kilobyte, and moved once.
        let mut tokens = UseTokens::new(stream.id());
        match self.prepare_on(uses, &stream, &mut tokens) {
            Ok(()) => Ok(tokens),
            Err(error) => {
                failed();
                Err(error)
            }
        }
    }

    #[inline(always)]
    fn prepare_on(
        &self,
        uses: &[BlockUse],
        stream: &StreamGuard<'_>,
        tokens: &mut UseTokens,
    ) -> ResourceResult<()> {
        let outcome = self.open(uses, stream, tokens);
        match &outcome {
            Ok(()) => stream.open_windows(tokens.len()),
            Err(_) => self.close_all(tokens),
        }
        outcome
    }

    #[inline(always)]
    fn open(
        &self,
        uses: &[BlockUse],
        stream: &StreamGuard<'_>,
        tokens: &mut UseTokens,
    ) -> ResourceResult<()> {
        if uses.is_empty() {
            return Ok(());
        }
        stream.refuse_capture()?;
        let mut needs = Needs::new();
        for &BlockUse { block, access } in uses {
            let need = |used| {
                if self.holds_up(stream.slot(), used) {
                    Self::add_need(used, &mut needs);
                }
            };
            let ticket = self.slots().open(block, stream.id(), access, need)?;
            // SAFETY: the window was opened just now, and this is its only token.
            tokens.push(unsafe { UseToken::new(block, stream.id(), access, ticket) });
        }
        if needs.is_empty() { Ok(()) } else { self.wait(stream, &needs) }
    }

    /// Records the uses, whose work has been submitted by now, and closes their windows: one
    /// event for all of them, and none while the pool has only ever had one stream.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) or [`StreamCapturing`](ResourceError::StreamCapturing)
    /// if neither an event could be recorded nor the stream be synchronised instead. The uses
    /// are remembered all the same: whatever must come after them fails until the driver lets an
    /// event be recorded. [`UseAfterFree`](ResourceError::UseAfterFree) for a token whose block is gone,
    /// which has no window any more. [`StreamMisuse`](ResourceError::StreamMisuse) if the tokens are of
    /// several streams: all windows stay open then, and their blocks are never freed.
    #[inline]
    pub fn finish(&self, tokens: UseTokens) -> ResourceResult<()> {
        self.finish_borrowed(&tokens)
    }

    /// As [`finish`](Self::finish), without moving the tokens, which are half a kilobyte: for a
    /// resource that was given them to finish.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn finish_borrowed(&self, tokens: &UseTokens) -> ResourceResult<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        Self::refuse_mixed(tokens)?;
        let stream = match self.pool.enter_home(tokens.stream())? {
            HomeStream::Live(stream) => stream,
            // A stream with an open window is not retired: these have none.
            HomeStream::Retired => return self.cancel_borrowed(tokens),
        };
        let mut seq = 0;
        match self.pool.progress().mark(&stream, &mut seq) {
            Ok(()) => self.close_used(tokens, seq),
            Err(error) => self.finish_unrecorded(tokens, &stream, seq, error),
        }
    }

    /// Finishes uses for which no event could be recorded: waits for the work instead. If that fails
    /// too, returns why none could be.
    #[cold]
    fn finish_unrecorded(
        &self,
        tokens: &UseTokens,
        stream: &StreamGuard<'_>,
        seq: u64,
        error: ResourceError,
    ) -> ResourceResult<()> {
        // To wait for the stream would break its capture.
        let is_captured = matches!(error, ResourceError::StreamCapturing { .. });
        if is_captured || stream.synchronize().is_err() {
            return self.close_used(tokens, seq).and(Err(error));
        }
        let done = UseId::new(stream.slot(), seq);
        self.close(tokens, Closing::Done(done))
    }

    #[inline(always)]
    fn close_used(&self, tokens: &UseTokens, seq: u64) -> ResourceResult<()> {
        let used = UseId::new(tokens.stream().slot(), seq);
        self.close(tokens, Closing::Used(used))
    }

    /// Closes windows of uses whose work was not submitted.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for tokens of another pool, or of several streams, when
    /// all windows stay open; [`UseAfterFree`](ResourceError::UseAfterFree) for a token whose block is
    /// gone, which has no window any more; [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn cancel(&self, tokens: UseTokens) -> ResourceResult<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.of_this_pool(tokens.stream())?;
        Self::refuse_mixed(&tokens)?;
        // Another thread may have held a slot when the process was forked.
        self.pool.device().refuse_fork()?;
        self.cancel_borrowed(&tokens)
    }

    fn cancel_borrowed(&self, tokens: &UseTokens) -> ResourceResult<()> {
        self.close(tokens, Closing::Unused)
    }

    /// Records work that was submitted to `stream` already, and that reads and writes the block.
    ///
    /// What the work had to come after, it had to be ordered after by its submitter. The stream
    /// waits for it here all the same, after the work, so that what is recorded stands for every
    /// earlier use.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare) and [`finish`](Self::finish).
    pub fn record(&self, block: BlockId, stream: StreamId) -> ResourceResult<()> {
        self.finish(self.prepare(&[BlockUse::new(block, Access::ReadWrite)], stream)?)
    }

    /// The block is being given back: preparing a use of it is
    /// [`UseAfterFree`](ResourceError::UseAfterFree) from now on.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) if it was already.
    pub fn retire(&self, owner: &BlockOwner, block: BlockId) -> ResourceResult<()> {
        self.pool.device().refuse_fork()?;
        self.slots().retire(block, owner.number())
    }

    /// The block was not given back after all.
    pub fn unretire(&self, owner: &BlockOwner, block: BlockId) {
        if !self.pool.device().is_forked() {
            self.slots().unretire(block, owner.number());
        }
    }

    /// What the free of a retired block must come after: every use that was recorded, and all
    /// work on the home stream so far, recorded or not. Does not wait.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) if the block is gone;
    /// [`Driver`](ResourceError::Driver) if an event cannot be recorded: ask again later.
    pub fn free_order(&self, block: BlockId) -> ResourceResult<FreeOrder> {
        self.pool.device().refuse_fork()?;
        let progress = self.pool.progress();
        let home = block.alloc_stream().slot();
        let Some(needs) = self.free_needs(block)? else { return Ok(FreeOrder::InUse) };
        // A stream that its owner has taken back orders nothing any more but by its last event.
        if needs.is_empty() && !self.pool.is_retired(home) {
            return Ok(FreeOrder::Home);
        }
        let mut events = self.events_of(&needs)?;
        events.extend(progress.event_now(self.pool, home)?);
        Ok(FreeOrder::After(Dependencies::new(self.pool.device().clone(), events)))
    }

    /// Returns what other streams than the home stream may still do with a retired block; `None` while
    /// a window is open.
    ///
    /// # Errors
    ///
    /// As [`free_order`](Self::free_order).
    pub(crate) fn uses_elsewhere(&self, block: BlockId) -> ResourceResult<Option<Dependencies>> {
        let Some(needs) = self.free_needs(block)? else { return Ok(None) };
        let events = self.events_of(&needs)?;
        Ok(Some(Dependencies::new(self.pool.device().clone(), events)))
    }

    /// Returns an event for each use that is not known to be done.
    fn events_of(&self, needs: &Needs) -> ResourceResult<SmallVec<[Event; 4]>> {
        let progress = self.pool.progress();
        let mut events = SmallVec::new();
        for used in needs {
            events.extend(progress.event_for(self.pool, *used)?);
        }
        Ok(events)
    }

    /// Whether the free of a retired block may be queued on its home stream now. Unlike
    /// [`free_order`](Self::free_order) makes no driver call: whoever can keep the block for a
    /// while asks again later, [`poll_free`](Self::poll_free) before that.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) if the block is gone.
    pub fn home_order(&self, block: BlockId) -> ResourceResult<HomeOrder> {
        let home = block.alloc_stream().slot();
        let mut last = None;
        let closed = self.slots().free_waits(block, |used| {
            if self.holds_up(home, used) {
                last = Some(LastUse::and_another(last, used));
            }
        })?;
        Ok(match last {
            _ if !closed => HomeOrder::InUse,
            _ if self.pool.is_retired(home) => HomeOrder::Ended,
            Some(last) => HomeOrder::Others(last),
            None => HomeOrder::Holds,
        })
    }

    /// Whether a free on the stream of `home` does not have to wait for this use any more. Asks
    /// nobody and takes no lock. For a block that has no other, the order then holds there.
    #[must_use]
    #[inline]
    pub fn has_passed(&self, home: StreamId, last: LastUse) -> bool {
        let home = home.slot();
        !self.holds_up(home, last.used) && !self.pool.is_retired(home)
    }

    /// Asks the driver whether all that other streams do with a retired block is done; `false`
    /// also while a window is open. The answer is remembered for every block: earlier uses of the
    /// same streams are done as well.
    ///
    /// # Errors
    ///
    /// As [`free_order`](Self::free_order); an error of the driver may come from work submitted
    /// earlier.
    pub fn poll_free(&self, block: BlockId) -> ResourceResult<bool> {
        let Some(needs) = self.free_needs(block)? else { return Ok(false) };
        for used in needs {
            if !self.ask(used)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The block is gone, and its slot is free for another.
    pub fn remove(&self, owner: &BlockOwner, block: BlockId) {
        if !self.pool.device().is_forked() {
            self.slots().remove(block, owner.number());
        }
    }

    /// Whether the block was given back and is still here. `false` in a forked child.
    #[must_use]
    pub fn is_retired(&self, block: BlockId) -> bool {
        !self.pool.device().is_forked() && self.slots().is_retired(block)
    }

    /// Whether a use of the block has been prepared and not finished. `false` in a forked child.
    #[must_use]
    pub fn has_open_window(&self, block: BlockId) -> bool {
        !self.pool.device().is_forked() && self.slots().has_open_window(block)
    }

    /// How many recorded uses are remembered, in all blocks: what a diagnosis shows. Looks at
    /// every slot.
    #[must_use]
    pub fn recorded_uses(&self) -> usize {
        if self.pool.device().is_forked() {
            return 0;
        }
        self.slots().count_uses()
    }

    /// How many slots the table has given to streams; they are never taken back. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn given_slots(&self) -> usize {
        self.slots().given()
    }

    /// Makes the work submitted to a block's home stream so far a part of its allocation. For a layer
    /// that fills fresh memory before it returns the block. Returns `false` if the block is not in the
    /// table, and changes nothing if it was used on another stream or a window is open.
    pub(crate) fn count_as_allocation(&self, block: BlockId) -> bool {
        let home = block.alloc_stream();
        if home.pool() != Some(self.pool.id()) || self.pool.device().is_forked() {
            return false;
        }
        self.slots().restart(block, self.pool.progress().submitted(home.slot()))
    }

    /// The number of an owner, unless it is of another pool.
    #[inline]
    fn owner_here(&self, owner: &BlockOwner, home: StreamId) -> ResourceResult<OwnerNumber> {
        if owner.pool() != self.pool.id() {
            return Err(ResourceError::stream_misuse(home, StreamProblem::OtherPool));
        }
        Ok(owner.number())
    }

    #[inline]
    fn slots(&self) -> &'p Slots {
        self.pool.slots()
    }

    /// Uses on other streams that the block's free must wait for; `None` if a window is open.
    fn free_needs(&self, block: BlockId) -> ResourceResult<Option<Needs>> {
        let home = block.alloc_stream().slot();
        let mut needs = Needs::new();
        let waits = |used| {
            if self.holds_up(home, used) {
                needs.push(used);
            }
        };
        Ok(self.slots().free_waits(block, waits)?.then_some(needs))
    }

    /// Whether work on the stream in `slot` would have to wait for a use.
    #[inline]
    fn holds_up(&self, slot: usize, used: UseId) -> bool {
        self.pool.progress().holds_up(slot, used)
    }

    /// Keeps a need: per producer the latest is enough.
    fn add_need(used: UseId, needs: &mut Needs) {
        match needs.iter_mut().find(|known| known.slot() == used.slot()) {
            Some(known) => *known = used.max(*known),
            None => needs.push(used),
        }
    }

    /// Queues the waits on `stream`, less those that others of them imply.
    fn wait(&self, stream: &StreamGuard<'_>, needs: &Needs) -> ResourceResult<()> {
        let progress = self.pool.progress();
        if let [used] = **needs {
            return match progress.event_for(self.pool, used)? {
                Some(event) => progress.make_wait(stream, &event),
                None => Ok(()),
            };
        }
        let mut events: SmallVec<[Event; 8]> = SmallVec::new();
        for used in needs {
            events.extend(progress.event_for(self.pool, *used)?);
        }
        let covers = |by: usize, of: usize| events[by].covers(events[of].slot(), events[of].seq());
        let queued = covering::queued(events.len(), covers);
        for (event, _) in events.iter().zip(queued).filter(|(_, queued)| *queued) {
            progress.make_wait(stream, event)?;
        }
        Ok(())
    }

    /// Refuses tokens that are not all of one stream: the uses would be recorded on a stream that they
    /// are not on, and the windows would hold a stream that they are not open on.
    #[inline]
    fn refuse_mixed(tokens: &UseTokens) -> ResourceResult<()> {
        let stream = tokens.stream();
        if tokens.iter().all(|token| token.stream().slot() == stream.slot()) {
            return Ok(());
        }
        Err(ResourceError::stream_misuse(stream, StreamProblem::OtherStreamsToken))
    }

    /// Closes the windows of tokens, which hold their stream until then.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a token that has no window any more. All windows
    /// are closed then, too.
    #[inline(always)]
    fn close(&self, tokens: &UseTokens, closing: Closing) -> ResourceResult<()> {
        let (mut closed, mut gone) = (0, None);
        for token in tokens.as_slice() {
            if self.slots().close(token, closing) {
                closed += 1;
            } else {
                gone = Some(token);
            }
        }
        if let Some(holds) = self.pool.holds(tokens.stream().slot()) {
            holds.close_windows(closed);
        }
        match gone {
            None => Ok(()),
            Some(token) => Err(ResourceError::use_after_free(token.block().generation())),
        }
    }

    /// Closes windows that no stream is held for yet.
    #[cold]
    fn close_all(&self, tokens: &UseTokens) {
        for token in tokens {
            self.slots().close(token, Closing::Unused);
        }
    }

    /// The stream of a token, whose lease may have been returned since it was made.
    #[inline]
    fn of_this_pool(&self, stream: StreamId) -> ResourceResult<StreamId> {
        if stream.pool() == Some(self.pool.id()) {
            Ok(stream)
        } else {
            Err(ResourceError::stream_misuse(stream, StreamProblem::OtherPool))
        }
    }
}
