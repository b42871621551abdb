//! Views: what cudarc's wrappers take for memory of a launch, while its closure runs.

#![allow(
    unsafe_code,
    reason = "implements cudarc's traits for kernel arguments, and lends cudarc's slices"
)]

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs,
    PushKernelArg, SyncOnDrop,
};
use dmr_core::ResourceResult;
use dmr_slices::OtherStreams;
use dmr_streams::{KernelArg, MemoryOrigin, TypedMemory};

use crate::lent::LentSlice;

/// Memory that a launch reads, for cudarc's wrappers: cuBLAS, cuDNN, cuRAND, copies.
///
/// From [`launch_with`](crate::LaunchRecorder::launch_with), for the time of its closure.
/// Implements cudarc's [`DevicePtr`], and is an argument of a kernel:
/// `launch_builder(..).arg(&view)`. A kernel that takes it is launched on the launch's stream.
///
/// # Another stream
///
/// A wrapper may use it on another stream than the launch's, say that of a cuBLAS handle. That
/// stream waits for the launch's work so far, and the launch's stream waits for the use: at the
/// latest when the closure ends, and before the next use of any view. Kernel arguments are such
/// uses when they are added.
///
/// What cannot be ordered is an error of the launch
/// ([`LaunchError::View`](crate::LaunchError::View)): a stream that captures a graph and one of
/// another context get a null address instead of the memory's; where an event cannot be recorded,
/// the device is synchronised. cudarc's guard ([`SyncOnDrop`]) must be dropped inside of the
/// closure: one that was forgotten has the same consequence. Without cudarc's event tracking the
/// guard synchronises the other stream.
///
/// cudarc's copy between two contexts (`memcpy_dtod`) does not use the view on the stream that
/// copies, so it is not ordered: use a copy of a buffer.
pub struct LaunchView<'s, T> {
    arg: KernelArg,
    len: usize,
    others: &'s OtherStreams<'s>,
    elements: PhantomData<&'s [T]>,
}

/// Memory that a launch writes, or reads and writes, for cudarc's wrappers.
///
/// As [`LaunchView`]; implements [`DevicePtrMut`], too. cudarc's copies between the device and the
/// host take pinned memory [as such](Self::as_pinned).
pub struct LaunchViewMut<'s, T> {
    view: LaunchView<'s, T>,
    is_pinned: bool,
    elements: PhantomData<&'s mut [T]>,
}

impl<'s, T> LaunchView<'s, T> {
    /// Makes a view of memory that the launch on these streams has recorded.
    pub(crate) fn new<M>(memory: &M, others: &'s OtherStreams<'s>) -> Self
    where
        M: TypedMemory<Element = T> + ?Sized,
    {
        let arg = KernelArg::of(memory);
        let len = memory.len();
        Self { arg, len, others, elements: PhantomData }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lends the memory as a slice of cudarc, for a function that takes no other type.
    ///
    /// The slice belongs to the launch's stream. Uses on other streams come after the launch's work
    /// so far, and the launch's stream waits for them, as cudarc orders them: it remembers one
    /// reader of a slice, the last, so use it on at most one other stream. Without cudarc's event
    /// tracking, use it on no other stream.
    ///
    /// A clone of the slice is a copy, and may be kept.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver);
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing). `use_slice` was not called.
    pub fn lend<R>(&self, use_slice: impl FnOnce(&CudaSlice<T>) -> R) -> ResourceResult<R> {
        // SAFETY: the memory is that of the view, which outlives the call.
        let lent = unsafe { LentSlice::new(self.others, self.arg.device_ptr(), self.len) }?;
        Ok(use_slice(lent.slice()))
    }

    /// Returns the address for the next work on `stream`, and the guard that records it.
    fn address<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        match self.others.use_on(stream) {
            Some(guard) => (self.arg.device_ptr(), guard),
            None => (0, SyncOnDrop::Record(None)),
        }
    }

    /// Returns the argument for a kernel on the launch's stream.
    fn as_arg(&self) -> &KernelArg {
        if let Err(error) = self.others.use_on_own() {
            self.others.keep(error);
        }
        &self.arg
    }
}

impl<'s, T> LaunchViewMut<'s, T> {
    pub(crate) fn new<M>(memory: &M, others: &'s OtherStreams<'s>) -> Self
    where
        M: TypedMemory<Element = T> + ?Sized,
    {
        let is_pinned = matches!(memory.origin(), MemoryOrigin::Pinned(_));
        Self { view: LaunchView::new(memory, others), is_pinned, elements: PhantomData }
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.len == 0
    }

    /// Returns whether it is pinned memory, whose address is also the host's.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Returns the address for the next work on `stream`, and the guard that records it.
    pub(crate) fn address<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.view.address(stream)
    }

    /// Returns a view for reading, which borrows this one.
    #[must_use]
    pub fn as_view(&self) -> LaunchView<'_, T> {
        self.view
    }

    /// Lends the memory as cudarc's view for writing, as [`LaunchView::lend`] does. Not as a
    /// `&mut CudaSlice`, which could be exchanged for another one.
    ///
    /// # Errors
    ///
    /// As [`LaunchView::lend`].
    pub fn lend_mut<R>(
        &mut self,
        use_view: impl FnOnce(CudaViewMut<'_, T>) -> R,
    ) -> ResourceResult<R> {
        let view = &self.view;
        // SAFETY: the memory is that of the view, which outlives the call.
        let mut lent = unsafe { LentSlice::new(view.others, view.arg.device_ptr(), view.len) }?;
        Ok(use_view(lent.view_mut()))
    }
}

impl<T> Clone for LaunchView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LaunchView<'_, T> {}

impl<T> DeviceSlice<T> for LaunchView<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.others.launch_stream()
    }
}

impl<T> DeviceSlice<T> for LaunchViewMut<'_, T> {
    fn len(&self) -> usize {
        self.view.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.view.others.launch_stream()
    }
}

impl<T> DevicePtr<T> for LaunchView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.address(stream)
    }
}

impl<T> DevicePtr<T> for LaunchViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.address(stream)
    }
}

impl<T> DevicePtrMut<T> for LaunchViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.address(stream)
    }
}

// SAFETY: adds the address of a `KernelArg`, which is how kernels take pointers, and which lives as
// long as the borrow.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b LaunchView<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b LaunchView<'_, T>) -> &mut Self {
        self.arg(view.as_arg())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b LaunchViewMut<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b LaunchViewMut<'_, T>) -> &mut Self {
        self.arg(view.view.as_arg())
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut LaunchViewMut<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, view: &'b mut LaunchViewMut<'_, T>) -> &mut Self {
        self.arg(view.view.as_arg())
    }
}

impl<T> fmt::Debug for LaunchView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchView")
            .field("arg", &self.arg)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for LaunchViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LaunchViewMut").field(&self.view).finish()
    }
}
