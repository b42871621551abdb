//! A slice of cudarc over memory that it does not own, for the time of a call.

#![allow(unsafe_code, reason = "makes a slice of an address, which cudarc must not free")]

use std::mem::ManuallyDrop;

use cudarc::driver::{CudaSlice, CudaViewMut};
use dmr_core::ResourceResult;
use dmr_slices::{OtherStreams, slice_at};

/// Memory of a launch as a slice on the launch's stream. Dropping it makes that stream wait for
/// uses on other streams, and frees nothing.
pub(crate) struct LentSlice<'s, T> {
    /// Never dropped as a slice, which would free the memory.
    slice: ManuallyDrop<CudaSlice<T>>,
    others: &'s OtherStreams<'s>,
}

impl<'s, T> LentSlice<'s, T> {
    /// Makes a slice of `len` elements, whose last write is the launch's work so far.
    ///
    /// # Safety
    ///
    /// The elements are at `ptr`, and any bytes are a value of `T`. They stay there while this
    /// exists, and until the launch's work is done.
    pub(crate) unsafe fn new(
        others: &'s OtherStreams<'s>,
        ptr: u64,
        len: usize,
    ) -> ResourceResult<Self> {
        others.use_on_own()?;
        others.set_cudarc_error_aside();
        // SAFETY: the caller's obligation; this leaks the slice.
        let slice = unsafe { slice_at(others.device(), others.launch_stream(), ptr, len) }?;
        Ok(Self { slice: ManuallyDrop::new(slice), others })
    }

    pub(crate) fn slice(&self) -> &CudaSlice<T> {
        &self.slice
    }

    pub(crate) fn view_mut(&mut self) -> CudaViewMut<'_, T> {
        self.slice.as_view_mut()
    }
}

impl<T> Drop for LentSlice<'_, T> {
    fn drop(&mut self) {
        // SAFETY: not used again. The launch's stream waits for the events of the last read and
        // write.
        unsafe { ManuallyDrop::take(&mut self.slice) }.leak();
        if let Err(error) = self.others.take_cudarc_error("cuStreamWaitEvent") {
            self.others.keep_unordered(error);
        }
    }
}
