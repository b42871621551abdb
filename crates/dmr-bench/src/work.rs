//! Memory, events and work straight from the driver: what a program without a library has.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use dmr_core::ResourceResult;
use dmr_streams::Device;

/// Bytes from `cuMemAlloc`, freed when dropped.
#[derive(Debug)]
pub struct Memory {
    device: Device,
    ptr: u64,
    bytes: usize,
}

impl Memory {
    /// Allocates. The device's context must be current on every thread that uses this module.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(device: &Device, bytes: usize) -> ResourceResult<Self> {
        device.bind()?;
        // SAFETY: the context is current.
        let ptr = unsafe { result::malloc_sync(bytes) }
            .map_err(|error| device.driver_error("cuMemAlloc", error))?;
        Ok(Self { device: device.clone(), ptr, bytes })
    }

    /// Its address.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Waits for the device and answers the content.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn read(&self) -> ResourceResult<Vec<u8>> {
        self.device.synchronize()?;
        let mut bytes = vec![0; self.bytes];
        // SAFETY: as many bytes as were allocated; nothing runs on the device.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.ptr) }
            .map_err(|error| self.device.driver_error("cuMemcpyDtoH", error))?;
        Ok(bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // There is nobody to tell, and nothing to do about it.
        let _ = self.device.synchronize();
        // SAFETY: allocated by `new`; all work is done.
        let _ = unsafe { result::free_sync(self.ptr) };
    }
}

/// An event without timing.
#[derive(Debug)]
pub struct Event {
    device: Device,
    event: sys::CUevent,
}

impl Event {
    /// Creates one.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(device: &Device) -> ResourceResult<Self> {
        device.bind()?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(|error| device.driver_error("cuEventCreate", error))?;
        Ok(Self { device: device.clone(), event })
    }

    /// Records what the stream has to do so far.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn record(&self, stream: &Arc<CudaStream>) -> ResourceResult<()> {
        // SAFETY: both are alive.
        unsafe { result::event::record(self.event, stream.cu_stream()) }
            .map_err(|error| self.device.driver_error("cuEventRecord", error))
    }

    /// Makes a stream wait for what was recorded.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn hold(&self, stream: &Arc<CudaStream>) -> ResourceResult<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(stream.cu_stream(), self.event, flags) }
            .map_err(|error| self.device.driver_error("cuStreamWaitEvent", error))
    }

    /// Waits on the host.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn synchronize(&self) -> ResourceResult<()> {
        // SAFETY: it is alive.
        unsafe { result::event::synchronize(self.event) }
            .map_err(|error| self.device.driver_error("cuEventSynchronize", error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`; the driver keeps what still waits for it.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}

/// Fills memory with a byte.
///
/// # Errors
///
/// The driver's.
///
/// # Safety
///
/// `bytes` bytes at `ptr` are allocated until the work is done.
pub unsafe fn fill(
    device: &Device,
    ptr: u64,
    byte: u8,
    bytes: usize,
    stream: &Arc<CudaStream>,
) -> ResourceResult<()> {
    // SAFETY: the caller's promise; the stream is alive.
    unsafe { result::memset_d8_async(ptr, byte, bytes, stream.cu_stream()) }
        .map_err(|error| device.driver_error("cuMemsetD8Async", error))
}

/// Copies memory on the device.
///
/// # Errors
///
/// The driver's.
///
/// # Safety
///
/// `bytes` bytes at both addresses are allocated until the work is done.
pub unsafe fn copy(
    device: &Device,
    to: u64,
    from: u64,
    bytes: usize,
    stream: &Arc<CudaStream>,
) -> ResourceResult<()> {
    // SAFETY: the caller's promise; the stream is alive.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }
        .map_err(|error| device.driver_error("cuMemcpyDtoDAsync", error))
}
