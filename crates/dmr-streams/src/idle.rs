//! Whether the device is done with everything on the streams of a pool.

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{self, CUresult};
use dmr_core::ResourceResult;

use crate::StreamPool;

impl StreamPool {
    /// Returns whether the device is done with everything that was submitted to the streams of the
    /// pool, leased or not, and to its [reclaim stream](Self::reclaim_stream). Does not wait.
    ///
    /// A stream that is capturing a graph counts as idle, and is not queried: a query would end the
    /// capture. A stream whose owner has taken it back is not queried either.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](dmr_core::ResourceError::ForkedProcess);
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub fn is_idle(&self) -> ResourceResult<bool> {
        self.device().refuse_fork()?;
        for slot in 0..self.max_slots() {
            let Some(created) = self.slot(slot).alive() else { continue };
            if !self.is_slot_capturing(slot)? && !self.is_stream_idle(&created.stream)? {
                return Ok(false);
            }
        }
        self.reclaim().map_or(Ok(true), |stream| self.is_stream_idle(stream))
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
