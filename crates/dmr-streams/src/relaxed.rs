//! Driver calls that a graph capture forbids.

use std::fmt;
use std::marker::PhantomData;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUstreamCaptureMode};
use dmr_core::ResourceResult;

use crate::Device;

/// Lets the calling thread make driver calls that a capture forbids: queries and synchronisation of
/// events and streams, `cuMemAlloc`, `cuMemFree`, page-locked memory, memory pools of the driver.
///
/// While a thread captures a graph in global mode, such a call of any thread fails, and ends that capture
/// as invalid; in thread-local mode, such a call of that thread does. While this exists, the driver does not
/// check for captures; the caller makes sure that the call concerns no stream and no event that captures.
///
/// The device's context is current meanwhile. Dropping this restores the thread's capture mode.
#[must_use = "the calls are forbidden again once this is dropped"]
pub struct RelaxedCapture<'d> {
    device: &'d Device,
    _mode: RelaxedMode,
}

/// The relaxed capture mode of the calling thread, without a context. Dropping it restores the mode.
pub(crate) struct RelaxedMode {
    before: CUstreamCaptureMode,
    /// The mode belongs to the thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl Device {
    /// Binds the device's context, and lets the calling thread make calls that a capture forbids until the
    /// returned value is dropped. Costs two driver calls that take 10 ns each, besides those of
    /// [`bind`](Self::bind).
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    #[inline]
    pub fn relaxed(&self) -> ResourceResult<RelaxedCapture<'_>> {
        self.bind()?;
        let mode = RelaxedMode::new()
            .map_err(|error| self.driver_error("cuThreadExchangeStreamCaptureMode", error))?;
        Ok(RelaxedCapture { device: self, _mode: mode })
    }
}

impl<'d> RelaxedCapture<'d> {
    /// Returns the device whose context is current.
    #[must_use]
    pub fn device(&self) -> &'d Device {
        self.device
    }
}

impl RelaxedMode {
    #[inline]
    pub(crate) fn new() -> Result<Self, DriverError> {
        let before = exchange(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Self { before, _of_this_thread: PhantomData })
    }
}

impl Drop for RelaxedMode {
    #[inline]
    fn drop(&mut self) {
        let _ = exchange(self.before);
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
