//! The memory of a slice of cudarc: allocated and freed as cudarc does, but without ending a
//! capture.

use std::mem;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaSlice, CudaStream};
use dmr_core::{ResourceError, ResourceResult, Usage};
use dmr_external::AdoptedMemory;
use dmr_streams::{Dependencies, Device, StreamGuard, StreamPool};

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
    fn allocate_on(
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
    unsafe fn free(&self, device: &Device) -> ResourceResult<()> {
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

    /// Makes the slice's stream, which captures no graph, wait for these uses.
    pub(crate) fn order_after(
        &self,
        streams: &StreamPool,
        after: &Dependencies,
    ) -> ResourceResult<()> {
        let device = streams.device();
        device.bind()?;
        device.refuse_capture_of(&self.stream)?;
        for event in streams.uses().events_of(after)? {
            event.make_other_wait(&self.stream)?;
        }
        Ok(())
    }
}

// SAFETY: address and size are those of an allocation of the driver on the home stream, which is
// freed with it.
unsafe impl AdoptedMemory for SliceMemory {
    const NAME: &'static str = "CudaSlices";
    const IS_FREED_IN_ORDER: bool = true;

    fn ptr(&self) -> u64 {
        self.ptr
    }

    fn bytes(&self) -> usize {
        self.bytes as usize
    }

    fn allocate(
        bytes: usize,
        home: &StreamGuard<'_>,
        usage: impl FnOnce() -> Usage,
    ) -> ResourceResult<Self> {
        let device = home.device();
        let allocated = Self::allocate_on(device, bytes, home.stream())?;
        let memory = allocated.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let memory = device.memory_info().unwrap_or_default();
                ResourceError::out_of_memory(bytes, device.ordinal(), memory, &usage())
            }
            _ => device.driver_error("cuMemAllocAsync", error),
        })?;
        // The graph of a capture that has begun meanwhile may have the memory, and may free it
        // then. Memory that is older than the capture cannot be freed in it, and is not the
        // graph's.
        if let Err(refusal) = home.refuse_capture()
            // SAFETY: just allocated, and used by no work.
            && unsafe { memory.free(device) }.is_ok()
        {
            return Err(refusal);
        }
        Ok(memory)
    }

    unsafe fn free_in_order(
        &self,
        streams: &StreamPool,
        after: &Dependencies,
    ) -> ResourceResult<()> {
        self.order_after(streams, after)?;
        // SAFETY: no window uses it, by this function's contract, and its stream comes after all
        // uses.
        unsafe { self.free(streams.device()) }
    }

    /// Leaks the stream: dropping it would make driver calls.
    fn end_on_lost_device(self) {
        mem::forget(self);
    }
}
