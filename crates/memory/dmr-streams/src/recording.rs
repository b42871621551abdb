//! The events of a pool's streams: recorded behind uses, waited for by the host. `stream_waits`
//! beside it makes streams wait for them.
//!
//! With one stream no event is needed, so none is recorded until a second stream is in sight. From
//! then on each use records one, and a capture of a graph may take any of them: a capture can begin
//! between any two calls, so each record is followed by a look for one, and each wait that fails
//! for that reason discards its event.

use std::time::Instant;

use cudarc::driver::CudaStream;
use cudarc::driver::result::DriverError;
use cudarc::driver::sys::CUresult;
use dmr_core::ledger::UseId;
use dmr_core::spinlock::pause;
use dmr_core::{ResourceError, ResourceResult, SpinLockGuard, waits};

use crate::entered_stream::{CaptureLook, is_none};
use crate::event::DriverEvent;
use crate::idle::POLL;
use crate::progress::{Event, Line, Progress};
use crate::sync::Ordering;
use crate::timeline::{Cover, End, Events, StreamEvent};
use crate::{Device, EnteredStream, HomeStream, StreamGuard, StreamPool};

/// A launch that has ended.
pub(crate) struct EndedLaunch<'p> {
    pub(crate) end: End,
    pub(crate) left: Left<'p>,
}

/// The rest of the work for a launch that has ended.
#[derive(Clone, Copy)]
pub(crate) enum Left<'p> {
    Nothing,
    /// A look for a capture.
    Look,
    /// Recording this event, or a new one.
    Record(Option<&'p StreamEvent<DriverEvent>>),
    /// Recording this event, which has failed: perhaps the context was not current.
    RecordAgain(&'p StreamEvent<DriverEvent>, DriverError),
    /// The look for a capture has found one, which may have this event, or has failed.
    Captured(Option<&'p StreamEvent<DriverEvent>>, CaptureLook),
}

impl Progress {
    /// Queries an event: returns whether it is done.
    pub(crate) fn query(&self, device: &Device, event: &Event) -> ResourceResult<bool> {
        let queried = device.relaxed(|relaxed| event.driver_event().query(relaxed));
        let is_done = self.discard_captured(event, queried)?;
        if is_done {
            self.record_completion(event);
        }
        Ok(is_done)
    }

    /// Waits until an event is done, or the thread's [deadline](dmr_core::waits) has passed.
    pub(crate) fn synchronize(&self, device: &Device, event: &Event) -> ResourceResult<()> {
        if let Some(deadline) = waits::deadline() {
            while !self.query(device, event)? {
                if Instant::now() >= deadline {
                    let not_ready = DriverError(CUresult::CUDA_ERROR_NOT_READY);
                    return Err(device.driver_error("cuEventQuery", not_ready));
                }
                std::thread::sleep(POLL);
            }
            return Ok(());
        }
        let waited = device.relaxed(|relaxed| event.driver_event().wait(relaxed));
        self.discard_captured(event, waited)?;
        self.record_completion(event);
        Ok(())
    }

    /// Ends a launch whose work was submitted, and takes an event for its uses if there is more
    /// than one stream: without one, a stream that must wait for the uses waits for an event with a
    /// later number.
    #[inline(always)]
    pub(crate) fn end_launch<'p>(&self, timeline: &'p Line, launch: u64) -> EndedLaunch<'p> {
        // If no second stream is in sight now, then the event that announces it will be numbered
        // after this use, and recorded after its work.
        let mut events = timeline.lock();
        let end = timeline.end_launch(&mut events, launch);
        let left = self.left(timeline, &mut events, end);
        EndedLaunch { end, left }
    }

    /// Ends a launch as [`end_launch`](Self::end_launch) does, but keeps its windows open until it
    /// closes them itself: then its event is recorded, and what waits for its uses need not enter
    /// the stream, which would delay its retirement.
    pub(crate) fn end_adopted_launch<'p>(&self, timeline: &'p Line) -> EndedLaunch<'p> {
        let mut events = timeline.lock();
        let end = timeline.end_overtaken(&mut events);
        let left = self.left(timeline, &mut events, end);
        EndedLaunch { end, left }
    }

    #[inline(always)]
    fn left<'p>(
        &self,
        timeline: &'p Line,
        events: &mut SpinLockGuard<'_, Events<DriverEvent>>,
        end: End,
    ) -> Left<'p> {
        match self.several.load(Ordering::SeqCst) {
            true => Left::Record(timeline.reuse(events, end.seq)),
            false => Left::Look,
        }
    }

    /// Does the rest for a launch of a stream of the pool, on the regular path: returns what is
    /// left then.
    #[inline(always)]
    pub(crate) fn complete_regular<'p>(
        &self,
        stream: &EnteredStream<'_>,
        left: Left<'p>,
    ) -> Left<'p> {
        match left {
            Left::Look => match stream.look() {
                look if is_none(look) => Left::Nothing,
                look => Left::Captured(None, look),
            },
            Left::Record(Some(event)) if stream.slot() < self.reach() => {
                event.seen.copy(&stream.timeline().seen, self.reach());
                if let Err(error) = stream.record_event(event.driver_event()) {
                    return Left::RecordAgain(event, error);
                }
                match stream.look() {
                    look if is_none(look) => {
                        event.set_recorded();
                        Left::Nothing
                    }
                    look => Left::Captured(Some(event), look),
                }
            }
            other => other,
        }
    }

    /// Does the rest for a launch. If recording fails, or the stream turns out to capture a
    /// graph, the launch has ended all the same, and its uses are unrecorded.
    pub(crate) fn complete(
        &self,
        stream: &StreamGuard<'_>,
        ended: &EndedLaunch<'_>,
    ) -> ResourceResult<()> {
        match ended.left {
            Left::Nothing => Ok(()),
            Left::Look => stream.refuse_capture(),
            Left::Record(event) => self.record(stream, ended.end.seq, event),
            Left::RecordAgain(event, error) => {
                let recorded = stream.record_event_again(event.driver_event(), error);
                self.end_record(stream, event, recorded)
            }
            Left::Captured(event, look) => {
                let outcome = stream.refuse_look(look);
                if let Some(event) = event {
                    match outcome {
                        Ok(()) => event.set_recorded(),
                        Err(_) => self.timelines[stream.slot()].discard(event),
                    }
                }
                outcome
            }
        }
    }

    /// Returns an event that covers a use; `None` if the use is done. It is the first that was
    /// recorded with the number of the use or a later one, or one recorded now.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing) or
    /// [`Driver`](dmr_core::ResourceError::Driver) if an event has to be recorded and cannot be;
    /// [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse) for a use of no stream of the pool.
    pub(crate) fn event_for(
        &self,
        pool: &StreamPool,
        used: UseId,
    ) -> ResourceResult<Option<Event>> {
        let Some(timeline) = self.timelines.get(used.slot()) else {
            return Err(pool.misuse(pool.permanent_id(used.slot())));
        };
        match timeline.cover(used.seq()) {
            Cover::Done => Ok(None),
            Cover::Event(event) => Ok(Some(event)),
            Cover::Unrecorded => self.event_now(pool, used.slot()).or_else(|error| {
                // Another thread may have recorded one meanwhile, such as that of a capture.
                match timeline.cover(used.seq()) {
                    Cover::Done => Ok(None),
                    Cover::Event(event) => Ok(Some(event)),
                    Cover::Unrecorded => Err(error),
                }
            }),
        }
    }

    /// Returns an event recorded now, which covers all work submitted to the stream so far; `None`
    /// if that work is done by now.
    pub(crate) fn event_now(
        &self,
        pool: &StreamPool,
        slot: usize,
    ) -> ResourceResult<Option<Event>> {
        let mut attempts = 0_u32;
        loop {
            match pool.enter_home(pool.permanent_id(slot))? {
                HomeStream::Live(stream) => return self.event_on(&stream),
                HomeStream::Retired => {
                    if let Some(sealed) = self.timelines[slot].sealed() {
                        return Ok(sealed.last);
                    }
                }
            }
            // Another thread is about to seal the timeline, or to continue it with the next stream.
            pause(attempts);
            attempts = attempts.saturating_add(1);
        }
    }

    /// As [`event_now`](Self::event_now), on a stream that was entered.
    pub(crate) fn event_on(&self, stream: &StreamGuard<'_>) -> ResourceResult<Option<Event>> {
        stream.refuse_implied_capture()?;
        let timeline = &self.timelines[stream.slot()];
        let mut events = timeline.lock();
        let seq = timeline.number(&mut events);
        let event = timeline.reuse(&mut events, seq);
        drop(events);
        self.record(stream, seq, event)?;
        match timeline.cover(seq) {
            Cover::Event(event) => Ok(Some(event)),
            // The event was recorded again only because it was done.
            Cover::Done => Ok(None),
            // A capture that has ended since had taken it, and another thread has found that out.
            Cover::Unrecorded => Err(ResourceError::stream_capturing(stream.id())),
        }
    }

    /// Makes the next stream of a slot wait for the last work of the retired one. So the slot has
    /// one order of work, whichever of its streams a use was submitted to.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if there is such work and `next`
    /// captures a graph; [`Driver`](ResourceError::Driver).
    pub(crate) fn order_after_retired(
        &self,
        device: &Device,
        slot: usize,
        next: &CudaStream,
    ) -> ResourceResult<()> {
        let sealed = self.timelines[slot].sealed();
        let Some(last) = sealed.and_then(|sealed| sealed.last) else { return Ok(()) };
        device.bind()?;
        if self.query(device, &last)? {
            return Ok(());
        }
        device.refuse_capture_of(next)?;
        last.driver_event().make_other_wait(next)
    }

    /// Starts the recording of uses, and records one event that covers all earlier ones. Called
    /// before a second stream is leased.
    pub(crate) fn announce_second_stream(&self, pool: &StreamPool) -> ResourceResult<()> {
        self.several.store(true, Ordering::SeqCst);
        if self.is_announced.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.event_now(pool, 0) {
            Ok(_) => self.is_announced.store(true, Ordering::Release),
            // Another thread has recorded one meanwhile, before its capture.
            Err(_) if self.is_announced.load(Ordering::Acquire) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Records an event for use `seq`: the one given, or another one. An event that a graph has
    /// captured orders nothing outside of the graph, and adds no node to it: it is discarded. A
    /// capture can begin at any time, so this looks for one after the record.
    #[inline(always)]
    fn record<'p>(
        &'p self,
        on: &StreamGuard<'_>,
        seq: u64,
        event: Option<&'p StreamEvent<DriverEvent>>,
    ) -> ResourceResult<()> {
        let timeline = &self.timelines[on.slot()];
        let event = match event {
            Some(event) => event,
            None => self.another_event(on, seq)?,
        };
        if on.slot() >= self.reach() {
            self.reach.fetch_max(on.slot() + 1, Ordering::Relaxed);
        }
        // The event comes after all that its stream has waited for by now.
        event.seen.copy(&timeline.seen, self.reach());
        let recorded = on.record_event(event.driver_event());
        self.end_record(on, event, recorded)
    }

    /// Looks for a capture after the record of an event.
    fn end_record(
        &self,
        on: &StreamGuard<'_>,
        event: &StreamEvent<DriverEvent>,
        recorded: Result<(), DriverError>,
    ) -> ResourceResult<()> {
        let outcome = on.refuse_capture();
        if outcome.is_ok() && recorded.is_ok() {
            event.set_recorded();
            return Ok(());
        }
        self.timelines[on.slot()].discard(event);
        let failed = |error| on.device().driver_error("cuEventRecord", error);
        outcome.and(recorded.map_err(failed))
    }

    /// Returns an event to record for use `seq`, where none is known to be done: queries one now
    /// and then, and creates one if that is not done.
    #[cold]
    fn another_event(
        &self,
        on: &StreamGuard<'_>,
        seq: u64,
    ) -> ResourceResult<&StreamEvent<DriverEvent>> {
        let timeline = &self.timelines[on.slot()];
        if let Some(queried) = timeline.event_to_query()
            // On an error a new event serves as well.
            && self.query(on.device(), &queried).unwrap_or(false)
        {
            drop(queried);
            if let Some(event) = timeline.reuse(&mut timeline.lock(), seq) {
                return Ok(event);
            }
        }
        Ok(timeline.add(on.slot(), seq, DriverEvent::new(on.device())?))
    }
}
