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

use super::needs::{Need, Needs};
use super::slot_state::WindowEnd;
use super::slots::{Closed, EndedLaunches, Opened};
use super::{UseTable, covering};
use crate::progress::Event;
use crate::recording::{EndedLaunch, Left};
use crate::stream_waits::Cause;
use crate::timeline::End;
use crate::{HomeStream, StreamGuard, StreamPool};

/// A use to wait for, and an event that covers it.
struct Awaited {
    need: Need,
    event: Event,
}

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
        let mut opened = Opened { windows: 0, need: None };
        if tokens.is_empty()
            && !uses.is_empty()
            && let Some(stream) = self.pool.enter_own(tokens.stream())
            && stream.is_not_capturing()
            && tokens.resolve(stream.id())
        {
            // SAFETY: this table opens the windows of the launch.
            unsafe { tokens.set_launch(stream.timeline().begin_launch()) };
            let ended = EndedLaunches::new(stream.slot(), stream.timeline().all_over());
            opened = self.slots().open_regular(uses, tokens, ended, self.launches());
            if opened.windows == uses.len() && opened.need.is_none() {
                return Ok(());
            }
        }
        self.prepare_rest(uses, opened, tokens).inspect_err(|_| failed())
    }

    /// Prepares the uses behind those whose windows were opened on the regular path, and waits for
    /// what these need. On an error no window of the uses is open.
    #[inline(never)]
    fn prepare_rest(
        &self,
        uses: &[BlockUse],
        opened: Opened,
        tokens: &mut UseTokens,
    ) -> ResourceResult<()> {
        let is_regular = tokens.launch() != 0 && tokens.len() == opened.windows;
        let Some(stream) = self.pool.entered(tokens.stream()) else {
            let refusal = self.pool.refusal(tokens.stream());
            if is_regular {
                // They are open, so closing them is no error.
                let _ = self.cancel_from(tokens, 0);
            }
            return Err(refusal);
        };
        if !is_regular {
            return self.prepare_on(&stream, uses, tokens);
        }
        let mut needs = Needs::new(tokens.launch());
        if let Some(used) = opened.need {
            needs.add(used, self.cause(&uses[..opened.windows], used));
        }
        self.open(&uses[opened.windows..], &stream, tokens, needs).inspect_err(|_| {
            let _ = self.cancel_from(tokens, 0);
        })
    }

    /// As [`prepare_in`](Self::prepare_in), on a stream of this pool that was entered.
    pub(crate) fn prepare_on(
        &self,
        stream: &StreamGuard<'_>,
        uses: &[BlockUse],
        tokens: &mut UseTokens,
    ) -> ResourceResult<()> {
        if !tokens.resolve(stream.id()) {
            return Err(ResourceError::stream_misuse(stream.id(), StreamProblem::ReturnedLease));
        }
        if uses.is_empty() {
            return Ok(());
        }
        stream.refuse_capture()?;
        // Tokens can have windows of a resource that numbers no launches.
        if tokens.launch() == 0 {
            // SAFETY: this table opens the windows of the launch.
            unsafe { tokens.set_launch(self.pool.progress().begin_launch(stream.slot())) };
            stream.begin_launch();
        }
        let open = tokens.len();
        self.open(uses, stream, tokens, Needs::new(tokens.launch())).inspect_err(|_| {
            // They are open, so closing them is no error.
            let _ = self.cancel_from(tokens, open);
        })
    }

    /// Returns the generation of the block because of which a use must be waited for; 0 while
    /// nothing is recorded.
    fn cause(&self, uses: &[BlockUse], used: UseId) -> u64 {
        let cause = match uses {
            _ if !dmr_recorder::is_on() => None,
            [only] => Some(only),
            uses => uses.iter().find(|of_block| self.slots().has_use(of_block.block, used)),
        };
        cause.map_or(0, |cause| cause.block.generation().get())
    }

    /// Opens the windows of uses, and makes the stream wait for `needs` and for what they need. On
    /// an error, windows that were opened are in `tokens`.
    fn open(
        &self,
        uses: &[BlockUse],
        stream: &StreamGuard<'_>,
        tokens: &mut UseTokens,
        mut needs: Needs,
    ) -> ResourceResult<()> {
        let mut left = uses;
        while let Some(first) = left.first() {
            let block = first.block.generation().get();
            let need = |used| {
                if self.holds_up(stream.slot(), used) {
                    needs.add(used, block);
                }
            };
            left = match self.slots().open(left, tokens, self.launches(), need) {
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
            if self.slots().has_conflict(used, stream, self.launches())? {
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
        let launch = tokens.launch();
        let Some(stream) = self.pool.enter_own_home(tokens.stream()).filter(|_| launch != 0) else {
            return self.finish_on_any(tokens);
        };
        let progress = self.pool.progress();
        let mut ended = progress.end_launch(stream.timeline(), launch);
        ended.left = progress.complete_regular(&stream, ended.left);
        if matches!(ended.left, Left::Nothing) && !ended.end.closes_windows {
            tokens.clear();
            return Ok(());
        }
        self.finish_rest(tokens, &ended)
    }

    /// Finishes uses on an adopted stream.
    #[inline(never)]
    fn finish_on_any(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        let Some(stream) = self.pool.entered_home(tokens.stream()).and_then(HomeStream::live)
        else {
            return self.finish_without_stream(tokens);
        };
        let progress = self.pool.progress();
        match progress.timeline(stream.slot()).filter(|_| tokens.launch() != 0) {
            Some(timeline) => {
                let ended = progress.end_adopted_launch(timeline);
                let recorded = progress.complete(&stream, &ended);
                self.finish_ended(tokens, &stream, ended.end, recorded)
            }
            // They are of no window of this table.
            None => self.cancel_from(tokens, 0),
        }
    }

    /// Finishes uses whose launch has ended, where that is not all.
    #[inline(never)]
    fn finish_rest(&self, tokens: &mut UseTokens, ended: &EndedLaunch<'_>) -> ResourceResult<()> {
        match self.pool.entered_home(tokens.stream()).and_then(HomeStream::live) {
            Some(stream) => {
                let recorded = self.pool.progress().complete(&stream, ended);
                self.finish_ended(tokens, &stream, ended.end, recorded)
            }
            // The device was lost just now.
            None => {
                let refusal = self.pool.refusal(tokens.stream());
                self.close_ended(tokens, ended.end).and(Err(refusal))
            }
        }
    }

    /// Closes the windows of a launch that has ended, if need be. If no event could be `recorded`
    /// for it, waits for the work instead; if that fails too, returns the error of the record.
    fn finish_ended(
        &self,
        tokens: &mut UseTokens,
        stream: &StreamGuard<'_>,
        end: End,
        recorded: ResourceResult<()>,
    ) -> ResourceResult<()> {
        let outcome = match recorded {
            Ok(()) => Ok(()),
            // Synchronising the stream would end its capture.
            Err(error @ ResourceError::StreamCapturing { .. }) => Err(error),
            Err(error) => match stream.synchronize() {
                Ok(()) => {
                    self.pool.progress().raise_done(stream.slot(), end.seq);
                    Ok(())
                }
                Err(_) => Err(error),
            },
        };
        let closed = self.close_ended(tokens, end);
        if let Some(holds) = stream.holds() {
            holds.end_launch();
        }
        closed.and(outcome)
    }

    /// Closes the windows of a launch that has ended, if it must close them itself.
    fn close_ended(&self, tokens: &mut UseTokens, end: End) -> ResourceResult<()> {
        let mut closed = Ok(());
        if end.closes_windows {
            let slot = tokens.stream().slot();
            let was_overtaken = end.seq != tokens.launch();
            let stale = self.close(tokens, 0, WindowEnd::Used(UseId::new(slot, end.seq)));
            if was_overtaken {
                self.pool.progress().forget_overtaken(slot, tokens.launch());
                // Otherwise another thread has found the launch over, and closed it.
                closed = stale;
            }
        }
        tokens.clear();
        closed
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
        match self.pool.progress().timeline(stream.slot()).filter(|_| tokens.launch() != 0) {
            Some(timeline) => {
                let end = timeline.end_launch(&mut timeline.lock(), tokens.launch());
                self.finish_ended(tokens, &stream, end, Ok(()))
            }
            // They are of no window of this table.
            None => self.cancel_from(tokens, 0),
        }
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
    /// [`UseAfterFree`](ResourceError::UseAfterFree) for a token that has no window. All other
    /// windows are closed all the same.
    #[cold]
    pub(crate) fn cancel_from(&self, tokens: &mut UseTokens, from: usize) -> ResourceResult<()> {
        let slot = tokens.stream().slot();
        let launch = tokens.launch();
        let closed = self.close(tokens, from, WindowEnd::Unused);
        // SAFETY: this table has opened these windows, and they were closed just now.
        unsafe { tokens.truncate(from) };
        // Without a number they are of no window of this table.
        if tokens.is_empty() && launch != 0 {
            self.pool.progress().end_unused(slot, launch);
            if let Some(holds) = self.pool.holds(slot) {
                holds.end_launch();
            }
        }
        closed
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
        if let [need] = *needs.as_slice() {
            return match progress.event_for(self.pool, need.used)? {
                Some(event) => self.wait_once(stream, needs, &Awaited { need, event }),
                None => Ok(()),
            };
        }
        let mut awaited: SmallVec<[Awaited; 8]> = SmallVec::new();
        for &need in needs.as_slice() {
            let event = progress.event_for(self.pool, need.used)?;
            awaited.extend(event.map(|event| Awaited { need, event }));
        }
        let event = |at: usize| &awaited[at].event;
        let covers = |by: usize, of: usize| event(by).covers(event(of).slot(), event(of).seq());
        let queued = covering::queued(awaited.len(), covers);
        for (awaited, _) in awaited.iter().zip(queued).filter(|(_, queued)| *queued) {
            self.wait_once(stream, needs, awaited)?;
        }
        Ok(())
    }

    /// Queues a wait.
    fn wait_once(
        &self,
        stream: &StreamGuard<'_>,
        needs: &Needs,
        awaited: &Awaited,
    ) -> ResourceResult<()> {
        let cause = Cause { block: awaited.need.block, launch: needs.launch };
        self.pool.progress().make_wait(stream, &awaited.event, cause)
    }

    /// Closes the windows of tokens from index `from` on.
    ///
    /// # Errors
    ///
    /// As [`cancel_from`](Self::cancel_from).
    fn close(&self, tokens: &UseTokens, from: usize, end: WindowEnd) -> ResourceResult<()> {
        let launch = UseId::new(tokens.stream().slot(), tokens.launch());
        let mut stale = None;
        let mut left = &tokens.as_slice()[from..];
        while let Some(first) = left.first() {
            let Closed { behind, any_stale, retired } =
                self.slots().close(left, launch, end, self.launches());
            if any_stale {
                stale = Some(first.generation());
            }
            if let Some(owner) = retired {
                self.pool.closed_queues().push(owner, first.generation().get());
            }
            left = behind;
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
