//! Prepared uses: the windows between what a stream waits for and the event behind its work.
//!
//! No lock is held across a driver call. What makes that sound is the window: from preparing a use to
//! finishing it, no conflicting use of another stream can be prepared, so the waits that were found stay
//! what is needed, and what they wait for stays what it is.

use dmr_core::error::StreamProblem;
use dmr_core::ledger::UseId;
use dmr_core::{
    Access, BlockId, BlockUse, ResourceError, ResourceResult, StreamId, UseToken, UseTokens,
};
use smallvec::SmallVec;

use super::slots::{Closed, Closing};
use super::{Needs, UseTable, covering};
use crate::progress::Event;
use crate::{HomeStream, StreamGuard};

impl UseTable<'_> {
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

    /// As [`finish_uses`](Self::finish_uses), without an event: for a caller that finishes other uses of
    /// the same work next, whose event covers these, too. If none is recorded, what must come after these
    /// uses records one.
    ///
    /// # Errors
    ///
    /// As [`finish_uses`](Self::finish_uses).
    pub fn finish_without_event(&self, tokens: UseTokens) -> ResourceResult<()> {
        if !self.pool.device().is_usable() {
            return self.finish_without_device(tokens);
        }
        let slot = self.of_this_pool(tokens.stream())?.slot();
        Self::refuse_mixed(&tokens)?;
        self.close_used(&tokens, self.pool.progress().number(slot))
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

    /// Keeps a need: per producer the latest is enough.
    pub(super) fn add_need(used: UseId, needs: &mut Needs) {
        match needs.iter_mut().find(|known| known.slot() == used.slot()) {
            Some(known) => *known = used.max(*known),
            None => needs.push(used),
        }
    }

    /// Queues the waits on `stream`, less those that others of them imply.
    pub(super) fn wait(&self, stream: &StreamGuard<'_>, needs: &Needs) -> ResourceResult<()> {
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
            match self.close_one(token, closing) {
                true => closed += 1,
                false => gone = Some(token),
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
            self.close_one(token, Closing::Unused);
        }
    }

    /// Closes a window; returns `false` for a token that has none.
    #[inline(always)]
    fn close_one(&self, token: &UseToken, closing: Closing) -> bool {
        match self.slots().close(token, closing) {
            Closed::Stale => return false,
            Closed::Window => {}
            Closed::LastOfRetired(owner) => {
                self.pool.closed_queues().push(owner, token.block().generation().get());
            }
        }
        true
    }
}
