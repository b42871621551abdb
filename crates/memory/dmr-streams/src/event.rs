//! An event of the driver, destroyed with its owner.

use std::fmt;

use cudarc::driver::CudaStream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult};
use dmr_core::ResourceResult;

use crate::{Device, RelaxedCapture, StreamGuard};

/// An event without timing, in a device's context.
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
        device.bind()?;
        let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(|error| device.driver_error("cuEventCreate", error))?;
        Ok(Self { handle, device: device.clone() })
    }

    /// Records the event on a stream. If that captures a graph, the event orders nothing outside of
    /// the graph, and adds no node to it: call [`StreamGuard::refuse_capture`] afterwards.
    ///
    /// # Errors
    ///
    /// The driver's.
    #[inline]
    pub fn record(&self, on: &StreamGuard<'_>) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive, and of the device's context.
        on.call(|on| unsafe { result::event::record(self.handle, on) })
    }

    /// Makes a stream wait for the event.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing) where the stream has begun to
    /// capture a graph since the caller looked: the driver refuses to wait for what is not in the
    /// graph. [`Driver`](dmr_core::ResourceError::Driver).
    #[inline]
    pub fn make_wait(&self, stream: &StreamGuard<'_>) -> ResourceResult<()> {
        self.make_wait_raw(stream)
            .map_err(|error| self.device.driver_error("cuStreamWaitEvent", error))
            .or_else(|error| stream.refuse_capture().and(Err(error)))
    }

    /// Makes a stream of any device wait for the event.
    #[inline]
    pub(crate) fn make_wait_raw(&self, stream: &StreamGuard<'_>) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream are alive. A stream may wait for an event of another context.
        stream.call(|on| unsafe { result::stream::wait_event(on, self.handle, flags) })
    }

    /// Records the event on a stream of the device's context, which is current.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver).
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
    pub fn synchronize(&self, _: &RelaxedCapture<'_>) -> ResourceResult<()> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.handle) }
            .map_err(|error| self.device.driver_error("cuEventSynchronize", error))
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
