//! Slices of cudarc that are made of memory, and the state in which cudarc keeps its errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, DriverError};
use dmr_core::ResourceResult;
use dmr_streams::Device;

/// Makes a slice of cudarc on `stream`, of memory that is allocated otherwise. Its last write
/// is the stream's work so far.
///
/// # Errors
///
/// [`Driver`](dmr_core::ResourceError::Driver).
///
/// # Safety
///
/// `len` elements are at `ptr`, and any bytes are a value of `T`. They stay there until the
/// slice is leaked, or it owns them.
pub unsafe fn slice_at<T>(
    device: &Device,
    stream: &Arc<CudaStream>,
    ptr: u64,
    len: usize,
) -> ResourceResult<CudaSlice<T>> {
    let context = stream.context();
    let earlier = context.check_err();
    let failed = |error| device.driver_error("cuEventCreate", error);
    // cudarc panics where it cannot create an event.
    // SAFETY: the caller's obligation.
    let make = || unsafe { stream.upgrade_device_ptr::<T>(ptr, len) };
    let made = context.new_event(None).map_err(failed).and_then(|_| {
        let unknown = DriverError(CUresult::CUDA_ERROR_UNKNOWN);
        catch_unwind(AssertUnwindSafe(make)).map_err(|_| failed(unknown))
    });
    let made = made.and_then(|mut slice| match record_write(device, &mut slice, stream) {
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
/// [`Driver`](dmr_core::ResourceError::Driver).
pub fn empty_slice<T>(device: &Device, stream: &Arc<CudaStream>) -> ResourceResult<CudaSlice<T>> {
    let context = stream.context();
    // cudarc would return an error that an earlier call has left behind.
    let earlier = context.check_err();
    let made = device.relaxed(|_| Ok(stream.null()));
    context.record_err(earlier);
    made?.map_err(|error| device.driver_error("cuMemAllocAsync", error))
}

/// Makes the work of `stream` so far the last write of a slice, as cudarc records it.
///
/// # Errors
///
/// [`Driver`](dmr_core::ResourceError::Driver).
pub fn record_write<T>(
    device: &Device,
    slice: &mut CudaSlice<T>,
    stream: &CudaStream,
) -> ResourceResult<()> {
    checked(stream.context(), || drop(slice.device_ptr_mut(stream)))
        .map_err(|error| device.driver_error("cuEventRecord", error))
}

/// Makes calls of cudarc that keep their errors in `context`, that of the stream that they use, and
/// returns such an error. An earlier one is put back, for the program: cudarc would not make the
/// calls, and would return it instead.
pub(crate) fn checked<T>(
    context: &CudaContext,
    calls: impl FnOnce() -> T,
) -> Result<T, DriverError> {
    let earlier = context.check_err();
    let returned = calls();
    let outcome = context.check_err();
    context.record_err(earlier);
    outcome.map(|()| returned)
}
