//! What memory can do that is created: it cannot be changed later.

/// How a [`VirtualCudaResource`](crate::VirtualCudaResource) creates memory.
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
    /// How other processes can be given this memory.
    pub export: ExportHandle,
    /// Whether network cards and other devices may reach this memory without the host (GPUDirect
    /// RDMA).
    pub gpu_direct_rdma: bool,
}

/// How memory can be shared with other processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExportHandle {
    /// Not at all.
    #[default]
    None,
    /// As a file descriptor (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`):
    /// [`export`](crate::VirtualCudaResource::export).
    PosixFileDescriptor,
    /// As a fabric handle, on systems with an IMEX channel (`CU_MEM_HANDLE_TYPE_FABRIC`), by the
    /// driver's own call on [`handle`](dmr_core::PhysicalMemory::handle).
    Fabric,
}

impl VirtualConfig {
    /// Exports nothing, and is reached by the device alone.
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
    /// The driver's number.
    pub(crate) const fn code(self) -> i32 {
        match self {
            Self::None => 0,
            Self::PosixFileDescriptor => 1,
            Self::Fabric => 8,
        }
    }
}
