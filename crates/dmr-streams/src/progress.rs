//! How far each stream has got, and what it has waited for.
//!
//! Uses of a stream are numbered in the order of submission. The number of a use is taken after
//! its work was submitted and before an event is recorded for it, so an event with a number covers
//! every use of its stream with a smaller one, whichever threads submitted them.
//!
//! Uses get even numbers. An allocation takes the odd number before the next use's, without
//! counting: it needs no event of its own, and any later one covers it.

use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use cudarc::driver::{result, sys};
use dmr_core::ResourceResult;

use crate::event::DriverEvent;
use crate::latch::{Latch, Latched};
use crate::recycle::{Held, Shelf};
use crate::seen::{LAST_SEQ, Seen};
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use crate::{Device, HomeStream, StreamGuard, StreamPool};

/// What is known of the streams of a pool, by slot.
pub(crate) struct Progress {
    streams: Box<[CachePadded<OfStream>]>,
    /// No event was recorded in this slot or a later one: nobody has seen anything of them.
    reach: AtomicUsize,
    /// A second stream exists, or is about to: uses are recorded from now on.
    several: AtomicBool,
    /// Stands for all uses of the first stream before there was a second.
    first: Mutex<Option<Event>>,
}

struct OfStream {
    /// The number of the last use. Written under the lock of the events only.
    last: AtomicU64,
    /// Uses up to this number are known to be done.
    done: AtomicU64,
    /// What this stream has waited for.
    seen: Seen,
    /// Never locked across a driver call.
    events: Latch<Events>,
    /// Covers all that was ever submitted here: set when the stream is retired.
    ended: OnceLock<Event>,
}

/// The events of a stream.
struct Events {
    /// The one that was lent last.
    latest: Option<Event>,
    /// Those to record next.
    shelf: Shelf<Stamped>,
}

/// An event that nobody re-records while it is held.
pub(crate) type Event = Held<Stamped>;

/// An event of the driver, and what it stands for.
pub(crate) struct Stamped {
    event: DriverEvent,
    slot: usize,
    /// It has been, since it was lent.
    recorded: AtomicBool,
    /// It covers uses of its stream up to this number ...
    order: AtomicU64,
    /// ... and what its stream had waited for by then.
    seen: Seen,
}

impl Stamped {
    /// Whether who waits for this waits for use `order` of the stream in `slot`.
    pub(crate) fn covers(&self, slot: usize, order: u64) -> bool {
        if slot == self.slot { self.order() >= order } else { self.seen.covers(slot, order) }
    }

    /// Whether it can be waited for: who finds it as its stream's latest may be too early.
    fn is_recorded(&self) -> bool {
        // Acquire: what it stands for is said before.
        self.recorded.load(Ordering::Acquire)
    }

    /// It covers uses of its stream up to this number.
    pub(crate) fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    /// The slot of the stream it was recorded on.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// The driver's handle.
    pub(crate) fn handle(&self) -> sys::CUevent {
        self.event.handle()
    }
}

impl Progress {
    pub(crate) fn new(slots: usize) -> Self {
        let stream = |_| {
            let events = Latch::new(Events { latest: None, shelf: Shelf::new() });
            let (last, done, seen) = (AtomicU64::new(0), AtomicU64::new(0), Seen::new());
            CachePadded::new(OfStream { last, done, seen, events, ended: OnceLock::new() })
        };
        Self {
            streams: (0..slots).map(stream).collect(),
            reach: AtomicUsize::new(0),
            several: AtomicBool::new(false),
            first: Mutex::new(None),
        }
    }

    /// The number of an allocation that was just submitted to the stream in `slot`.
    #[inline]
    pub(crate) fn number_allocation(&self, slot: usize) -> u64 {
        self.streams.get(slot).map_or(0, |stream| stream.last.load(Ordering::SeqCst) + 1)
    }

    /// Whether the stream in `slot` has waited for use `order` of the one in `of`.
    #[inline]
    pub(crate) fn has_seen(&self, slot: usize, of: usize, order: u64) -> bool {
        self.streams.get(slot).is_some_and(|stream| stream.seen.covers(of, order))
    }

    /// The wait for `event` is queued on the stream in `slot`: what comes after it there comes
    /// after all that the event stands for.
    pub(crate) fn has_waited(&self, slot: usize, event: &Stamped) {
        let seen = &self.streams[slot].seen;
        seen.raise_all(&event.seen, slot, self.reach());
        seen.raise(event.slot, event.order());
    }

    /// Whether use `order` of the stream in `slot` is known to be done. Asks nobody.
    pub(crate) fn is_done(&self, slot: usize, order: u64) -> bool {
        let stream = self.streams.get(slot);
        stream.is_some_and(|stream| stream.done.load(Ordering::Acquire) >= order)
    }

    /// The driver has said that the event is done: so is all that it stands for.
    pub(crate) fn has_completed(&self, event: &Stamped) {
        raise(&self.streams[event.slot].done, event.order());
        for (slot, order) in event.seen.iter(self.reach()) {
            raise(&self.streams[slot].done, order);
        }
    }

    /// Numbers a use that was submitted, and records an event for it if there is more than one
    /// stream: without one, whoever must wait for the use asks for an event from its number on. If
    /// recording fails, or the stream turns out to capture a graph, the number still stands and the use
    /// is unrecorded.
    #[inline]
    pub(crate) fn mark(&self, stream: &StreamGuard<'_>) -> (u64, ResourceResult<Option<Event>>) {
        // If no second stream is in sight now, then the event that announces it will be numbered
        // after this use, and recorded after its work.
        let mut events = self.streams[stream.slot()].events.lock();
        let order = self.next_number(stream.slot(), &events);
        if !self.several.load(Ordering::SeqCst) {
            drop(events);
            return (order, stream.refuse_capture().map(|()| None));
        }
        let event = events.lend(order);
        drop(events);
        (order, self.record(stream, order, event).map(Some))
    }

    /// An event that covers use `order` of the stream in `slot`, which has none of its own: the
    /// one that announced the second stream, the latest one, or one recorded now.
    pub(crate) fn event_for(
        &self,
        pool: &StreamPool,
        slot: usize,
        order: u64,
    ) -> ResourceResult<Event> {
        let covering = |event: &&Event| event.is_recorded() && event.covers(slot, order);
        if slot == 0
            && let Some(first) = lock(&self.first).as_ref().filter(covering)
        {
            return Ok(first.clone());
        }
        if let Some(latest) = self.streams[slot].events.lock().latest.as_ref().filter(covering) {
            return Ok(latest.clone());
        }
        self.event_now(pool, slot)
    }

    /// An event recorded now: it covers all that was submitted to the stream so far.
    pub(crate) fn event_now(&self, pool: &StreamPool, slot: usize) -> ResourceResult<Event> {
        match pool.enter_home(pool.permanent_id(slot))? {
            HomeStream::Live(stream) => self.event_on(&stream),
            HomeStream::Retired => Ok(self.streams[slot].ended.wait().clone()),
        }
    }

    /// An event recorded now on a stream that may not be the caller's.
    pub(crate) fn event_on(&self, stream: &StreamGuard<'_>) -> ResourceResult<Event> {
        let mut events = self.streams[stream.slot()].events.lock();
        let order = self.next_number(stream.slot(), &events);
        let event = events.lend(order);
        drop(events);
        self.record(stream, order, event)
    }

    /// Makes an event stand for all that was ever submitted to the stream in `slot`, which was retired
    /// just now, and after whose work it was recorded.
    pub(crate) fn end(&self, slot: usize, last: Event) {
        last.order.store(LAST_SEQ, Ordering::Relaxed);
        self.streams[slot].ended.get_or_init(|| last);
    }

    /// Called before a second stream is handed out: from then on uses are recorded, and one event
    /// stands for all earlier ones.
    pub(crate) fn announce_second_stream(&self, pool: &StreamPool) -> ResourceResult<()> {
        self.several.store(true, Ordering::SeqCst);
        let known = lock(&self.first).is_some();
        if !known {
            let event = self.event_now(pool, 0)?;
            lock(&self.first).get_or_insert(event);
        }
        Ok(())
    }

    /// The number of a use that was just submitted, and whose thread has the stream's events.
    #[inline]
    fn next_number(&self, slot: usize, _: &Latched<'_, Events>) -> u64 {
        let last = &self.streams[slot].last;
        let order = last.load(Ordering::Relaxed) + 2;
        // Release, and no exchange: whoever submits an allocation after an event was recorded for
        // this number has the driver's word for that order, and so finds the number.
        last.store(order, Ordering::Release);
        order
    }

    /// A slot that is missed because it is only just being used makes an event stand for less than
    /// it does: one wait more than needed.
    fn reach(&self) -> usize {
        self.reach.load(Ordering::Relaxed)
    }

    /// Records an event for the number `order`, which was taken after the work it stands for was
    /// submitted: `idle`, or a new one. An event that a graph has captured orders nothing outside of the
    /// graph, and adds no node to it: it is discarded. A capture can begin at any time, so the driver is
    /// asked afterwards.
    fn record(
        &self,
        on: &StreamGuard<'_>,
        order: u64,
        idle: Option<Event>,
    ) -> ResourceResult<Event> {
        let (device, stream) = (on.device(), &self.streams[on.slot()]);
        let event = match idle {
            Some(event) => event,
            None => self.make(device, on.slot(), order)?,
        };
        if on.slot() >= self.reach() {
            self.reach.fetch_max(on.slot() + 1, Ordering::Relaxed);
        }
        // What was waited for by now is waited for before the event, too.
        event.seen.copy(&stream.seen, self.reach());
        // SAFETY: event and stream are alive, and of the device's context.
        let recorded = on.call(|on| unsafe { result::event::record(event.handle(), on) });
        on.refuse_capture()?;
        recorded.map_err(|error| device.driver_error("cuEventRecord", error))?;
        event.recorded.store(true, Ordering::Release);
        Ok(event)
    }

    /// An event more, to record for the number `order`.
    #[cold]
    fn make(&self, device: &Device, slot: usize, order: u64) -> ResourceResult<Event> {
        let made = Stamped::new(device, slot)?;
        let mut events = self.streams[slot].events.lock();
        let added = events.shelf.add(made);
        Ok(events.lent(order, added))
    }
}

impl Events {
    /// An event to record for the number `order`, if one is idle.
    #[inline]
    fn lend(&mut self, order: u64) -> Option<Event> {
        // Often nobody else holds the latest any more: then it is the one to record again.
        if let Some(latest) = self.latest.take() {
            self.shelf.give_back(latest);
        }
        let taken = self.shelf.take()?;
        Some(self.lent(order, taken))
    }

    /// It is the stream's latest from now on, for whoever finds it recorded.
    #[inline]
    fn lent(&mut self, order: u64, [event, told]: [Event; 2]) -> Event {
        event.order.store(order, Ordering::Relaxed);
        // Under the lock: nobody has found it yet.
        event.recorded.store(false, Ordering::Relaxed);
        self.latest = Some(told);
        event
    }
}

/// Remembers that something holds for all numbers up to `order`. Of two threads at once the smaller
/// number may stand in the end: that is forgetting, which costs a wait or a question, and no
/// read-modify-write.
fn raise(known: &AtomicU64, order: u64) {
    if known.load(Ordering::Relaxed) < order {
        // Release: who reads this submits after the wait was queued.
        known.store(order, Ordering::Release);
    }
}

impl Stamped {
    fn new(device: &Device, slot: usize) -> ResourceResult<Self> {
        let (event, seen) = (DriverEvent::new(device)?, Seen::new());
        let (recorded, order) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { event, slot, recorded, order, seen })
    }
}
