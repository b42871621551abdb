//! The events of a pool's streams: recorded behind uses, waited for by other streams and the host.
//!
//! With one stream no event is needed, so none is recorded until a second stream is in sight. From
//! then on each use records one, and a capture of a graph may take any of them: a capture can begin
//! between any two calls, so each record is followed by a look for one, and each wait that fails
//! for that reason discards its event.

use cudarc::driver::CudaStream;
use dmr_core::ledger::UseId;
use dmr_core::spinlock::pause;
use dmr_core::{ResourceError, ResourceResult};

use crate::event::DriverEvent;
use crate::progress::{Event, Progress};
use crate::sync::Ordering;
use crate::timeline::{Cover, StreamEvent};
use crate::{Device, HomeStream, StreamGuard, StreamPool};

impl Progress {
    /// Makes the stream wait for an event.
    pub(crate) fn make_wait(&self, stream: &StreamGuard<'_>, event: &Event) -> ResourceResult<()> {
        self.discard_captured(event, stream.wait_for_event(event.driver_event()))?;
        self.record_wait(stream.slot(), event);
        Ok(())
    }

    /// Makes a stream of another pool wait for an event of a stream of this one.
    pub(crate) fn make_other_pool_wait(
        &self,
        waiting: &StreamGuard<'_>,
        stream: &StreamGuard<'_>,
        event: &Event,
    ) -> ResourceResult<()> {
        let failed = |error| waiting.error_between(stream, "cuStreamWaitEvent", error);
        let waited = waiting.wait_for_event_raw(event.driver_event()).map_err(failed);
        self.discard_captured(event, waited)
    }

    /// Queries an event: returns whether it is done.
    pub(crate) fn query(&self, device: &Device, event: &Event) -> ResourceResult<bool> {
        let queried = device.relaxed(|relaxed| event.driver_event().query(relaxed));
        let is_done = self.discard_captured(event, queried)?;
        if is_done {
            self.record_completion(event);
        }
        Ok(is_done)
    }

    /// Waits until an event is done.
    pub(crate) fn synchronize(&self, device: &Device, event: &Event) -> ResourceResult<()> {
        let waited = device.relaxed(|relaxed| event.driver_event().synchronize(relaxed));
        self.discard_captured(event, waited)?;
        self.record_completion(event);
        Ok(())
    }

    /// Numbers a use that was submitted, writes the number to `marked`, and records an event for
    /// the use if there is more than one stream: without one, a stream that must wait for the use
    /// waits for an event with a later number. If recording fails, or the stream turns out to
    /// capture a graph, the number still stands and the use is unrecorded.
    #[inline(always)]
    pub(crate) fn mark(&self, stream: &StreamGuard<'_>, marked: &mut u64) -> ResourceResult<()> {
        let timeline = &self.timelines[stream.slot()];
        // If no second stream is in sight now, then the event that announces it will be numbered
        // after this use, and recorded after its work.
        let mut events = timeline.lock();
        let seq = timeline.number(&events);
        *marked = seq;
        if !self.several.load(Ordering::SeqCst) {
            drop(events);
            return stream.refuse_capture();
        }
        let event = timeline.reuse(&mut events, seq);
        drop(events);
        self.record(stream, seq, event)
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
            Cover::Unrecorded => self.event_now(pool, used.slot()),
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
        let timeline = &self.timelines[stream.slot()];
        let mut events = timeline.lock();
        let seq = timeline.number(&events);
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
        if !self.is_announced.load(Ordering::Acquire) {
            self.event_now(pool, 0)?;
            self.is_announced.store(true, Ordering::Release);
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
        let outcome = on.refuse_capture();
        if outcome.is_ok() && recorded.is_ok() {
            event.set_recorded();
            return Ok(());
        }
        timeline.discard(event);
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
