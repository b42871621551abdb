//! Waits for the streams of a pool, and queries whether they are idle.

use std::time::{Duration, Instant};

use cudarc::driver::result;
use dmr_core::{ResourceError, ResourceResult, StreamId, waits};
use dmr_recorder::hooks::HostWait;

use crate::event::DriverEvent;
use crate::{HomeStream, RelaxedCapture, StreamGuard, StreamPool};

/// The time between two queries of an event.
pub(crate) const POLL: Duration = Duration::from_micros(20);

impl StreamPool {
    /// Waits until all work submitted to a stream so far is done.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](dmr_core::ResourceError::ForkedProcess);
    /// [`DeviceLost`](dmr_core::ResourceError::DeviceLost);
    /// [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse) for an id of another pool, of a
    /// returned lease or of a retired stream;
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing), because waiting would end the
    /// capture; [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted
    /// earlier.
    pub fn synchronize(&self, stream: impl Into<StreamId>) -> ResourceResult<()> {
        let stream = self.enter(stream.into())?;
        stream.refuse_capture()?;
        stream.synchronize()
    }

    /// Waits until the device is done with everything that was submitted so far to the streams of
    /// the pool, leased or not. Returns `false` if it has skipped a stream that captures a graph:
    /// waiting would end the capture.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](dmr_core::ResourceError::ForkedProcess);
    /// [`DeviceLost`](dmr_core::ResourceError::DeviceLost);
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub fn synchronize_all(&self) -> ResourceResult<bool> {
        let waited = self.wait_for_slots(None, |_| true)?;
        Ok(!waited.any_captures)
    }

    /// Waits until the device is done with everything that was submitted to it so far, by any
    /// stream of the context. Returns `false` if it has not waited, because a stream of the pool
    /// captures a graph: waiting would end the capture.
    ///
    /// # Errors
    ///
    /// As [`synchronize_all`](Self::synchronize_all).
    pub fn synchronize_device(&self) -> ResourceResult<bool> {
        let captures = !self.synchronize_all()?;
        if !captures {
            self.device().synchronize()?;
        }
        Ok(!captures)
    }

    /// Waits as [`synchronize_all`](Self::synchronize_all) does, for the streams in the slots that
    /// `selects` accepts, and for the reclaim stream if that was created. Returns `false`, too, if
    /// the thread's [deadline](dmr_core::waits) has passed before.
    ///
    /// # Errors
    ///
    /// As [`synchronize_all`](Self::synchronize_all).
    pub fn synchronize_slots(&self, selects: impl Fn(usize) -> bool) -> ResourceResult<bool> {
        let waited = self.wait_for_slots(waits::deadline(), selects)?;
        Ok(!waited.any_captures && !waited.any_busy)
    }

    /// Waits as [`synchronize_all`](Self::synchronize_all) does, but not beyond `until`. Returns
    /// whether the device is done with what was submitted to streams that do not capture a graph.
    ///
    /// After a queued free, a memory pool of the driver has the memory again only once an event
    /// recorded after the free was synchronised. A query is not enough (measured on an H200), so
    /// this does both.
    ///
    /// # Errors
    ///
    /// As [`synchronize_all`](Self::synchronize_all).
    pub fn synchronize_until(&self, until: Instant) -> ResourceResult<bool> {
        let waited = self.wait_for_slots(Some(until), |_| true)?;
        Ok(!waited.any_busy)
    }

    fn wait_for_slots(
        &self,
        until: Option<Instant>,
        selects: impl Fn(usize) -> bool,
    ) -> ResourceResult<Waited> {
        self.device().relaxed(|relaxed| {
            let mut waited = Waited::default();
            for (slot, known) in self.entries() {
                let is_selected = selects(slot) || self.is_reclaim(slot);
                let is_unused = known.holds().is_none() && known.own().is_none();
                if is_unused || !is_selected {
                    continue;
                }
                match self.enter_home(self.permanent_id(slot))? {
                    HomeStream::Live(stream) => waited.wait_for_stream(&stream, relaxed, until)?,
                    HomeStream::Retired => {
                        if let Some(last) = self.progress().event_now(self, slot)? {
                            let _waiting = HostWait::for_stream(self.permanent_id(slot));
                            waited.wait_for_event(last.driver_event(), relaxed, until)?;
                        }
                    }
                }
            }
            Ok(waited)
        })
    }
}

impl StreamGuard<'_> {
    /// Waits until all work submitted to the stream so far is done. The stream captures no graph,
    /// or its capture ends.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted earlier.
    pub fn synchronize(&self) -> ResourceResult<()> {
        let _waiting = HostWait::for_stream(self.id());
        // SAFETY: the stream is alive while there is a guard.
        self.call_relaxed(|stream| unsafe { result::stream::synchronize(stream) })
            .map_err(|error| self.device().driver_error("cuStreamSynchronize", error))
    }
}

/// The outcome of a wait for all streams.
#[derive(Default)]
struct Waited {
    /// A stream captures a graph, and was skipped.
    any_captures: bool,
    /// A stream was not done in time.
    any_busy: bool,
}

impl Waited {
    fn wait_for_stream(
        &mut self,
        stream: &StreamGuard<'_>,
        relaxed: &RelaxedCapture<'_>,
        until: Option<Instant>,
    ) -> ResourceResult<()> {
        match stream.refuse_implied_capture() {
            Err(ResourceError::StreamCapturing { .. }) => {
                self.any_captures = true;
                return Ok(());
            }
            looked => looked?,
        }
        let event = DriverEvent::new(stream.device())?;
        let recorded = stream.record_event(&event);
        // An event that a graph has captured stands for no work of the stream.
        if stream.is_capturing()? {
            self.any_captures = true;
            return Ok(());
        }
        recorded.map_err(|error| stream.device().driver_error("cuEventRecord", error))?;
        let _waiting = HostWait::for_stream(stream.id());
        self.wait_for_event(&event, relaxed, until)
    }

    fn wait_for_event(
        &mut self,
        event: &DriverEvent,
        relaxed: &RelaxedCapture<'_>,
        until: Option<Instant>,
    ) -> ResourceResult<()> {
        if let Some(until) = until {
            while !event.query(relaxed)? {
                if Instant::now() >= until {
                    self.any_busy = true;
                    return Ok(());
                }
                std::thread::sleep(POLL);
            }
        }
        event.wait(relaxed)
    }
}
