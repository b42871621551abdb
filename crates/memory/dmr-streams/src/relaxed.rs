//! Driver calls that a graph capture forbids, and streams that must not capture.

use std::fmt;
use std::marker::PhantomData;

use cudarc::driver::CudaStream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus};
use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::{Device, StreamGuard};

/// The right to make driver calls that a capture forbids, during a call of [`Device::relaxed`]:
/// queries and synchronisation of events and streams, `cuMemAlloc`, `cuMemFree`, page-locked
/// memory, memory pools of the driver.
///
/// It cannot be kept:
///
/// ```compile_fail
/// # use dmr_streams::Device;
/// # fn keep(device: &Device) {
/// let kept = device.relaxed(|relaxed| Ok(relaxed));
/// # }
/// ```
pub struct RelaxedCapture<'d> {
    device: &'d Device,
    /// The mode belongs to the thread.
    _of_this_thread: PhantomData<*const ()>,
}

/// The calling thread's capture mode from before. Dropping it restores the mode.
struct ModeBefore(CUstreamCaptureMode);

impl Device {
    /// Binds the device's context, and makes `calls` that a capture forbids. Costs two driver calls
    /// that take 10 ns each, besides those of [`bind`](Self::bind).
    ///
    /// While a thread captures a graph in global mode, such a call of any thread fails, and ends
    /// that capture as invalid; in thread-local mode, such a call of that thread does. During
    /// `calls` the driver does not check for captures; the caller makes sure that they concern no
    /// stream and no event that captures.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), and those of `calls`.
    #[inline]
    pub fn relaxed<T>(
        &self,
        calls: impl FnOnce(&RelaxedCapture<'_>) -> ResourceResult<T>,
    ) -> ResourceResult<T> {
        self.bind()?;
        in_relaxed_mode(|| calls(&RelaxedCapture { device: self, _of_this_thread: PhantomData }))
            .map_err(|error| self.driver_error("cuThreadExchangeStreamCaptureMode", error))?
    }

    /// Refuses a stream of the device's context, which is current, that captures a graph.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver).
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn refuse_capture_of(&self, stream: &CudaStream) -> ResourceResult<()> {
        // SAFETY: the stream is alive while it is borrowed.
        match unsafe { result::stream::is_capturing(stream.cu_stream()) } {
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => Ok(()),
            // The second: CUDA's default stream, while a blocking stream captures.
            Ok(_) | Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)) => {
                Err(ResourceError::stream_capturing(StreamId::UNISSUED))
            }
            Err(error) => Err(self.driver_error("cuStreamIsCapturing", error)),
        }
    }
}

impl StreamGuard<'_> {
    /// Refuses CUDA's legacy stream while a blocking stream of its context captures: an event that
    /// is recorded on it would end that capture. Makes no driver call for other streams.
    ///
    /// # Errors
    ///
    /// As [`Device::bind`] and [`Device::refuse_capture_of`].
    pub(crate) fn refuse_implied_capture(&self) -> ResourceResult<()> {
        if !self.is_default_of_cuda() {
            return Ok(());
        }
        self.device().bind()?;
        self.device().refuse_capture_of(self.cudarc_stream())
    }
}

/// Makes `calls` in the calling thread's relaxed capture mode, and restores the mode.
#[inline]
pub(crate) fn in_relaxed_mode<T>(calls: impl FnOnce() -> T) -> Result<T, DriverError> {
    let _before = ModeBefore(exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?);
    Ok(calls())
}

impl Drop for ModeBefore {
    #[inline]
    fn drop(&mut self) {
        let _ = exchange(self.0);
    }
}

impl fmt::Debug for RelaxedCapture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RelaxedCapture").field(self.device).finish()
    }
}

/// Sets the calling thread's capture mode, and returns the one before.
#[inline]
fn exchange(mut mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode, DriverError> {
    // SAFETY: the driver reads a mode, and writes one.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result()?;
    Ok(mode)
}
