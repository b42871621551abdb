//! The memory of a slice of cudarc: allocated and freed as cudarc does, but without ending a
//! capture.

use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaSlice, CudaStream};
use dmr_core::ResourceResult;
use dmr_streams::Device;

use crate::slice::checked;

/// The memory of a slice of cudarc, without cudarc's events. Dropping it frees nothing.
pub(crate) struct SliceMemory {
    pub(crate) ptr: u64,
    pub(crate) bytes: u64,
    /// The slice's own stream, on which it is freed.
    pub(crate) stream: Arc<CudaStream>,
}

impl SliceMemory {
    /// Takes the memory out of a slice. cudarc makes the slice's stream wait for the last read and
    /// the last write.
    pub(crate) fn of<T>(slice: CudaSlice<T>) -> Self {
        let bytes = slice.num_bytes() as u64;
        let stream = Arc::clone(slice.stream());
        let mut ptr = 0;
        // Nothing depends on these waits: the home stream has waited for the same events.
        let _: Result<(), DriverError> = checked(stream.context(), || ptr = slice.leak());
        Self { ptr, bytes, stream }
    }

    /// Allocates memory on `stream`, which is of the device's context.
    pub(crate) fn allocate(
        device: &Device,
        bytes: usize,
        stream: &Arc<CudaStream>,
    ) -> ResourceResult<Result<Self, DriverError>> {
        let on = stream.cu_stream();
        let allocated = device.relaxed(|_| {
            Ok(match stream.context().has_async_alloc() {
                // SAFETY: the stream is alive, and of the current context.
                true => unsafe { result::malloc_async(on, bytes) },
                // SAFETY: the context is current.
                false => unsafe { result::malloc_sync(bytes) },
            })
        })?;
        Ok(allocated.map(|ptr| Self { ptr, bytes: bytes as u64, stream: Arc::clone(stream) }))
    }

    /// Frees the memory on its stream. It is as it was if the driver refuses.
    ///
    /// # Safety
    ///
    /// The memory is neither freed nor given away, and is used by no work but such as the stream
    /// comes after.
    pub(crate) unsafe fn free(&self, device: &Device) -> ResourceResult<()> {
        let on = self.stream.cu_stream();
        let failed = |call| move |error| device.driver_error(call, error);
        device.relaxed(|_| match self.stream.context().has_async_alloc() {
            // SAFETY: the stream is alive; the caller's obligation.
            true => unsafe { result::free_async(self.ptr, on) }.map_err(failed("cuMemFreeAsync")),
            false => {
                // SAFETY: the stream is alive.
                unsafe { result::stream::synchronize(on) }
                    .map_err(failed("cuStreamSynchronize"))?;
                // SAFETY: the stream's work is done; the caller's obligation.
                unsafe { result::free_sync(self.ptr) }.map_err(failed("cuMemFree"))
            }
        })
    }
}
