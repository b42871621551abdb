//! Why a device has no virtual memory of the kind that was asked for.

use dmr_core::ResourceError;

use crate::ExportHandle;

/// Why a [`VirtualCudaResource`](crate::VirtualCudaResource) could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VirtualMemoryError {
    /// The device, or the system it is in, does not let programs map memory.
    #[error(
        "device {device_ordinal} has no virtual memory management \
         (CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0): take another backend"
    )]
    #[non_exhaustive]
    NotSupported {
        /// CUDA device ordinal.
        device_ordinal: usize,
    },
    /// Mapped memory of this device cannot be reached by other devices.
    #[error(
        "device {device_ordinal} has no GPUDirect RDMA to mapped memory \
         (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED is 0): do without it"
    )]
    #[non_exhaustive]
    NoGpuDirectRdma {
        /// CUDA device ordinal.
        device_ordinal: usize,
    },
    /// Memory of this device cannot be exported in this way.
    #[error("device {device_ordinal} exports no memory as {export:?}: choose another way, or none")]
    #[non_exhaustive]
    NoExport {
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// What was asked for.
        export: ExportHandle,
    },
    /// The driver refused to say, or the device is gone.
    #[error(transparent)]
    Resource(#[from] ResourceError),
}
