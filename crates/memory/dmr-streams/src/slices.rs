//! Slices of cudarc as blocks: adopted with their pending work, tracked, and given back.

mod adopted;
mod memory;
mod resource;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, DriverError};
use dmr_core::{
    AllocTag, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError, ResourceResult,
    StreamId,
};

use crate::{Device, DeviceContext, StreamPool};

pub(crate) use adopted::Adopted;
use memory::SliceMemory;
use resource::Slices;

/// The slices of cudarc that were adopted by a stream pool: a resource whose every block is a
/// [`CudaSlice`].
///
/// A block is a slice that was [adopted](Self::adopt), or one that
/// [`allocate`](DeviceMemoryResource::allocate) had cudarc allocate. Its uses are tracked. A slice
/// is freed as cudarc does: on its own stream, which waits for all uses of the block first; no
/// other stream waits, and the host does not. [`give_back`](Self::give_back) returns it.
///
/// All values for one stream pool are the same resource, which lives as long as the pool.
#[derive(Clone)]
pub struct CudaSlices {
    streams: Arc<StreamPool>,
    /// Itself, as a context's resource.
    resource: Arc<dyn DeviceMemoryResource>,
}

/// A slice that could not be adopted, as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[error("a slice of cudarc was not adopted: {error}")]
pub struct AdoptSliceError<T> {
    /// The reason.
    #[source]
    pub error: ResourceError,
    /// The slice.
    pub slice: CudaSlice<T>,
}

impl<T> AdoptSliceError<T> {
    /// Makes the error, with the slice inside.
    #[must_use]
    pub fn new(error: ResourceError, slice: CudaSlice<T>) -> Box<Self> {
        Box::new(Self { error, slice })
    }
}

impl CudaSlices {
    /// Returns the slices that are adopted by the streams of `context`.
    #[must_use]
    pub fn of<C: DeviceContext + ?Sized>(context: &C) -> Self {
        let streams = Arc::clone(context.streams());
        let resource = Arc::new(Slices::new(Arc::clone(&streams)));
        Self { streams, resource }
    }

    /// Adopts a slice as a block whose home stream is `home`. The next work on `home` comes after
    /// the work on the slice's own stream so far, and after the last read and the last write that
    /// cudarc has recorded.
    ///
    /// cudarc records one reader, the last: if several other streams read the slice, synchronise
    /// them first. With cudarc's event tracking disabled, also those that wrote it.
    ///
    /// # Errors
    ///
    /// The slice is in the error, as it was, except that streams may have been made to wait.
    /// [`InvalidSize`](ResourceError::InvalidSize) for a slice of no bytes, and for an address that
    /// is no multiple of 256 bytes; [`StreamMisuse`](ResourceError::StreamMisuse) for a slice of
    /// another context; [`StreamCapturing`](ResourceError::StreamCapturing) if either stream
    /// captures a graph; [`Driver`](ResourceError::Driver).
    pub fn adopt<T>(
        &self,
        mut slice: CudaSlice<T>,
        home: StreamId,
        tag: AllocTag,
    ) -> Result<DeviceBlock, Box<AdoptSliceError<T>>> {
        match self.streams.insert_slice(&mut slice, home) {
            Ok(place) => Ok(self.streams.hold_slice(SliceMemory::of(slice), place, tag)),
            Err(error) => Err(AdoptSliceError::new(error, slice)),
        }
    }

    /// Gives a block back as a slice of its first `len` elements, whose stream waits for all uses
    /// of the block, and for the work on the home stream. cudarc orders its later uses on other
    /// streams after that. The slice owns all memory of the block, whatever its length.
    ///
    /// # Errors
    ///
    /// The block is in the error, and is as it was. [`OutOfBounds`](ResourceError::OutOfBounds) for
    /// more elements than the block has bytes for; [`ForeignBlock`](ResourceError::ForeignBlock)
    /// for a block of another resource; [`WindowConflict`](ResourceError::WindowConflict) if a
    /// launch that uses it is prepared; [`StreamCapturing`](ResourceError::StreamCapturing);
    /// [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// Any bytes are a value of `T`.
    pub unsafe fn give_back<T>(
        &self,
        block: DeviceBlock,
        len: usize,
    ) -> Result<CudaSlice<T>, Box<DeallocateError>> {
        // SAFETY: the caller's obligation.
        match unsafe { self.streams.give_slice_back(&block, len) } {
            Ok(slice) => Ok(slice),
            Err(error) => Err(DeallocateError::new(error, block)),
        }
    }
}

impl Device {
    /// Makes a slice of cudarc on `stream`, of memory that is allocated otherwise. Its last write
    /// is the stream's work so far.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// `len` elements are at `ptr`, and any bytes are a value of `T`. They stay there until the
    /// slice is leaked, or it owns them.
    pub unsafe fn slice_at<T>(
        &self,
        stream: &Arc<CudaStream>,
        ptr: u64,
        len: usize,
    ) -> ResourceResult<CudaSlice<T>> {
        let context = stream.context();
        let earlier = context.check_err();
        let failed = |error| self.driver_error("cuEventCreate", error);
        // cudarc panics where it cannot create an event.
        // SAFETY: the caller's obligation.
        let make = || unsafe { stream.upgrade_device_ptr::<T>(ptr, len) };
        let made = context.new_event(None).map_err(failed).and_then(|_| {
            let unknown = DriverError(CUresult::CUDA_ERROR_UNKNOWN);
            catch_unwind(AssertUnwindSafe(make)).map_err(|_| failed(unknown))
        });
        let made = made.and_then(|mut slice| match self.record_write(&mut slice, stream) {
            Ok(()) => Ok(slice),
            Err(error) => {
                slice.leak();
                Err(error)
            }
        });
        context.record_err(earlier);
        made
    }

    /// Makes a slice of cudarc on `stream` that has no elements.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn empty_slice<T>(&self, stream: &Arc<CudaStream>) -> ResourceResult<CudaSlice<T>> {
        let context = stream.context();
        // cudarc would return an error that an earlier call has left behind.
        let earlier = context.check_err();
        let made = self.relaxed(|_| Ok(stream.null()));
        context.record_err(earlier);
        made?.map_err(|error| self.driver_error("cuMemAllocAsync", error))
    }

    /// Makes the work of `stream` so far the last write of a slice, as cudarc records it.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    pub fn record_write<T>(
        &self,
        slice: &mut CudaSlice<T>,
        stream: &CudaStream,
    ) -> ResourceResult<()> {
        checked(stream.context(), || drop(slice.device_ptr_mut(stream)))
            .map_err(|error| self.driver_error("cuEventRecord", error))
    }
}

/// Makes calls of cudarc that keep their errors in `context`, that of the stream that they use, and
/// returns such an error. An earlier one is put back, for the program: cudarc would not make the
/// calls, and would return it instead.
fn checked<T>(context: &CudaContext, calls: impl FnOnce() -> T) -> Result<T, DriverError> {
    let earlier = context.check_err();
    let returned = calls();
    let outcome = context.check_err();
    context.record_err(earlier);
    outcome.map(|()| returned)
}

impl DeviceContext for CudaSlices {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

impl fmt::Debug for CudaSlices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CudaSlices").field(&self.resource).finish()
    }
}
