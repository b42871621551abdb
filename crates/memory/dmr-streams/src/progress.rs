//! The timelines of a pool's streams, and the events by which streams wait for each other.

use std::ops::Deref;
use std::sync::Weak;

use crossbeam_utils::CachePadded;
use cudarc::driver::CudaStream;
use dmr_core::ledger::UseId;
use dmr_core::spinlock::pause;
use dmr_core::{ResourceError, ResourceResult};

use crate::event::DriverEvent;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use crate::timeline::{Cover, StreamEvent, Timeline};
use crate::{Device, HomeStream, StreamGuard, StreamPool};

/// `CUDA_ERROR_CAPTURED_EVENT`.
const CAPTURED_EVENT: i32 = 907;

/// The timelines of the streams of a pool, by slot.
pub(crate) struct Progress {
    timelines: std::sync::Arc<Timelines>,
    /// The end of the slots in which an event was recorded: no stream has waited for another slot.
    reach: AtomicUsize,
    /// A second stream exists or is about to exist: uses are recorded from now on.
    several: AtomicBool,
    /// An event of the first stream covers all its work from before there was a second.
    is_announced: AtomicBool,
}

type Timelines = [CachePadded<Timeline<DriverEvent>>];

/// Remembers the end of streams' work for a thread that queries events itself. It keeps no stream
/// pool alive: the thread can be the last owner of the timelines, whose events it destroys then,
/// and of nothing else.
pub(crate) struct CompletionLog(Weak<Timelines>);

impl CompletionLog {
    /// Remembers that an event is done, and so all uses that it covers. Does nothing if the stream
    /// pool was dropped.
    pub(crate) fn has_completed(&self, event: &Event) {
        if let Some(timelines) = self.0.upgrade() {
            complete(&timelines, event, timelines.len());
        }
    }
}

/// Remembers that an event is done, and so the uses that it covers on streams in slots below
/// `reach`.
fn complete(timelines: &Timelines, event: &Event, reach: usize) {
    timelines[event.slot()].raise_done(event.seq());
    for (slot, seq) in event.seen.iter(reach) {
        timelines[slot].raise_done(seq);
    }
}

/// An event that is not recorded again while this exists.
pub(crate) type Event = Arc<StreamEvent<DriverEvent>>;

/// An event that was recorded on a stream of a pool. It is not recorded again while this exists.
pub struct RecordedEvent(Event);

impl RecordedEvent {
    pub(crate) fn of(event: Event) -> Self {
        Self(event)
    }
}

impl Deref for RecordedEvent {
    type Target = DriverEvent;

    fn deref(&self) -> &DriverEvent {
        self.0.driver_event()
    }
}

impl Progress {
    /// Makes the timelines of `own` streams of the pool and of `adopted` slots for other streams
    /// behind them.
    pub(crate) fn new(own: usize, adopted: usize) -> Self {
        let own = (0..own).map(|_| Timeline::new());
        let adopted = (0..adopted).map(|_| Timeline::without_stream());
        Self {
            timelines: own.chain(adopted).map(CachePadded::new).collect(),
            reach: AtomicUsize::new(0),
            several: AtomicBool::new(false),
            is_announced: AtomicBool::new(false),
        }
    }

    /// Returns the use that stands for all work submitted to the stream in `slot` so far: that of
    /// an allocation that was just submitted.
    #[inline]
    pub(crate) fn submitted(&self, slot: usize) -> UseId {
        UseId::new(slot, self.timelines.get(slot).map_or(0, |timeline| timeline.submitted()))
    }

    /// Returns whether work on the stream in `slot` would have to wait for a use: whether the use
    /// is of another stream, the stream has not waited for it, and it is not known to be done.
    #[inline]
    pub(crate) fn holds_up(&self, slot: usize, used: UseId) -> bool {
        let has_seen =
            |timeline: &CachePadded<Timeline<_>>| timeline.seen.covers(used.slot(), used.seq());
        slot != used.slot()
            && !self.timelines.get(slot).is_some_and(has_seen)
            && !self.is_done(used)
    }

    /// Returns whether a use is known to be done. Makes no driver call.
    #[inline]
    pub(crate) fn is_done(&self, used: UseId) -> bool {
        self.timelines.get(used.slot()).is_some_and(|timeline| timeline.is_done(used.seq()))
    }

    /// Remembers that a wait for `event` is queued on the stream in `slot`: later work there is
    /// ordered after all uses that the event covers.
    fn has_waited(&self, slot: usize, event: &Event) {
        let seen = &self.timelines[slot].seen;
        seen.raise_all(&event.seen, slot, self.reach());
        seen.raise(event.slot(), event.seq());
    }

    /// Makes the stream wait for an event.
    pub(crate) fn make_wait(&self, stream: &StreamGuard<'_>, event: &Event) -> ResourceResult<()> {
        self.discard_captured(event, event.driver_event().make_wait(stream))?;
        self.has_waited(stream.slot(), event);
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
        let waited = event.driver_event().make_wait_raw(waiting).map_err(failed);
        self.discard_captured(event, waited)
    }

    /// Discards an event if the driver reports that a graph has captured its record: the capture
    /// began before the record, and ended before `refuse_capture`. The next call that needs the
    /// event finds a later one, or records one.
    #[inline]
    fn discard_captured<T>(&self, event: &Event, outcome: ResourceResult<T>) -> ResourceResult<T> {
        if let Err(ResourceError::Driver { code: CAPTURED_EVENT, .. }) = outcome {
            self.timelines[event.slot()].discard(event);
        }
        outcome
    }

    /// Queries an event: returns whether it is done.
    pub(crate) fn query(&self, device: &Device, event: &Event) -> ResourceResult<bool> {
        let queried = device.relaxed(|relaxed| event.driver_event().query(relaxed));
        let is_done = self.discard_captured(event, queried)?;
        if is_done {
            self.has_completed(event);
        }
        Ok(is_done)
    }

    /// Waits until an event is done.
    pub(crate) fn synchronize(&self, device: &Device, event: &Event) -> ResourceResult<()> {
        let waited = device.relaxed(|relaxed| event.driver_event().synchronize(relaxed));
        self.discard_captured(event, waited)?;
        self.has_completed(event);
        Ok(())
    }

    /// Remembers that an event is done, and so all uses that it covers.
    pub(crate) fn has_completed(&self, event: &Event) {
        complete(&self.timelines, event, self.reach());
    }

    /// Returns the log for a thread that keeps no stream pool alive.
    pub(crate) fn completion_log(&self) -> CompletionLog {
        CompletionLog(std::sync::Arc::downgrade(&self.timelines))
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

    /// Numbers a use that was submitted to the stream in `slot`, without an event.
    pub(crate) fn number(&self, slot: usize) -> u64 {
        let timeline = &self.timelines[slot];
        timeline.number(&timeline.lock())
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

    /// Makes `last` cover all work of the stream in `slot`, which was just retired; it was recorded
    /// after that work. `None` if that work is done.
    pub(crate) fn seal(&self, slot: usize, last: Option<Event>) {
        self.timelines[slot].seal(last);
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

    /// Continues the timeline of a slot with its next stream.
    pub(crate) fn continue_with_next(&self, slot: usize) {
        self.timelines[slot].continue_with_next();
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

    /// Returns the end of the slots in which an event was recorded. If it misses one that is
    /// recorded just now, an event covers less than it could: one wait more than needed.
    #[inline]
    fn reach(&self) -> usize {
        self.reach.load(Ordering::Relaxed)
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
        let recorded = event.driver_event().record(on);
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
