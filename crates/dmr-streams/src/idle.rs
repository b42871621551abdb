//! Whether the device is done with everything on the streams of a pool.

use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use dmr_core::ResourceResult;

use crate::StreamPool;

const POLL: Duration = Duration::from_micros(20);

impl StreamPool {
    /// Waits until the device is done with everything that was submitted so far to the streams of the
    /// pool, leased or not, and to its [reclaim stream](Self::reclaim_stream), but not beyond
    /// `until`. Returns whether it is.
    ///
    /// A memory pool of the driver regains memory whose free was queued only once an event behind the
    /// free has been synchronised. A query does not do it (seen on an H200), so this does both.
    ///
    /// A stream that is capturing a graph is left out: a query would end the capture. So is a stream
    /// whose owner has taken it back.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](dmr_core::ResourceError::ForkedProcess);
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub fn synchronize_until(&self, until: Instant) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        let mut is_done = true;
        for slot in 0..self.max_slots() {
            let Some(created) = self.slot(slot).alive() else { continue };
            if !self.is_slot_capturing(slot)? {
                is_done &= self.synchronize_stream_until(&created.stream, until)?;
            }
        }
        let reclaim = self.reclaim().map(|stream| self.synchronize_stream_until(stream, until));
        Ok(is_done & reclaim.unwrap_or(Ok(true))?)
    }

    fn synchronize_stream_until(
        &self,
        stream: &CudaStream,
        until: Instant,
    ) -> ResourceResult<bool> {
        let failed = |call| move |error| self.device().driver_error(call, error);
        let event = stream
            .record_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))
            .map_err(failed("cuEventRecord"))?;
        while !event.try_is_complete().map_err(failed("cuEventQuery"))? {
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
        // Returns at once.
        event.synchronize().map_err(failed("cuEventSynchronize"))?;
        Ok(true)
    }

    /// Returns whether the device is done with everything that was submitted to a stream of the
    /// device, which captures no graph. Does not wait.
    pub(crate) fn is_stream_idle(&self, stream: &CudaStream) -> ResourceResult<bool> {
        // SAFETY: the stream is alive for as long as it is borrowed.
        let ask = |stream| unsafe { sys::cuStreamQuery(stream) }.result();
        match self.device().call_on(stream.cu_stream(), ask) {
            Ok(()) => Ok(true),
            Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(self.device().driver_error("cuStreamQuery", error)),
        }
    }
}
