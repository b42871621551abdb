//! The background thread: takes records out of the rings, in time order.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use rtrb::Consumer;

use super::Shared;
use super::entry::Entry;
use crate::logging::calls::{Settled, settled_before, thread_number};
use crate::logging::{LogRecord, LoggingSink, SinkError};

/// The background thread of one sink.
pub(super) struct Writer<S: LoggingSink> {
    shared: Arc<Shared<S>>,
    lanes: Vec<Lane>,
    /// The flush that is being served. Those asked for meanwhile come after it, or a steady
    /// stream of them would put it off for ever.
    flush: Option<Flush>,
    /// Whether the sink has records that were not flushed.
    is_dirty: bool,
    flushed_at: Instant,
    lost: Lost,
}

/// What came of one ring.
struct Lane {
    thread: u64,
    ring: Consumer<Entry>,
    /// Taken out, in time order.
    waiting: VecDeque<LogRecord>,
}

/// Records lost since a flush has said so.
#[derive(Default)]
struct Lost {
    records: u64,
    first: Option<SinkError>,
}

/// Callers wait for what was recorded before `at_ns`.
#[derive(Clone, Copy)]
struct Flush {
    number: u64,
    at_ns: u64,
}

/// How long the thread sleeps when records come, when none do, and while somebody waits for it.
const BUSY: Duration = Duration::from_millis(1);
const QUIET: Duration = Duration::from_millis(5);
const AWAITED: Duration = Duration::from_micros(200);

impl<S: LoggingSink> Writer<S> {
    pub(super) fn new(shared: Arc<Shared<S>>) -> Self {
        Self {
            shared,
            lanes: Vec::new(),
            flush: None,
            is_dirty: false,
            flushed_at: Instant::now(),
            lost: Lost::default(),
        }
    }

    pub(super) fn run(mut self) {
        self.shared.writer.store(thread_number(), Ordering::Relaxed);
        loop {
            let is_stopping = self.look_for_requests();
            // Once it stops, nobody is left who could record.
            let all = Settled { before: u64::MAX, held_up_by: None };
            let settled = if is_stopping { all } else { settled_before() };
            let found = self.write_before(settled);
            if let Some(flush) = self.flush.take_if(|flush| flush.at_ns < settled.before) {
                self.flush_for(flush);
            } else if self.is_dirty && self.flushed_at.elapsed() >= self.flush_interval() {
                let flushed = self.flush();
                self.lost.note(flushed, 0);
            }
            if is_stopping {
                // An error has nobody to go to.
                let _ = self.flush();
                return;
            }
            self.lanes.retain(|lane| !lane.has_ended());
            thread::park_timeout(match (&self.flush, found) {
                (Some(_), _) => AWAITED,
                (None, 0) => QUIET,
                (None, _) => BUSY,
            });
        }
    }

    fn flush_interval(&self) -> Duration {
        self.shared.config.flush_interval
    }

    /// Answers whether it is time to end.
    fn look_for_requests(&mut self) -> bool {
        let mut control = self.shared.control();
        let rings = control.new_rings.drain(..);
        let lanes = rings.map(|(thread, ring)| Lane { thread, ring, waiting: VecDeque::new() });
        self.lanes.extend(lanes);
        if self.flush.is_none() && control.served < control.requested {
            self.flush = Some(Flush { number: control.requested, at_ns: control.requested_ns });
        }
        control.is_stopping
    }

    /// Hands on every record that is settled; answers how many it has seen.
    fn write_before(&mut self, settled: Settled) -> usize {
        let mut found = 0;
        let mut enough = self.shared.config.ring_records;
        loop {
            let mut taken = 0;
            let mut until = settled.before;
            for lane in &mut self.lanes {
                // Who holds up all others is made room for.
                let waits = settled.held_up_by == Some(lane.thread);
                let enough = if waits { usize::MAX } else { enough };
                taken += lane.take(enough);
                until = until.min(lane.known_until(enough));
            }
            let handed_on = self.merge(until);
            found += taken;
            if until == settled.before {
                return found;
            }
            if taken + handed_on == 0 {
                // What is waiting comes after something in the ring behind it.
                enough = usize::MAX;
            }
        }
    }

    /// Hands on what is waiting and of a time before `until`, the earliest first; answers how many.
    fn merge(&mut self, until: u64) -> usize {
        let mut handed_on = 0;
        loop {
            let mut first: Option<(u64, usize)> = None;
            let mut second = until;
            for (at, lane) in self.lanes.iter().enumerate() {
                let Some(time) = lane.next_time().filter(|&time| time < until) else { continue };
                match first {
                    Some((least, _)) if time >= least => second = second.min(time),
                    _ => {
                        second = first.map_or(second, |(least, _)| second.min(least));
                        first = Some((time, at));
                    }
                }
            }
            let Some((first, lane)) = first else { return handed_on };
            // No lane has anything earlier than `second`, so one look at them serves many records.
            let last = first.max(second.saturating_sub(1));
            while let Some(record) = self.lanes[lane].next_through(last) {
                self.hand_on(&record);
                handed_on += 1;
            }
        }
    }

    fn hand_on(&mut self, record: &LogRecord) {
        self.is_dirty = true;
        let sink = &self.shared.sink;
        let taken = catch_unwind(AssertUnwindSafe(|| sink.record(record)));
        let taken = taken.unwrap_or_else(panicked);
        if taken.is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            self.lost.note(taken, 1);
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.flushed_at = Instant::now();
        self.is_dirty = false;
        let sink = &self.shared.sink;
        catch_unwind(AssertUnwindSafe(|| sink.flush())).unwrap_or_else(panicked)
    }

    fn flush_for(&mut self, flush: Flush) {
        let flushed = self.flush();
        self.lost.note(flushed, 0);
        let failure = self.lost.say();
        let mut control = self.shared.control();
        control.served = flush.number;
        if let Some(error) = failure {
            control.failure = Some((flush.number, error));
        }
        self.shared.changed.notify_all();
    }
}

/// However the thread ends, nobody waits for it any longer.
impl<S: LoggingSink> Drop for Writer<S> {
    fn drop(&mut self) {
        self.shared.control().has_ended = true;
        self.shared.changed.notify_all();
    }
}

impl Lane {
    /// Takes out what is in the ring, unless more than `enough` is waiting. Answers how many.
    fn take(&mut self, enough: usize) -> usize {
        if self.waiting.len() > enough {
            return 0;
        }
        let there = self.ring.slots();
        for _ in 0..there {
            let Ok(entry) = self.ring.pop() else { break };
            let record = entry.unpack(self.thread);
            // The record of a call comes after those of the calls made inside it.
            let at = match self.waiting.back() {
                Some(last) if last.time_ns > record.time_ns => {
                    self.waiting.partition_point(|other| other.time_ns <= record.time_ns)
                }
                _ => self.waiting.len(),
            };
            self.waiting.insert(at, record);
        }
        there
    }

    /// Nothing that is in the ring is of a time before this one. Unless enough was waiting, nothing
    /// was left there that matters.
    fn known_until(&mut self, enough: usize) -> u64 {
        if self.waiting.len() <= enough {
            return u64::MAX;
        }
        let Ok(left) = self.ring.read_chunk(self.ring.slots()) else { return u64::MAX };
        let (first, second) = left.as_slices();
        first.iter().chain(second).map(Entry::time_ns).min().unwrap_or(u64::MAX)
    }

    fn next_time(&self) -> Option<u64> {
        self.waiting.front().map(|record| record.time_ns)
    }

    fn next_through(&mut self, last: u64) -> Option<LogRecord> {
        self.next_time().filter(|&time| time <= last)?;
        self.waiting.pop_front()
    }

    fn has_ended(&self) -> bool {
        if !self.ring.is_abandoned() {
            return false;
        }
        // What was pushed before the ring was let go is seen from here on.
        fence(Ordering::Acquire);
        self.ring.is_empty() && self.waiting.is_empty()
    }
}

impl Lost {
    fn note(&mut self, outcome: Result<(), SinkError>, records: u64) {
        self.records += records;
        if let Err(error) = outcome {
            self.first.get_or_insert(error);
        }
    }

    /// What went wrong since the last time.
    fn say(&mut self) -> Option<SinkError> {
        let lost = std::mem::take(self);
        match (lost.first, lost.records) {
            (Some(first), 0) => Some(first),
            (Some(first), records) => Some(SinkError::Lost { records, first: Box::new(first) }),
            (None, _) => None,
        }
    }
}

fn panicked(thrown: Box<dyn std::any::Any + Send>) -> Result<(), SinkError> {
    // Dropping what was thrown may panic again; then it is leaked.
    std::mem::forget(catch_unwind(AssertUnwindSafe(|| drop(thrown))));
    Err(SinkError::Panicked)
}
