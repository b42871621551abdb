//! An event of the driver, destroyed with its owner.

use cudarc::driver::{result, sys};
use dmr_core::ResourceResult;

use crate::Device;

/// An event without timing, in a device's context.
pub(crate) struct DriverEvent {
    handle: sys::CUevent,
    device: Device,
}

// SAFETY: the driver's functions take events from any thread, at the same time.
unsafe impl Send for DriverEvent {}
// SAFETY: as above.
unsafe impl Sync for DriverEvent {}

impl DriverEvent {
    pub(crate) fn new(device: &Device) -> ResourceResult<Self> {
        device.bind()?;
        let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(|error| device.driver_error("cuEventCreate", error))?;
        Ok(Self { handle, device: device.clone() })
    }

    /// The driver's handle, alive as long as this is.
    pub(crate) fn handle(&self) -> sys::CUevent {
        self.handle
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
