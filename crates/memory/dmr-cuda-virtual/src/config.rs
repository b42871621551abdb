//! Properties of created memory, which cannot be changed later.

/// The settings with which a [`VirtualCudaResource`](crate::VirtualCudaResource) creates memory.
///
/// ```
/// use dmr_cuda_virtual::{ExportHandle, VirtualConfig};
///
/// let config = VirtualConfig::new().with_export(ExportHandle::PosixFileDescriptor);
/// assert!(!config.gpu_direct_rdma);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VirtualConfig {
    /// The way to share memory with other processes.
    pub export: ExportHandle,
    /// If true, other devices, such as network cards, can access the memory directly (GPUDirect
    /// RDMA).
    pub gpu_direct_rdma: bool,
}

/// A way to share memory with other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExportHandle {
    /// Memory cannot be shared.
    #[default]
    None,
    /// A file descriptor (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`), from
    /// [`export`](crate::VirtualCudaResource::export).
    PosixFileDescriptor,
    /// A fabric handle, on systems with an IMEX channel (`CU_MEM_HANDLE_TYPE_FABRIC`). Export it
    /// with the driver's call on [`handle`](dmr_core::PhysicalMemory::handle).
    Fabric,
}

impl VirtualConfig {
    /// Returns the default: no sharing, and no access by other devices.
    #[must_use]
    pub const fn new() -> Self {
        Self { export: ExportHandle::None, gpu_direct_rdma: false }
    }

    /// Sets [`export`](Self::export).
    #[must_use]
    pub const fn with_export(mut self, export: ExportHandle) -> Self {
        self.export = export;
        self
    }

    /// Sets [`gpu_direct_rdma`](Self::gpu_direct_rdma).
    #[must_use]
    pub const fn with_gpu_direct_rdma(mut self, on: bool) -> Self {
        self.gpu_direct_rdma = on;
        self
    }
}

impl ExportHandle {
    /// Returns the driver's `CUmemAllocationHandleType`.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::PosixFileDescriptor => 1,
            Self::Fabric => 8,
        }
    }
}
