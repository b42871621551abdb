//! Memory, events and work straight from the driver: what a program without a library has.

use std::sync::Arc;

use cudarc::driver::{CudaStream, result, sys};
use dmr_core::ResourceResult;
use dmr_streams::{Device, StreamLease};

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

    /// Waits for the device and returns the content.
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
        // A destructor cannot return the error.
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

/// A pool of the driver that keeps what it has, destroyed when dropped.
#[derive(Debug)]
pub struct DriverPool {
    device: Device,
    pool: sys::CUmemoryPool,
}

/// `CUmemPoolProps`. The bindings' own fields differ from one CUDA version to the next, the layout
/// does not.
#[repr(C)]
struct PoolProperties {
    allocation_type: u32,
    handle_types: u32,
    location_type: u32,
    location: i32,
    /// No limit, and nothing else that would be asked for.
    rest: [u64; 9],
}

const _: () = assert!(size_of::<PoolProperties>() == size_of::<sys::CUmemPoolProps>());

impl DriverPool {
    /// Creates one on this device, for no other process.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn new(device: &Device) -> ResourceResult<Self> {
        device.bind()?;
        let properties = PoolProperties {
            allocation_type: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32,
            handle_types: 0,
            location_type: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32,
            location: device.context().cu_device(),
            rest: [0; 9],
        };
        // SAFETY: laid out as the driver reads them, and alive during the call.
        let pool = unsafe { result::mem_pool::create((&raw const properties).cast()) }
            .map_err(|error| device.driver_error("cuMemPoolCreate", error))?;
        let pool = Self { device: device.clone(), pool };
        let mut threshold = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute's type is 64 bits without a sign.
        unsafe {
            result::mem_pool::set_attribute(pool.pool, attribute, (&raw mut threshold).cast())
        }
        .map_err(|error| device.driver_error("cuMemPoolSetAttribute", error))?;
        Ok(pool)
    }

    /// One allocation.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn allocate(&self, bytes: usize, stream: &Arc<CudaStream>) -> ResourceResult<u64> {
        let mut ptr = 0;
        // SAFETY: pool and stream are alive, the result goes to a variable.
        unsafe {
            sys::cuMemAllocFromPoolAsync(&mut ptr, bytes, self.pool, stream.cu_stream()).result()
        }
        .map_err(|error| self.device.driver_error("cuMemAllocFromPoolAsync", error))?;
        Ok(ptr)
    }

    /// Its free.
    ///
    /// # Errors
    ///
    /// The driver's.
    ///
    /// # Safety
    ///
    /// The address came from `allocate` and is freed once, after its last use in the order of the
    /// stream.
    pub unsafe fn free(&self, ptr: u64, stream: &Arc<CudaStream>) -> ResourceResult<()> {
        // SAFETY: the caller's promise; the stream is alive.
        unsafe { result::free_async(ptr, stream.cu_stream()) }
            .map_err(|error| self.device.driver_error("cuMemFreeAsync", error))
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        // SAFETY: created by `new`; all frees are done.
        let _ = unsafe { result::mem_pool::destroy(self.pool) };
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
    stream: &StreamLease,
) -> ResourceResult<()> {
    // SAFETY: the caller's promise; the stream is alive.
    let fill = |on| unsafe { result::memset_d8_async(ptr, byte, bytes, on) };
    stream
        .pool()
        .enter(stream.id())?
        .call(fill)
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
    stream: &StreamLease,
) -> ResourceResult<()> {
    // SAFETY: the caller's promise; the stream is alive.
    let copy = |on| unsafe { result::memcpy_dtod_async(to, from, bytes, on) };
    stream
        .pool()
        .enter(stream.id())?
        .call(copy)
        .map_err(|error| device.driver_error("cuMemcpyDtoDAsync", error))
}
