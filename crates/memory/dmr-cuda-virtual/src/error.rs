//! The error of a device that lacks virtual memory as configured.

use dmr_core::ResourceError;

use crate::ExportHandle;

/// The reason why [`VirtualCudaResource::new`](crate::VirtualCudaResource::new) failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VirtualMemoryError {
    /// The device, or the system, has no virtual memory management.
    #[error(
        "device {device_ordinal} has no virtual memory management \
         (CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0): use another backend"
    )]
    #[non_exhaustive]
    NotSupported {
        /// CUDA device ordinal.
        device_ordinal: usize,
    },
    /// The device does not support GPUDirect RDMA to mapped memory.
    #[error(
        "device {device_ordinal} has no GPUDirect RDMA to mapped memory \
         (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED is 0): configure it off"
    )]
    #[non_exhaustive]
    NoGpuDirectRdma {
        /// CUDA device ordinal.
        device_ordinal: usize,
    },
    /// The device cannot export memory in this way.
    #[error(
        "device {device_ordinal} cannot export memory as {export:?}: choose another handle type, or none"
    )]
    #[non_exhaustive]
    NoExport {
        /// CUDA device ordinal.
        device_ordinal: usize,
        /// The configured way.
        export: ExportHandle,
    },
    /// A driver call failed, or the device is lost.
    #[error(transparent)]
    Resource(#[from] ResourceError),
}
