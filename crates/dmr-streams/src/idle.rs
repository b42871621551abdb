//! Waits for the streams of a pool, and asks whether they are idle.

use std::time::{Duration, Instant};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};
use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::event::DriverEvent;
use crate::{HomeStream, StreamGuard, StreamPool};

const POLL: Duration = Duration::from_micros(20);

impl StreamPool {
    /// Waits until all work submitted to a stream so far is done.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`DeviceLost`](ResourceError::DeviceLost);
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool, of a returned lease or of
    /// a retired stream; [`StreamCapturing`](ResourceError::StreamCapturing), because waiting would end
    /// the capture; [`Driver`](ResourceError::Driver), which may come from work submitted earlier.
    pub fn synchronize(&self, stream: StreamId) -> ResourceResult<()> {
        let stream = self.enter(stream)?;
        stream.refuse_capture()?;
        stream.synchronize()
    }

    /// Waits until the device is done with everything that was submitted so far to the streams of the
    /// pool, leased or not, and to its [reclaim stream](Self::reclaim_stream), but not beyond
    /// `until`. Returns whether it is.
    ///
    /// A memory pool of the driver regains memory whose free was queued only once an event behind the
    /// free has been synchronised. A query does not do it (seen on an H200), so this does both.
    ///
    /// Leaves out streams that capture a graph, because a query would end the capture, and streams that
    /// are retired.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`DeviceLost`](ResourceError::DeviceLost);
    /// [`Driver`](ResourceError::Driver).
    pub fn synchronize_until(&self, until: Instant) -> ResourceResult<bool> {
        self.device().check()?;
        let mut is_done = true;
        for (slot, known) in self.stream_slots() {
            if known.stream.get().is_none() {
                continue;
            }
            if let HomeStream::Live(stream) = self.enter_home(self.permanent_id(slot))? {
                is_done &= stream.synchronize_until(until)?;
            }
        }
        let reclaim = self.reclaim().map(|stream| stream.synchronize_until(until));
        Ok(is_done & reclaim.unwrap_or(Ok(true))?)
    }

    /// Returns whether the device is done with everything that was submitted to the home stream of a
    /// block, and that stream is not retired. Does not wait.
    pub(crate) fn is_home_idle(&self, home: StreamId) -> ResourceResult<bool> {
        let HomeStream::Live(stream) = self.enter_home(home)? else { return Ok(false) };
        // A query would end the capture.
        stream.refuse_capture()?;
        // SAFETY: the stream is alive while there is a guard.
        match stream.call(|stream| unsafe { sys::cuStreamQuery(stream) }.result()) {
            Ok(()) => Ok(true),
            Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(self.device().driver_error("cuStreamQuery", error)),
        }
    }
}

impl StreamGuard<'_> {
    /// Waits until all work submitted to the stream so far is done. The stream captures no graph, or
    /// its capture ends.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver), which may come from work submitted earlier.
    pub fn synchronize(&self) -> ResourceResult<()> {
        self.device().bind()?;
        // SAFETY: the stream is alive while there is a guard.
        self.call(|stream| unsafe { result::stream::synchronize(stream) })
            .map_err(|error| self.device().driver_error("cuStreamSynchronize", error))
    }

    /// Waits for the work submitted to the stream so far, but not beyond `until`; returns whether it is
    /// done. Leaves out a stream that captures.
    fn synchronize_until(&self, until: Instant) -> ResourceResult<bool> {
        let device = self.device();
        let failed = |call| move |error| device.driver_error(call, error);
        let event = DriverEvent::new(device)?;
        // SAFETY: event and stream are alive, and of the device's context.
        let recorded = self.call(|on| unsafe { result::event::record(event.handle(), on) });
        // An event that a graph has captured says nothing.
        match self.refuse_capture() {
            Err(ResourceError::StreamCapturing { .. }) => return Ok(true),
            looked => looked?,
        }
        recorded.map_err(failed("cuEventRecord"))?;
        loop {
            // SAFETY: the event is alive.
            match unsafe { result::event::query(event.handle()) } {
                Ok(()) => break,
                Err(error) if error.0 != CUresult::CUDA_ERROR_NOT_READY => {
                    return Err(failed("cuEventQuery")(error));
                }
                Err(_) if Instant::now() >= until => return Ok(false),
                Err(_) => std::thread::sleep(POLL),
            }
        }
        // SAFETY: as above. Returns at once.
        unsafe { result::event::synchronize(event.handle()) }
            .map_err(failed("cuEventSynchronize"))?;
        Ok(true)
    }
}
