//! A memory pool of the driver (`CUmemoryPool`), owned.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::result::{self, DriverError, mem_pool};
use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute};
use dmr_core::ResourceResult;
use dmr_streams::{Device, StreamGuard};

use crate::AsyncConfig;

/// A memory pool of the driver. Captures of other streams forbid all calls on it to a thread that
/// is not in relaxed mode. Dropping it does not wait: the driver keeps memory that is still in use.
pub(crate) struct DriverPool {
    device: Device,
    handle: sys::CUmemoryPool,
    pub(crate) max_bytes: Option<usize>,
}

// SAFETY: the driver's pool may be used from any thread, by any number at once.
unsafe impl Send for DriverPool {}
// SAFETY: as above.
unsafe impl Sync for DriverPool {}

/// A number of bytes, now and at its peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HighWater {
    /// Now.
    pub current: u64,
    /// The peak so far, or since the marks were reset.
    pub high: u64,
}

impl DriverPool {
    pub(crate) fn new(device: &Device, config: &AsyncConfig) -> ResourceResult<Self> {
        let properties = Properties::new(device, config);
        // SAFETY: the properties have the driver's layout.
        let create = || unsafe { mem_pool::create((&raw const properties).cast()) };
        let failed = |error| device.driver_error("cuMemPoolCreate", error);
        let handle = device.relaxed(|_| create().map_err(failed))?;
        let pool = Self { device: device.clone(), handle, max_bytes: config.max_bytes };
        pool.set_bytes(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, config.release_threshold)?;
        // The driver's own default is on.
        for (attribute, on) in [
            (
                Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                config.follow_event_dependencies,
            ),
            (Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, config.opportunistic_reuse),
            (
                Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
                config.internal_dependencies,
            ),
        ] {
            if !on {
                let mut off: c_int = 0;
                // SAFETY: this attribute's type is an int.
                unsafe { pool.set(attribute, (&raw mut off).cast()) }?;
            }
        }
        Ok(pool)
    }

    /// Allocates memory for work submitted to `stream` from now on.
    pub(crate) fn allocate(
        &self,
        bytes: usize,
        stream: &StreamGuard<'_>,
    ) -> Result<u64, DriverError> {
        // To the driver, a limit of 0 is none.
        if self.max_bytes == Some(0) {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        stream.call_relaxed(|stream| {
            let mut ptr = 0;
            // SAFETY: the pool is alive, and the stream while there is a guard.
            unsafe { sys::cuMemAllocFromPoolAsync(&mut ptr, bytes, self.handle, stream) }
                .result()?;
            Ok(ptr)
        })
    }

    /// Frees memory, after the work submitted to `stream` so far.
    ///
    /// # Safety
    ///
    /// The memory came from `allocate` and was not freed; the work on `stream` so far comes after
    /// every use of it.
    pub(crate) unsafe fn free(&self, ptr: u64, stream: &StreamGuard<'_>) -> ResourceResult<()> {
        // SAFETY: the caller's obligation; the call is repeated only if it has failed.
        let free = |stream| unsafe { result::free_async(ptr, stream) };
        stream.call_relaxed(free).map_err(|error| self.device.driver_error("cuMemFreeAsync", error))
    }

    /// Returns free memory to the device, but keeps `keep_bytes` bytes reserved. Memory whose free
    /// has not executed yet stays.
    pub(crate) fn trim_to(&self, keep_bytes: u64) -> ResourceResult<()> {
        let keep = usize::try_from(keep_bytes).unwrap_or(usize::MAX);
        // SAFETY: the pool is alive.
        self.call("cuMemPoolTrimTo", || unsafe { mem_pool::trim_to(self.handle, keep) })
    }

    /// Makes all memory of the pool accessible to another device, also what is allocated later.
    pub(crate) fn allow_access(&self, device_ordinal: usize) -> ResourceResult<()> {
        let access =
            AccessDescriptor { location: [DEVICE, device_ordinal as c_int], flags: READ_WRITE };
        let access = (&raw const access).cast();
        // SAFETY: the pool is alive, and the description has the driver's layout.
        let set = || unsafe { sys::cuMemPoolSetAccess(self.handle, access, 1) }.result();
        self.call("cuMemPoolSetAccess", set)
    }

    pub(crate) fn reserved(&self) -> ResourceResult<HighWater> {
        Ok(HighWater {
            current: self.reserved_now()?,
            high: self.bytes(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
        })
    }

    pub(crate) fn reserved_now(&self) -> ResourceResult<u64> {
        self.bytes(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    pub(crate) fn used(&self) -> ResourceResult<HighWater> {
        Ok(HighWater {
            current: self.bytes(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            high: self.bytes(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }

    pub(crate) fn reset_high_water_marks(&self) -> ResourceResult<()> {
        self.set_bytes(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        self.set_bytes(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
    }

    fn bytes(&self, attribute: Attribute) -> ResourceResult<u64> {
        let mut bytes: u64 = 0;
        let value = (&raw mut bytes).cast();
        // SAFETY: the pool is alive; the type of these attributes is a 64-bit integer.
        let get = || unsafe { mem_pool::get_attribute(self.handle, attribute, value) };
        self.call("cuMemPoolGetAttribute", get)?;
        Ok(bytes)
    }

    fn set_bytes(&self, attribute: Attribute, mut bytes: u64) -> ResourceResult<()> {
        // SAFETY: the type of these attributes is a 64-bit integer.
        unsafe { self.set(attribute, (&raw mut bytes).cast()) }
    }

    /// # Safety
    ///
    /// `value` points to a value of the attribute's type.
    unsafe fn set(&self, attribute: Attribute, value: *mut c_void) -> ResourceResult<()> {
        // SAFETY: the pool is alive; the value is the caller's obligation.
        let set = || unsafe { mem_pool::set_attribute(self.handle, attribute, value) };
        self.call("cuMemPoolSetAttribute", set)
    }

    /// Makes a driver call that captures of other streams forbid.
    fn call(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> ResourceResult<()> {
        self.device.relaxed(|_| call().map_err(|error| self.device.driver_error(name, error)))
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. Blocks that are not freed stay valid.
        let _ = self.call("cuMemPoolDestroy", || unsafe { mem_pool::destroy(self.handle) });
    }
}

/// `CUmemPoolProps` in the layout that every driver since CUDA 11.2 reads. The fields in the
/// bindings depend on their version; the layout does not.
#[repr(C)]
struct Properties {
    allocation_type: c_int,
    handle_types: c_int,
    location_type: c_int,
    location_id: c_int,
    security_attributes: *mut c_void,
    max_size: usize,
    reserved: [u8; 56],
}

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_uint = 3;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const DEVICE: c_int = 1;

/// `CUmemAccessDesc`, in the layout that every driver reads.
#[repr(C)]
struct AccessDescriptor {
    /// The type and the number of the location.
    location: [c_int; 2],
    /// `CUmemAccess_flags`.
    flags: c_uint,
}

const _: () = assert!(size_of::<AccessDescriptor>() == size_of::<sys::CUmemAccessDesc>());
const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemPoolProps>());

impl Properties {
    fn new(device: &Device, config: &AsyncConfig) -> Self {
        const PINNED: c_int = 1;
        Self {
            allocation_type: PINNED,
            handle_types: config.export.code(),
            location_type: DEVICE,
            location_id: device.context().cu_device(),
            security_attributes: std::ptr::null_mut(),
            max_size: config.max_bytes.unwrap_or(0),
            reserved: [0; 56],
        }
    }
}
