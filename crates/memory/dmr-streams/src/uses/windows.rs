//! Windows: preparing, finishing and cancelling uses.
//!
//! No lock is held across a driver call. The window makes that sound: from preparing a use to
//! finishing it, no conflicting use of another stream can be prepared, so the waits that were found
//! remain the waits that are needed.

use dmr_core::error::StreamProblem;
use dmr_core::ledger::UseId;
use dmr_core::{
    Access, BlockId, BlockUse, ResourceError, ResourceResult, StreamId, UseTokens, UseTracking,
};
use smallvec::SmallVec;

use super::needs::Needs;
use super::slot_state::WindowEnd;
use super::slots::Closed;
use super::{UseTable, covering};
use crate::holds::Holds;
use crate::progress::Event;
use crate::{HomeStream, StreamGuard, StreamPool};

impl UseTable<'_> {
    /// Makes `stream` wait for all uses that the new ones must come after, and opens a window for
    /// each: all of them, or none. Queues at most one wait for each stream that has used the
    /// blocks, and none for uses that `stream` has waited for already or that are known to be done.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse);
    /// [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`OtherPool`](ResourceError::OtherPool) for a block of another stream pool;
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a stale id;
    /// [`WindowConflict`](ResourceError::WindowConflict);
    /// [`Driver`](ResourceError::Driver), when a wait that was queued before may remain.
    pub fn prepare(&self, uses: &[BlockUse], stream: StreamId) -> ResourceResult<UseTokens> {
        let mut tokens = UseTokens::new(stream);
        self.prepare_in(uses, &mut tokens, || ())?;
        Ok(tokens)
    }

    /// As [`prepare`](Self::prepare), on the stream of `tokens`, to which the windows are added.
    /// Calls `failed` when windows were closed again because of an error.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    #[inline(always)]
    pub fn prepare_in(
        &self,
        uses: &[BlockUse],
        tokens: &mut UseTokens,
        failed: impl FnOnce(),
    ) -> ResourceResult<()> {
        let Some(stream) = self.pool.entered(tokens.stream()) else {
            return Err(self.pool.refusal(tokens.stream()));
        };
        self.prepare_on(&stream, uses, tokens).inspect_err(|_| failed())
    }

    /// As [`prepare_in`](Self::prepare_in), on a stream of this pool that was entered.
    #[inline(always)]
    pub(crate) fn prepare_on(
        &self,
        stream: &StreamGuard<'_>,
        uses: &[BlockUse],
        tokens: &mut UseTokens,
    ) -> ResourceResult<()> {
        if !tokens.resolve(stream.id()) {
            return Err(ResourceError::stream_misuse(stream.id(), StreamProblem::ReturnedLease));
        }
        let open = tokens.len();
        if let Err(error) = self.open(uses, stream, tokens) {
            stream.open_windows(tokens.len() - open);
            // They are open, so closing them is no error.
            let _ = self.cancel_from(tokens, open);
            return Err(error);
        }
        stream.open_windows(tokens.len() - open);
        Ok(())
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
        let mut left = uses;
        while !left.is_empty() {
            let need = |used| {
                if self.holds_up(stream.slot(), used) {
                    needs.add(used);
                }
            };
            left = match self.slots().open(left, tokens, need) {
                Ok(behind) => behind,
                Err(error) => return Err(self.refused(left, stream, error)),
            };
        }
        if needs.as_slice().is_empty() { Ok(()) } else { self.wait(stream, &needs) }
    }

    /// Returns the error of the first of these uses, for which the slots returned `error`.
    #[cold]
    fn refused(
        &self,
        uses: &[BlockUse],
        stream: &StreamGuard<'_>,
        error: ResourceError,
    ) -> ResourceError {
        match (uses.first(), &error) {
            (Some(&BlockUse { block, .. }), ResourceError::UseAfterFree { .. })
                if !self.is_ours(block.alloc_stream()) =>
            {
                ResourceError::other_pool(block, stream.id(), self.pool.device().ordinal())
            }
            _ => error,
        }
    }

    /// Returns whether a window of another stream is open that conflicts with one of these uses, so
    /// that [`prepare`](Self::prepare) would be refused with a conflict now. Opens no window.
    /// `None` if it would be refused with another error: a block before the first conflict is not
    /// in the table, or the stream is of another pool.
    #[must_use]
    pub fn has_conflict<'u>(
        &self,
        uses: impl IntoIterator<Item = &'u BlockUse>,
        stream: StreamId,
    ) -> Option<bool> {
        if self.pool.device().is_forked() {
            return None;
        }
        let stream = self.of_this_pool(stream).ok()?;
        for used in uses {
            if self.slots().has_conflict(used, stream)? {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Records the uses, whose work has been submitted by now, and closes their windows: one event
    /// for all of them, and none while the pool has only ever had one stream. On a lost device it
    /// only closes the windows.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver) or [`StreamCapturing`](ResourceError::StreamCapturing) if
    /// neither an event could be recorded nor the stream be synchronised instead. The uses are
    /// remembered all the same: calls that must come after them fail until an event can be
    /// recorded. [`UseAfterFree`](ResourceError::UseAfterFree) for a stale token, which has no
    /// window; [`DeviceLost`](ResourceError::DeviceLost);
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn finish(&self, mut tokens: UseTokens) -> ResourceResult<()> {
        self.finish_in(&mut tokens)
    }

    /// As [`finish`](Self::finish). Removes the windows from `tokens`.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    #[inline(always)]
    pub fn finish_in(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let Some(stream) = self.pool.entered_home(tokens.stream()).and_then(HomeStream::live)
        else {
            return self.finish_without_stream(tokens);
        };
        let mut seq = 0;
        match self.pool.progress().mark(&stream, &mut seq) {
            Ok(()) => self.close(
                tokens,
                stream.holds(),
                0,
                WindowEnd::Used(UseId::new(stream.slot(), seq)),
            ),
            Err(error) => self.finish_unrecorded(tokens, &stream, seq, error),
        }
    }

    /// As [`finish`](Self::finish), without an event: for a caller that finishes other uses of the
    /// same work next, whose event covers these, too. If none is recorded, the first call that must
    /// come after these uses records one.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn finish_without_event(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let Some(stream) = self.pool.entered_home(tokens.stream()).and_then(HomeStream::live)
        else {
            return self.finish_without_stream(tokens);
        };
        let seq = self.pool.progress().number(stream.slot());
        self.close(tokens, stream.holds(), 0, WindowEnd::Used(UseId::new(stream.slot(), seq)))
    }

    /// Finishes uses for which no event could be recorded: waits for the work instead. If that
    /// fails too, returns the error of the record.
    #[cold]
    fn finish_unrecorded(
        &self,
        tokens: &mut UseTokens,
        stream: &StreamGuard<'_>,
        seq: u64,
        error: ResourceError,
    ) -> ResourceResult<()> {
        let used = UseId::new(stream.slot(), seq);
        // Synchronising the stream would end its capture.
        let is_captured = matches!(error, ResourceError::StreamCapturing { .. });
        if is_captured || stream.synchronize().is_err() {
            return self.close(tokens, stream.holds(), 0, WindowEnd::Used(used)).and(Err(error));
        }
        self.close(tokens, stream.holds(), 0, WindowEnd::Done(used))
    }

    /// Finishes uses on a stream that cannot be entered.
    #[cold]
    fn finish_without_stream(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let entered = self.pool.enter_home(tokens.stream()).map(drop);
        match entered {
            // The work has ended with the context: nothing has to be ordered after it.
            Err(ResourceError::DeviceLost { .. }) => {}
            Err(error) => return Err(error),
            // A stream with an open window is not retired: these tokens have none.
            Ok(()) => {}
        }
        self.cancel_from(tokens, 0).and(entered)
    }

    /// Closes windows of uses whose work was not submitted.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for tokens of another pool;
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a stale token, which has no window;
    /// [`ForkedProcess`](ResourceError::ForkedProcess).
    pub fn cancel(&self, mut tokens: UseTokens) -> ResourceResult<()> {
        self.cancel_in(&mut tokens)
    }

    /// As [`cancel`](Self::cancel). Removes the windows from `tokens`.
    ///
    /// # Errors
    ///
    /// As [`cancel`](Self::cancel).
    pub fn cancel_in(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        self.of_this_pool(tokens.stream())?;
        // Another thread may have held a slot when the process was forked.
        self.pool.device().refuse_fork()?;
        self.cancel_from(tokens, 0)
    }

    /// Closes the windows from index `from` on, and removes them from `tokens`: their work was not
    /// submitted, or has ended with the device.
    ///
    /// # Errors
    ///
    /// As [`close`](Self::close).
    #[cold]
    pub(crate) fn cancel_from(&self, tokens: &mut UseTokens, from: usize) -> ResourceResult<()> {
        let holds = self.pool.holds(tokens.stream().slot());
        self.close(tokens, holds, from, WindowEnd::Unused)
    }

    /// Records work that was submitted to `stream` already, and that reads and writes the block.
    ///
    /// The caller has ordered the work after its dependencies. The stream waits for the earlier
    /// uses all the same, after the work, so that the recorded use covers them.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare) and [`finish`](Self::finish).
    pub fn record(&self, block: BlockId, stream: StreamId) -> ResourceResult<()> {
        self.finish(self.prepare(&[BlockUse::new(block, Access::ReadWrite)], stream)?)
    }

    /// Queues the waits on `stream`, except for those that other waits cover.
    pub(super) fn wait(&self, stream: &StreamGuard<'_>, needs: &Needs) -> ResourceResult<()> {
        let progress = self.pool.progress();
        if let [used] = *needs.as_slice() {
            return match progress.event_for(self.pool, used)? {
                Some(event) => progress.make_wait(stream, &event),
                None => Ok(()),
            };
        }
        let mut events: SmallVec<[Event; 8]> = SmallVec::new();
        for used in needs.as_slice() {
            events.extend(progress.event_for(self.pool, *used)?);
        }
        let covers = |by: usize, of: usize| events[by].covers(events[of].slot(), events[of].seq());
        let queued = covering::queued(events.len(), covers);
        for (event, _) in events.iter().zip(queued).filter(|(_, queued)| *queued) {
            progress.make_wait(stream, event)?;
        }
        Ok(())
    }

    /// Closes the windows from index `from` on, and removes them from `tokens` and from the count
    /// of their stream, which `holds` has if that is adopted.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a token that has no window. All other
    /// windows are closed all the same.
    #[inline(always)]
    fn close(
        &self,
        tokens: &mut UseTokens,
        holds: Option<&Holds>,
        from: usize,
        end: WindowEnd,
    ) -> ResourceResult<()> {
        let mut closed = 0;
        let mut stale = None;
        let is_done = |used| self.pool.progress().is_done(used);
        let mut left = &tokens.as_slice()[from..];
        while let Some(first) = left.first() {
            let Closed { behind, windows, any_stale, retired } =
                self.slots().close(left, end, &is_done);
            if any_stale {
                stale = Some(first.generation());
            }
            if let Some(owner) = retired {
                self.pool.closed_queues().push(owner, first.generation().get());
            }
            closed += windows;
            left = behind;
        }
        tokens.truncate(from);
        if let Some(holds) = holds {
            holds.close_windows(closed);
        }
        stale.map_or(Ok(()), |generation| Err(ResourceError::use_after_free(generation)))
    }
}

/// The tracking of a resource whose blocks are in [`uses`](StreamPool::uses) and that has nothing
/// of its own to do when a window closes: its
/// [`use_tracking`](dmr_core::DeviceMemoryResource::use_tracking) returns the stream pool.
impl UseTracking for StreamPool {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.uses().prepare_in(uses, tokens, || ())
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.uses().finish_in(tokens)
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.uses().cancel_in(tokens)
    }
}
