//! An event of the driver, destroyed with its owner.

use std::ffi::c_void;
use std::fmt;
use std::time::Duration;

use cudarc::driver::CudaStream;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};
use dmr_core::ResourceResult;
use dmr_recorder::hooks::HostWait;

use crate::{Device, RelaxedCapture};

/// An event in a device's context, without timing unless it is the library's own.
pub struct DriverEvent {
    handle: sys::CUevent,
    device: Device,
}

// SAFETY: the driver's functions take events from any thread, at the same time.
unsafe impl Send for DriverEvent {}
// SAFETY: as above.
unsafe impl Sync for DriverEvent {}

impl DriverEvent {
    /// Creates an event that was never recorded.
    ///
    /// # Errors
    ///
    /// As [`Device::bind`]; [`Driver`](dmr_core::ResourceError::Driver).
    pub fn new(device: &Device) -> ResourceResult<Self> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event with timing that was never recorded.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub(crate) fn timed(device: &Device) -> ResourceResult<Self> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(device: &Device, flags: sys::CUevent_flags) -> ResourceResult<Self> {
        device.bind()?;
        let handle = result::event::create(flags)
            .map_err(|error| device.driver_error("cuEventCreate", error))?;
        Ok(Self { handle, device: device.clone() })
    }

    /// Returns the driver's handle, which is valid while this exists.
    #[inline]
    pub(crate) fn handle(&self) -> sys::CUevent {
        self.handle
    }

    /// Returns the driver's handle (a `CUevent`), for other libraries of the program. It is valid
    /// while this exists; nothing else destroys it, or records it.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.handle.cast()
    }

    #[inline]
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Records the event on a stream of the device's context, which is current.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver).
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn record_on_other(&self, on: &CudaStream) -> ResourceResult<()> {
        // SAFETY: event and stream are alive, and of the device's context.
        unsafe { result::event::record(self.handle, on.cu_stream()) }
            .map_err(|error| self.device.driver_error("cuEventRecord", error))
    }

    /// Makes a stream of the device's context, which is current, wait for the event.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver).
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn make_other_wait(&self, stream: &CudaStream) -> ResourceResult<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream are alive, and of the device's context.
        unsafe { result::stream::wait_event(stream.cu_stream(), self.handle, flags) }
            .map_err(|error| self.device.driver_error("cuStreamWaitEvent", error))
    }

    /// Returns whether the work before the record is done.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted earlier.
    #[inline]
    pub fn query(&self, _: &RelaxedCapture<'_>) -> ResourceResult<bool> {
        // SAFETY: the event is alive.
        match unsafe { result::event::query(self.handle) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(self.device.driver_error("cuEventQuery", error)),
        }
    }

    /// Waits until the work before the record is done.
    ///
    /// # Errors
    ///
    /// As [`query`](Self::query).
    pub fn synchronize(&self, relaxed: &RelaxedCapture<'_>) -> ResourceResult<()> {
        let _waiting = HostWait::for_device(self.device.ordinal());
        self.wait(relaxed)
    }

    /// Waits as [`synchronize`](Self::synchronize) does, for a caller that records the wait.
    pub(crate) fn wait(&self, _: &RelaxedCapture<'_>) -> ResourceResult<()> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.handle) }
            .map_err(|error| self.device.driver_error("cuEventSynchronize", error))
    }
}

impl DriverEvent {
    /// Returns the time on the device from the work before the record of `earlier` until that
    /// before the record of this. Both have timing, are of one stream, and are done.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub(crate) fn since(&self, earlier: &Self, _: &RelaxedCapture<'_>) -> ResourceResult<Duration> {
        // SAFETY: both events are alive.
        let milliseconds = unsafe { result::event::elapsed(earlier.handle, self.handle) }
            .map_err(|error| self.device.driver_error("cuEventElapsedTime", error))?;
        Ok(Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).unwrap_or_default())
    }
}

impl fmt::Debug for DriverEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DriverEvent").field(&self.handle).finish()
    }
}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: the event is alive, and this its only destruction. Waits that are queued
            // keep what they need of it.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
