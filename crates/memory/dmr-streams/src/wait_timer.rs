//! Measures for how long waits hold up their streams: two events with timing on the waiting stream,
//! around the wait.
//!
//! The time between them is read later, without waiting for the device: a few are looked at with
//! each wait that is measured, all when a recording is written on request and when the recorder
//! stops. No error of a measurement is one of the wait, which is made all the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use dmr_core::ResourceResult;
use dmr_core::sync::lock;
use dmr_recorder::hooks::{MeasuredWait, RecordedWait};
use dmr_recorder::{LateEvents, register_late_events};

use crate::attachments::Attachment;
use crate::event::DriverEvent;
use crate::{Device, RelaxedCapture, StreamGuard, StreamPool};

/// The most measurements of a pool that the device has not completed, and the most pairs of events
/// that are kept for others.
const MOST: usize = 64;

/// The number of measurements that are looked at before another one is begun.
const LOOKS: usize = 4;

/// The measurements of a stream pool, whose attachment this is.
struct WaitTimer(Arc<Measurements>);

struct Measurements {
    device: Device,
    /// Never locked across a driver call.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Oldest first.
    running: VecDeque<Running>,
    idle: Vec<Pair>,
}

/// The events before and behind a wait. Neither is used by anything else.
struct Pair {
    before: DriverEvent,
    behind: DriverEvent,
}

struct Running {
    pair: Pair,
    wait: MeasuredWait,
}

/// A measurement that has begun on a stream, on which the wait is made next. Dropped without
/// [`end`](Self::end), it is forgotten.
pub(crate) struct Measurement<'s, 'p> {
    stream: &'s StreamGuard<'p>,
    measurements: &'p Measurements,
    pair: Pair,
}

impl<'s, 'p> Measurement<'s, 'p> {
    /// Records an event on a stream, behind its work so far. `None` if nothing can be measured: on
    /// CUDA's default streams, during a capture, where too many measurements are running, and where
    /// the driver refuses it.
    #[cold]
    pub(crate) fn begin(stream: &'s StreamGuard<'p>) -> Option<Self> {
        if stream.is_default_of_cuda() || stream.refuse_capture().is_err() {
            return None;
        }
        let WaitTimer(measurements) = stream.pool().attachment::<WaitTimer>();
        measurements.look(LOOKS);
        let pair = measurements.take()?;
        stream.record_event(&pair.before).ok()?;
        Some(Self { stream, measurements, pair })
    }

    /// Records an event behind the wait. Events that a capture may have taken meanwhile are
    /// destroyed: a query of them would end it.
    pub(crate) fn end(self, wait: RecordedWait) {
        let Self { stream, measurements, pair } = self;
        let is_recorded = stream.record_event(&pair.behind).is_ok();
        if is_recorded && stream.refuse_capture().is_ok() {
            measurements.push(Running { pair, wait: MeasuredWait::new(wait) });
        }
    }
}

impl Measurements {
    /// Returns two events for a measurement; `None` if too many are running.
    fn take(&self) -> Option<Pair> {
        let mut state = lock(&self.state);
        if state.running.len() >= MOST {
            return None;
        }
        let idle = state.idle.pop();
        drop(state);
        idle.or_else(|| Pair::new(&self.device).ok())
    }

    fn push(&self, running: Running) {
        let mut state = lock(&self.state);
        if state.running.len() < MOST {
            state.running.push_back(running);
            return;
        }
        drop(state);
        // Other threads have begun the last ones. Its events are destroyed without the lock.
        drop(running);
    }

    /// Looks at the oldest measurements, and records those that the device has completed.
    fn look(&self, most: usize) {
        let mut state = lock(&self.state);
        let most = most.min(state.running.len());
        let looked: Vec<Running> = state.running.drain(..most).collect();
        drop(state);
        if looked.is_empty() {
            return;
        }
        let mut left = Vec::new();
        let mut idle = Vec::new();
        // On an error, what is left of them is dropped, and measures nothing.
        let _ = self.device.relaxed(|relaxed| {
            for running in looked {
                match running.pair.length(relaxed) {
                    Ok(None) => left.push(running),
                    Ok(Some(length)) => {
                        running.wait.record(length);
                        idle.push(running.pair);
                    }
                    Err(_) => {}
                }
            }
            Ok(())
        });
        let mut state = lock(&self.state);
        for running in left.into_iter().rev() {
            state.running.push_front(running);
        }
        let room = MOST.saturating_sub(state.idle.len()).min(idle.len());
        state.idle.extend(idle.drain(..room));
    }

    /// Destroys all events.
    fn clear(&self) {
        let state = std::mem::take(&mut *lock(&self.state));
        drop(state);
    }
}

impl LateEvents for Measurements {
    fn collect(&self) {
        if dmr_recorder::is_on() {
            self.look(usize::MAX);
        } else {
            self.clear();
        }
    }
}

impl Attachment for WaitTimer {
    fn attach(streams: &StreamPool) -> Self {
        let device = streams.device().clone();
        let measurements = Arc::new(Measurements { device, state: Mutex::default() });
        let late: Arc<dyn LateEvents> = measurements.clone();
        register_late_events(Arc::downgrade(&late));
        Self(measurements)
    }

    fn end(&self, streams: &StreamPool) {
        // In a forked child another thread may have held the lock.
        if !streams.device().is_forked() {
            self.0.collect();
            self.0.clear();
        }
    }
}

impl Pair {
    fn new(device: &Device) -> ResourceResult<Self> {
        Ok(Self { before: DriverEvent::timed(device)?, behind: DriverEvent::timed(device)? })
    }

    /// Returns the time between the events; `None` if the device has not come to the second.
    fn length(&self, relaxed: &RelaxedCapture<'_>) -> ResourceResult<Option<std::time::Duration>> {
        // Both: an event that a capture has taken has an older time, or none.
        if !self.behind.query(relaxed)? || !self.before.query(relaxed)? {
            return Ok(None);
        }
        self.behind.since(&self.before, relaxed).map(Some)
    }
}
