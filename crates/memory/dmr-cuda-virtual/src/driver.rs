//! The driver calls of this crate, one function each, made in the device's context.

use std::ffi::{c_int, c_uint};
use std::iter;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use dmr_core::{ResourceError, ResourceResult};
use dmr_streams::Device;

use crate::{ExportHandle, VirtualConfig, VirtualMemoryError};

/// Virtual memory management on one device.
pub(crate) struct Driver {
    device: Device,
    properties: Properties,
    granularity: u64,
}

impl Driver {
    pub(crate) fn new(device: &Device, config: VirtualConfig) -> Result<Self, VirtualMemoryError> {
        device.bind()?;
        let device_ordinal = device.ordinal();
        let has = |attribute| has(device, attribute);
        if !has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
            return Err(VirtualMemoryError::NotSupported { device_ordinal });
        }
        if config.gpu_direct_rdma
            && !has(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?
        {
            return Err(VirtualMemoryError::NoGpuDirectRdma { device_ordinal });
        }
        let properties = Properties::new(device, config);
        let granularity = granularity(device, &properties);
        let no_export = || VirtualMemoryError::NoExport { device_ordinal, export: config.export };
        match config.export {
            ExportHandle::None => {}
            ExportHandle::PosixFileDescriptor => {
                use Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as Fd;
                if !has(Fd)? {
                    return Err(no_export());
                }
            }
            // Some bindings lack the attribute. A driver without fabric handles refuses the
            // properties.
            ExportHandle::Fabric if granularity.is_err() => return Err(no_export()),
            ExportHandle::Fabric => {}
        }
        let granularity = granularity?;
        Ok(Self { device: device.clone(), properties, granularity })
    }

    /// Returns what sizes and addresses are multiples of, in bytes.
    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Reserves `bytes` bytes of addresses and returns the first.
    pub(crate) fn reserve(&self, bytes: u64) -> ResourceResult<u64> {
        self.device.bind()?;
        let mut base = 0;
        // SAFETY: the driver checks its arguments.
        unsafe { sys::cuMemAddressReserve(&mut base, bytes as usize, 0, 0, 0) }
            .result()
            .map_err(|error| self.device.driver_error("cuMemAddressReserve", error))?;
        Ok(base)
    }

    /// Releases reserved addresses.
    ///
    /// # Safety
    ///
    /// They are one range from [`reserve`](Self::reserve), which is not used any more.
    pub(crate) unsafe fn release(&self, base: u64, bytes: u64) -> ResourceResult<()> {
        self.release_call("cuMemAddressFree", || {
            // SAFETY: the caller's obligations.
            unsafe { sys::cuMemAddressFree(base, bytes as usize) }.result()
        })
    }

    /// Creates `bytes` bytes of device memory and returns its handle; `None` if the device has too
    /// little.
    pub(crate) fn create(&self, bytes: u64) -> ResourceResult<Option<u64>> {
        self.device.bind()?;
        let mut handle = 0;
        let properties = (&raw const self.properties).cast();
        // SAFETY: the properties have the driver's layout.
        let created = unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties, 0) };
        match created.result() {
            Ok(()) => Ok(Some(handle)),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
            Err(error) => Err(self.device.driver_error("cuMemCreate", error)),
        }
    }

    /// Releases memory.
    ///
    /// # Safety
    ///
    /// The handle is from [`create`](Self::create), mapped nowhere, and not used any more.
    pub(crate) unsafe fn destroy(&self, handle: u64) -> ResourceResult<()> {
        self.release_call("cuMemRelease", || {
            // SAFETY: the caller's obligations.
            unsafe { sys::cuMemRelease(handle) }.result()
        })
    }

    /// Maps memory at addresses.
    ///
    /// # Safety
    ///
    /// The handle exists and has `bytes` bytes. The addresses are in one reserved range.
    pub(crate) unsafe fn map(&self, handle: u64, bytes: u64, address: u64) -> ResourceResult<()> {
        self.device.bind()?;
        // SAFETY: the caller's obligations.
        unsafe { sys::cuMemMap(address, bytes as usize, 0, handle, 0) }
            .result()
            .map_err(|error| self.device.driver_error("cuMemMap", error))
    }

    /// Makes what is mapped at addresses accessible to the device and to `peers`, by their
    /// ordinals.
    ///
    /// # Safety
    ///
    /// They are exactly one mapping, and the context is current.
    pub(crate) unsafe fn set_access(
        &self,
        bytes: u64,
        address: u64,
        peers: &[usize],
    ) -> ResourceResult<()> {
        let own = AccessDescriptor { location: self.properties.location, flags: READ_WRITE };
        let peers = peers.iter().map(|&peer| AccessDescriptor {
            location: [own.location[0], peer as c_int],
            flags: READ_WRITE,
        });
        let access: Vec<_> = iter::once(own).chain(peers).collect();
        let descriptors = access.as_ptr().cast();
        let count = access.len();
        // SAFETY: the descriptions have the driver's layout; the rest is the caller's obligation.
        unsafe { sys::cuMemSetAccess(address, bytes as usize, descriptors, count) }
            .result()
            .map_err(|error| self.device.driver_error("cuMemSetAccess", error))
    }

    /// Unmaps addresses. Does not wait.
    ///
    /// # Safety
    ///
    /// They are exactly one mapping, and all work that uses them is done.
    pub(crate) unsafe fn unmap(&self, bytes: u64, address: u64) -> ResourceResult<()> {
        self.release_call("cuMemUnmap", || {
            // SAFETY: the caller's obligations.
            unsafe { sys::cuMemUnmap(address, bytes as usize) }.result()
        })
    }

    /// Exports memory as a file descriptor.
    ///
    /// # Safety
    ///
    /// The handle exists.
    #[cfg(unix)]
    pub(crate) unsafe fn export(&self, handle: u64) -> ResourceResult<std::os::fd::OwnedFd> {
        use std::os::fd::{FromRawFd, OwnedFd};
        use sys::CUmemAllocationHandleType as Type;
        const FD: Type = Type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        self.device.bind()?;
        let mut fd: c_int = -1;
        // SAFETY: for this handle type the driver writes an int; the handle is the caller's
        // obligation.
        unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), handle, FD, 0) }
            .result()
            .map_err(|error| self.device.driver_error("cuMemExportToShareableHandle", error))?;
        // SAFETY: the driver has just opened it, and no other value owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Makes a call that releases something. Succeeds on a lost device, where it is gone with the
    /// context.
    fn release_call(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<(), DriverError>,
    ) -> ResourceResult<()> {
        let released = self
            .device
            .bind()
            .and_then(|()| call().map_err(|error| self.device.driver_error(name, error)));
        match released {
            Err(ResourceError::DeviceLost { .. }) => Ok(()),
            result => result,
        }
    }
}

/// Returns whether the device has an attribute that is 0 or 1.
fn has(device: &Device, attribute: Attribute) -> ResourceResult<bool> {
    // SAFETY: the device comes from the driver.
    let value = unsafe {
        cudarc::driver::result::device::get_attribute(device.context().cu_device(), attribute)
    };
    match value {
        Ok(value) => Ok(value != 0),
        // An older driver, which has no such attribute.
        Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)) => Ok(false),
        Err(error) => Err(device.driver_error("cuDeviceGetAttribute", error)),
    }
}

fn granularity(device: &Device, properties: &Properties) -> ResourceResult<u64> {
    use sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as MINIMUM;
    let mut bytes = 0;
    let properties = (&raw const *properties).cast();
    // SAFETY: the properties have the driver's layout.
    unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, properties, MINIMUM) }
        .result()
        .map_err(|error| device.driver_error("cuMemGetAllocationGranularity", error))?;
    Ok(bytes as u64)
}

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: c_uint = 3;

/// `CUmemLocation`.
type Location = [c_int; 2];

/// `CUmemAccessDesc` in the layout that every driver reads. The fields in the bindings depend on
/// their version; the layout does not.
#[derive(Clone, Copy)]
#[repr(C)]
struct AccessDescriptor {
    location: Location,
    flags: c_uint,
}

/// `CUmemAllocationProp`, defined here for the same reason.
#[repr(C)]
struct Properties {
    allocation_type: c_int,
    handle_types: c_int,
    location: Location,
    security_attributes: usize,
    compression_type: u8,
    gpu_direct_rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<AccessDescriptor>() == size_of::<sys::CUmemAccessDesc>());
const _: () = assert!(size_of::<Properties>() == size_of::<sys::CUmemAllocationProp>());

impl Properties {
    fn new(device: &Device, config: VirtualConfig) -> Self {
        const PINNED: c_int = 1;
        const DEVICE: c_int = 1;
        Self {
            allocation_type: PINNED,
            handle_types: config.export.code(),
            location: [DEVICE, device.context().cu_device()],
            security_attributes: 0,
            compression_type: 0,
            gpu_direct_rdma_capable: u8::from(config.gpu_direct_rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }
}
