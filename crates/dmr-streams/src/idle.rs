//! Whether the device is done with everything on the streams of a pool.

use cudarc::driver::sys::{self, CUresult};
use dmr_core::ResourceResult;

use crate::StreamPool;

impl StreamPool {
    /// Returns whether the device is done with everything that was submitted to the streams of the
    /// pool, leased or not. Does not wait.
    ///
    /// A stream that is capturing a graph counts as idle, and is not queried: a query would end the
    /// capture. A stream whose owner has taken it back is not queried either.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub fn is_idle(&self) -> ResourceResult<bool> {
        for slot in 0..self.max_slots() {
            let Some(created) = self.slot(slot).alive() else { continue };
            if self.is_slot_capturing(slot)? {
                continue;
            }
            // SAFETY: the stream is alive for as long as it is borrowed.
            let ask = |stream| unsafe { sys::cuStreamQuery(stream) }.result();
            match self.device().call_on(created.stream.cu_stream(), ask) {
                Ok(()) => {}
                Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => return Ok(false),
                Err(error) => return Err(self.device().driver_error("cuStreamQuery", error)),
            }
        }
        Ok(true)
    }
}
