//! The launches of one stream, and the events that were recorded for them.
//!
//! A launch gets its number when it begins: when its uses are prepared. Ending it *in turn*, after
//! all launches with smaller numbers, is one store: launches up to this number are over, and their
//! uses have their numbers. So the launch touches none of the blocks that it has used; what looks
//! at a block next finds the launch over.
//!
//! A launch that is *overtaken*, by another one that ends before it or by an event, cannot keep its
//! number, because its work was not submitted by then. It gets another one when it ends, and closes
//! its windows itself.
//!
//! An event is recorded after the work of the use that it has its number from, and after that of
//! all uses with smaller numbers: those have ended, and so were submitted, or get larger numbers.
//! So an event covers every use of its stream with the same number or a smaller one, whichever
//! threads submitted them.
//!
//! Uses and events have even numbers. An allocation takes the odd number behind the last that has
//! ended, without counting: it needs no event of its own, and any later one covers it.
//!
//! Makes no driver call: generic over the driver's event `D`, so that it can be model-checked.

use std::collections::VecDeque;

use crate::seen::Seen;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use dmr_core::{SpinLock, SpinLockGuard};

/// The number of events that are recorded on a stream before one of them is queried, if none can be
/// recorded again otherwise.
const EVENTS_PER_QUERY: usize = 64;

/// The number of oldest events that are searched for one to record again, and of newest events that
/// are searched one by one for one to wait for.
const LOOKS: usize = 8;

/// The launches of one stream.
// In this order: what a launch needs shares a cache line.
#[repr(C)]
pub(crate) struct Timeline<D> {
    /// The number that was taken last.
    taken: AtomicU64,
    /// Launches and events up to this number have ended, but for launches that were overtaken.
    /// Written under the lock of the events only.
    ended: AtomicU64,
    /// Uses up to this number are known to be done.
    done: AtomicU64,
    /// Launches were overtaken that have not ended.
    any_overtaken: AtomicBool,
    /// Never locked across a driver call.
    events: SpinLock<Events<D>>,
    /// The uses of other streams that this stream has waited for.
    pub(crate) seen: Seen,
}

/// The end of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The number of its uses.
    pub(crate) seq: u64,
    /// It must close its windows itself: it was overtaken, or a block was retired in a window.
    pub(crate) closes_windows: bool,
}

/// The events of a stream.
pub(crate) struct Events<D> {
    /// Sorted by number: events that are being recorded, that may be waited for, or that are done
    /// and can be recorded again. It grows to the number of events in flight.
    recorded: VecDeque<Recorded<D>>,
    /// Events whose record has failed, or belongs to a graph.
    spare: Vec<Arc<StreamEvent<D>>>,
    /// The number of events recorded since one was last queried.
    since_query: usize,
    /// Launches that another launch or an event has overtaken, and that have not ended.
    overtaken: Vec<u64>,
    /// Launches up to this number look at their blocks when they end.
    watched: u64,
    /// `Some` while the stream is retired.
    sealed: Option<Sealed<D>>,
}

/// The end of the work of a retired stream.
pub(crate) struct Sealed<D> {
    /// The event that covers all of it; `None` if it is done.
    pub(crate) last: Option<Arc<StreamEvent<D>>>,
}

/// An event, and the number of the use that it is recorded for.
struct Recorded<D> {
    seq: u64,
    event: Arc<StreamEvent<D>>,
}

/// An event of a stream. While a second `Arc` of it exists, it is not recorded again.
pub(crate) struct StreamEvent<D> {
    driver_event: D,
    /// The slot of its stream.
    slot: usize,
    /// The number up to which it covers uses of its stream.
    seq: AtomicU64,
    /// The uses of other streams that its stream had waited for when it was recorded.
    pub(crate) seen: Seen,
    /// Its record has been submitted, so a stream can wait for it.
    is_recorded: AtomicBool,
}

/// The wait that orders a stream after a use.
pub(crate) enum Cover<D> {
    /// None: the use is known to be done.
    Done,
    /// A wait for this event.
    Event(Arc<StreamEvent<D>>),
    /// A wait for an event that is still to be recorded.
    Unrecorded,
}

impl<D> Timeline<D> {
    pub(crate) fn new() -> Self {
        Self::starting(None)
    }

    /// Makes the timeline of a slot for adopted streams, which has none yet, and so no work.
    pub(crate) fn without_stream() -> Self {
        Self::starting(Some(Sealed { last: None }))
    }

    fn starting(sealed: Option<Sealed<D>>) -> Self {
        let events = Events {
            recorded: VecDeque::new(),
            spare: Vec::new(),
            since_query: 0,
            overtaken: Vec::new(),
            watched: 0,
            sealed,
        };
        Self {
            taken: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            done: AtomicU64::new(0),
            any_overtaken: AtomicBool::new(false),
            events: SpinLock::new(events),
            seen: Seen::new(),
        }
    }

    /// Returns the number that stands for all work submitted so far: that of an allocation that was
    /// just submitted.
    #[inline]
    pub(crate) fn submitted(&self) -> u64 {
        self.ended.load(Ordering::SeqCst) + 1
    }

    /// Returns whether use `seq` is known to be done.
    #[inline]
    pub(crate) fn is_done(&self, seq: u64) -> bool {
        self.done.load(Ordering::Acquire) >= seq
    }

    /// Remembers that uses up to `seq` are done. If two threads call it at the same time, the
    /// smaller number may remain: that costs a wait or a query, and saves an atomic
    /// read-modify-write.
    pub(crate) fn raise_done(&self, seq: u64) {
        if self.done.load(Ordering::Relaxed) < seq {
            // Release: a thread that reads this submits after the work was done.
            self.done.store(seq, Ordering::Release);
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinLockGuard<'_, Events<D>> {
        self.events.lock()
    }

    /// Begins a launch, and returns its number.
    #[inline(always)]
    pub(crate) fn begin_launch(&self) -> u64 {
        self.taken.fetch_add(2, Ordering::Relaxed) + 2
    }

    /// Returns whether a launch is over that was not overtaken.
    #[inline(always)]
    pub(crate) fn is_over(&self, launch: u64) -> bool {
        // Acquire: a thread that reads this submits after the work of the launch.
        self.ended.load(Ordering::Acquire) >= launch
            && (!self.any_overtaken.load(Ordering::Relaxed) || !self.is_overtaken(launch))
    }

    /// Returns a number up to which all launches are over; 0 if none is known to be.
    #[inline(always)]
    pub(crate) fn all_over(&self) -> u64 {
        let ended = self.ended.load(Ordering::Acquire);
        if self.any_overtaken.load(Ordering::Relaxed) { 0 } else { ended }
    }

    #[cold]
    fn is_overtaken(&self, launch: u64) -> bool {
        self.lock().overtaken.contains(&launch)
    }

    /// Has the end of a launch close its windows itself, unless the launch has ended.
    #[cold]
    pub(crate) fn watch(&self, launch: u64) {
        // Under the lock under which a launch ends: it ends before this, and is found over, or
        // after it, and finds itself watched.
        let mut events = self.lock();
        events.watched = events.watched.max(launch);
    }

    /// Ends a launch whose work was submitted. If it was overtaken, call
    /// [`forget_overtaken`](Self::forget_overtaken) once its windows are closed.
    #[inline(always)]
    pub(crate) fn end_launch(&self, events: &mut SpinLockGuard<'_, Events<D>>, launch: u64) -> End {
        let is_next = self.ended.load(Ordering::Relaxed) + 2 == launch;
        if is_next && launch > events.watched {
            self.set_ended(launch);
            return End { seq: launch, closes_windows: false };
        }
        self.end_irregular_launch(events, launch)
    }

    #[inline(never)]
    fn end_irregular_launch(&self, events: &mut SpinLockGuard<'_, Events<D>>, launch: u64) -> End {
        if self.ended.load(Ordering::Relaxed) >= launch {
            return End { seq: self.number(events), closes_windows: true };
        }
        self.end_up_to(events, launch);
        End { seq: launch, closes_windows: launch <= events.watched }
    }

    /// Ends a launch as [`end_launch`](Self::end_launch) does, but keeps its windows open until it
    /// closes them itself: it is overtaken by the number of its own end.
    pub(crate) fn end_overtaken(&self, events: &mut SpinLockGuard<'_, Events<D>>) -> End {
        End { seq: self.number(events), closes_windows: true }
    }

    /// Ends a launch that has no windows any more and whose work was not submitted.
    #[cold]
    pub(crate) fn end_unused(&self, launch: u64) {
        let mut events = self.lock();
        match self.ended.load(Ordering::Relaxed) >= launch {
            true => self.remove_overtaken(&mut events, launch),
            false => self.end_up_to(&mut events, launch),
        }
    }

    /// Forgets a launch that was overtaken and has closed its windows.
    #[cold]
    pub(crate) fn forget_overtaken(&self, launch: u64) {
        self.remove_overtaken(&mut self.lock(), launch);
    }

    fn remove_overtaken(&self, events: &mut SpinLockGuard<'_, Events<D>>, launch: u64) {
        events.overtaken.retain(|it| *it != launch);
        self.any_overtaken.store(!events.overtaken.is_empty(), Ordering::Relaxed);
    }

    /// Takes a number that has ended, for an event or for uses that were submitted.
    #[inline]
    pub(crate) fn number(&self, events: &mut SpinLockGuard<'_, Events<D>>) -> u64 {
        let seq = self.begin_launch();
        self.end_up_to(events, seq);
        seq
    }

    /// Ends number `seq`. It overtakes the launches with smaller numbers that have not ended.
    #[inline]
    fn end_up_to(&self, events: &mut SpinLockGuard<'_, Events<D>>, seq: u64) {
        let next = self.ended.load(Ordering::Relaxed) + 2;
        if next < seq {
            events.overtaken.extend((next..seq).step_by(2));
            // Before `ended`, so that a thread that reads that finds them overtaken.
            self.any_overtaken.store(true, Ordering::Relaxed);
        }
        self.set_ended(seq);
    }

    #[inline(always)]
    fn set_ended(&self, seq: u64) {
        // Release, and no exchange: a thread that submits an allocation after an event was recorded
        // for this number is ordered after the record by the driver, and so reads the number.
        self.ended.store(seq, Ordering::Release);
    }

    /// Returns an event to record for use `seq`, if one is done and no thread uses it.
    #[inline]
    pub(crate) fn reuse(
        &self,
        events: &mut SpinLockGuard<'_, Events<D>>,
        seq: u64,
    ) -> Option<&StreamEvent<D>> {
        let done = self.done.load(Ordering::Acquire);
        let event = events.remove_unneeded(done)?;
        Some(self.insert(events, seq, event))
    }

    /// Adds an event that was made for use `seq`.
    pub(crate) fn add(&self, slot: usize, seq: u64, driver_event: D) -> &StreamEvent<D> {
        let number = AtomicU64::new(seq);
        let seen = Seen::new();
        let is_recorded = AtomicBool::new(false);
        let event = StreamEvent { driver_event, slot, seq: number, seen, is_recorded };
        self.insert(&mut self.lock(), seq, Arc::new(event))
    }

    #[inline]
    fn insert(
        &self,
        events: &mut SpinLockGuard<'_, Events<D>>,
        seq: u64,
        event: Arc<StreamEvent<D>>,
    ) -> &StreamEvent<D> {
        event.seq.store(seq, Ordering::Relaxed);
        // Under the lock: no other thread has found it yet.
        event.is_recorded.store(false, Ordering::Relaxed);
        // SAFETY: an event stays with its timeline, which is borrowed.
        let borrowed = unsafe { &*std::ptr::from_ref(&*event) };
        events.insert(Recorded { seq, event });
        events.since_query += 1;
        borrowed
    }

    /// Removes an event that could not be recorded, or whose record a graph has captured: it covers
    /// no use.
    #[cold]
    pub(crate) fn discard(&self, event: &StreamEvent<D>) {
        let mut events = self.lock();
        let is_it = |it: &Recorded<D>| std::ptr::eq(&*it.event, event);
        if let Some(at) = events.recorded.iter().position(is_it)
            && let Some(Recorded { event, .. }) = events.recorded.remove(at)
        {
            events.spare.push(event);
        }
    }

    /// Returns the event to query, if a query is due: the middle one of those that may not be done.
    #[cold]
    pub(crate) fn event_to_query(&self) -> Option<Arc<StreamEvent<D>>> {
        let mut events = self.lock();
        if events.since_query < EVENTS_PER_QUERY {
            return None;
        }
        events.since_query = 0;
        let first = events.first_from(self.done.load(Ordering::Acquire) + 1);
        let middle = first + (events.recorded.len() - first) / 2;
        let found = events.recorded.range(middle..).find(|it| it.event.is_recorded());
        found.map(|it| Arc::clone(&it.event))
    }

    /// Returns the wait that orders a stream after use `seq`: for the first recorded event with
    /// that number or a larger one, so that the stream does not wait for later work than it must.
    pub(crate) fn cover(&self, seq: u64) -> Cover<D> {
        let events = self.lock();
        // Under the lock: an event that was recorded again meanwhile was done.
        if self.is_done(seq) {
            return Cover::Done;
        }
        let mut at = events.first_from(seq);
        while let Some(it) = events.recorded.get(at) {
            if it.event.is_recorded() {
                return Cover::Event(Arc::clone(&it.event));
            }
            at += 1;
        }
        Cover::Unrecorded
    }

    /// Makes `last` cover all work of the stream, which was just retired; it was recorded after
    /// that work. `None` if that work is done.
    pub(crate) fn seal(&self, last: Option<Arc<StreamEvent<D>>>) {
        let mut events = self.lock();
        // The number of an allocation after the last use. There is none with a larger number.
        let end = self.submitted();
        match &last {
            Some(last) => {
                last.seq.store(end, Ordering::Relaxed);
                let is_it = |it: &&mut Recorded<D>| Arc::ptr_eq(&it.event, last);
                if let Some(recorded) = events.recorded.iter_mut().rev().find(is_it) {
                    recorded.seq = end;
                }
            }
            None => self.raise_done(end),
        }
        events.sealed = Some(Sealed { last });
    }

    /// Returns the end of the work of a retired stream. `None` if the stream is not retired, or not
    /// sealed yet.
    pub(crate) fn sealed(&self) -> Option<Sealed<D>> {
        let events = self.lock();
        events.sealed.as_ref().map(|sealed| Sealed { last: sealed.last.clone() })
    }

    /// Continues with the work of another stream, which comes after all work of the retired one:
    /// every number of that is smaller than each that follows.
    pub(crate) fn continue_with_next(&self) {
        let mut events = self.lock();
        events.sealed = None;
        self.number(&mut events);
    }
}

impl<D> Events<D> {
    /// Adds an event in the order of the numbers.
    #[inline]
    fn insert(&mut self, added: Recorded<D>) {
        // A thread that had to make its event may be late.
        let is_late = self.recorded.back().is_some_and(|newest| newest.seq > added.seq);
        if is_late {
            self.recorded.insert(self.first_from(added.seq), added);
        } else {
            self.recorded.push_back(added);
        }
    }

    /// Returns the index of the first event with number `seq` or a larger one. Searches the newest
    /// events first: work mostly waits for work that was submitted just before.
    #[inline]
    fn first_from(&self, seq: u64) -> usize {
        let mut at = self.recorded.len();
        let least = at.saturating_sub(LOOKS);
        while at > least {
            if self.recorded[at - 1].seq < seq {
                return at;
            }
            at -= 1;
        }
        self.recorded.partition_point(|it| it.seq < seq)
    }

    /// Removes an event that is done and that no thread uses.
    #[inline]
    fn remove_unneeded(&mut self, done: u64) -> Option<Arc<StreamEvent<D>>> {
        let is_unneeded = |it: &mut Recorded<D>| it.seq <= done && it.is_unneeded();
        if self.recorded.front_mut().is_some_and(is_unneeded) {
            return self.recorded.pop_front().map(|it| it.event);
        }
        self.remove_unneeded_later(done)
    }

    /// Removes an event as [`remove_unneeded`](Self::remove_unneeded) does, where the oldest is in
    /// use or may not be done.
    #[inline(never)]
    fn remove_unneeded_later(&mut self, done: u64) -> Option<Arc<StreamEvent<D>>> {
        let is_unneeded = |it: &mut Recorded<D>| it.seq <= done && it.is_unneeded();
        let found = self.recorded.iter_mut().take(LOOKS).position(is_unneeded);
        if let Some(at) = found {
            return self.recorded.remove(at).map(|it| it.event);
        }
        let at = self.spare.iter_mut().position(is_only)?;
        Some(self.spare.swap_remove(at))
    }
}

impl<D> Recorded<D> {
    /// Returns whether no thread is about to record the event or to wait for it.
    #[inline]
    fn is_unneeded(&mut self) -> bool {
        self.event.is_recorded() && is_only(&mut self.event)
    }
}

impl<D> StreamEvent<D> {
    /// Returns whether a stream that waits for this also comes after use `seq` of the stream in
    /// `slot`.
    pub(crate) fn covers(&self, slot: usize, seq: u64) -> bool {
        if slot == self.slot { self.seq() >= seq } else { self.seen.covers(slot, seq) }
    }

    /// Returns the number up to which it covers uses of its stream.
    pub(crate) fn seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Returns the slot of the stream that it is recorded on.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Returns the driver's event.
    pub(crate) fn driver_event(&self) -> &D {
        &self.driver_event
    }

    /// Marks its record as submitted. The recording thread does not touch it afterwards.
    pub(crate) fn set_recorded(&self) {
        // Release: `seq` and `seen` are written before.
        self.is_recorded.store(true, Ordering::Release);
    }

    fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::Acquire)
    }
}

/// Returns whether there is no other `Arc` of an event. The caller holds the lock under which
/// events are cloned.
#[cfg(not(loom))]
#[inline]
fn is_only<T>(event: &mut Arc<T>) -> bool {
    let is_only = Arc::strong_count(event) == 1;
    // Acquire: all that a thread did with another `Arc` happens before this returns.
    std::sync::atomic::fence(Ordering::Acquire);
    is_only
}

/// Returns whether there is no other `Arc` of an event. (loom's `strong_count` orders nothing.)
#[cfg(loom)]
fn is_only<T>(event: &mut Arc<T>) -> bool {
    Arc::get_mut(event).is_some()
}

#[cfg(all(test, not(loom)))]
#[path = "timeline_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "timeline_loom.rs"]
mod loom_tests;
