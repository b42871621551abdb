//! The known progress of a pool's streams: the work that each has done, and has waited for.
//!
//! Makes no driver call; `recording` beside it records events and makes streams wait for them.

use std::ops::Deref;
use std::sync::Weak;

use crossbeam_utils::CachePadded;
use dmr_core::ledger::UseId;
use dmr_core::{ResourceError, ResourceResult};

use crate::event::DriverEvent;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};
use crate::timeline::{StreamEvent, Timeline};
use crate::uses::Launches;

/// `CUDA_ERROR_CAPTURED_EVENT`.
const CAPTURED_EVENT: i32 = 907;

/// The timelines of the streams of a pool, by slot.
pub(crate) struct Progress {
    pub(crate) timelines: std::sync::Arc<Timelines>,
    /// The end of the slots in which an event was recorded: no stream has waited for another slot.
    pub(crate) reach: AtomicUsize,
    /// A second stream exists or is about to exist: uses are recorded from now on.
    pub(crate) several: AtomicBool,
    /// An event of the first stream covers all its work from before there was a second.
    pub(crate) is_announced: AtomicBool,
}

type Timelines = [CachePadded<Line>];

/// The timeline of a stream of a pool.
pub(crate) type Line = Timeline<DriverEvent>;

/// Remembers the end of streams' work for a thread that queries events itself. It keeps no stream
/// pool alive: the thread can be the last owner of the timelines, whose events it destroys then,
/// and of nothing else.
pub(crate) struct CompletionLog(Weak<Timelines>);

impl CompletionLog {
    /// Remembers that an event is done, and so all uses that it covers. Does nothing if the stream
    /// pool was dropped.
    pub(crate) fn record_completion(&self, event: &Event) {
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

    pub(crate) fn shared(&self) -> Event {
        Event::clone(&self.0)
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

    /// Returns the timeline of the stream in `slot`.
    #[inline(always)]
    pub(crate) fn timeline(&self, slot: usize) -> Option<&Line> {
        self.timelines.get(slot).map(|timeline| &**timeline)
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
    pub(crate) fn record_wait(&self, slot: usize, event: &Event) {
        let seen = &self.timelines[slot].seen;
        seen.raise_all(&event.seen, slot, self.reach());
        seen.raise(event.slot(), event.seq());
    }

    /// Discards an event if the driver reports that a graph has captured its record: the capture
    /// began before the record, and ended before `refuse_capture`. The next call that needs the
    /// event finds a later one, or records one.
    #[inline]
    pub(crate) fn discard_captured<T>(
        &self,
        event: &Event,
        outcome: ResourceResult<T>,
    ) -> ResourceResult<T> {
        if let Err(ResourceError::Driver { code: CAPTURED_EVENT, .. }) = outcome {
            self.timelines[event.slot()].discard(event);
        }
        outcome
    }

    /// Remembers that an event is done, and so all uses that it covers.
    pub(crate) fn record_completion(&self, event: &Event) {
        complete(&self.timelines, event, self.reach());
    }

    /// Returns the log for a thread that keeps no stream pool alive.
    pub(crate) fn completion_log(&self) -> CompletionLog {
        CompletionLog(std::sync::Arc::downgrade(&self.timelines))
    }

    /// Begins a launch on the stream in `slot`, and returns its number.
    pub(crate) fn begin_launch(&self, slot: usize) -> u64 {
        self.timelines[slot].begin_launch()
    }

    /// Ends a launch that has no windows any more and whose work was not submitted.
    pub(crate) fn end_unused(&self, slot: usize, launch: u64) {
        self.timelines[slot].end_unused(launch);
    }

    /// Forgets a launch that was overtaken and has closed its windows.
    pub(crate) fn forget_overtaken(&self, slot: usize, launch: u64) {
        self.timelines[slot].forget_overtaken(launch);
    }

    /// Remembers that the uses of the stream in `slot` up to `seq` are done.
    pub(crate) fn raise_done(&self, slot: usize, seq: u64) {
        self.timelines[slot].raise_done(seq);
    }

    /// Makes `last` cover all work of the stream in `slot`, which was just retired; it was recorded
    /// after that work. `None` if that work is done.
    pub(crate) fn seal(&self, slot: usize, last: Option<Event>) {
        self.timelines[slot].seal(last);
    }

    /// Continues the timeline of a slot with its next stream.
    pub(crate) fn continue_with_next(&self, slot: usize) {
        self.timelines[slot].continue_with_next();
    }

    /// Returns the end of the slots in which an event was recorded. If it misses one that is
    /// recorded just now, an event covers less than it could: one wait more than needed.
    #[inline]
    pub(crate) fn reach(&self) -> usize {
        self.reach.load(Ordering::Relaxed)
    }
}

impl Launches for Progress {
    #[inline(always)]
    fn is_over(&self, launch: UseId) -> bool {
        self.timeline(launch.slot()).is_some_and(|timeline| timeline.is_over(launch.seq()))
    }

    fn watch(&self, launch: UseId) {
        if let Some(timeline) = self.timeline(launch.slot()) {
            timeline.watch(launch.seq());
        }
    }

    #[inline]
    fn is_done(&self, used: UseId) -> bool {
        self.is_done(used)
    }

    #[inline]
    fn holds_up(&self, slot: usize, used: UseId) -> bool {
        self.holds_up(slot, used)
    }
}
