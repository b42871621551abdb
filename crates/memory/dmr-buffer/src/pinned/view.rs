//! Views of pinned memory, or of a part of it.

use std::ptr::{self, with_exposed_provenance_mut};
use std::slice;

use bytemuck::Pod;
use dmr_core::StreamId;
use dmr_pinned::PinnedMemory;
use dmr_streams::TrackedMemory;

use crate::transfer;
use crate::view::{View, ViewMut};
use crate::{BufferError, DeviceView, DeviceViewMut};

/// A view of elements in pinned memory, for copies to the device. `Copy`.
///
/// A use of it is a use of these elements: uses of disjoint parts of one buffer neither conflict
/// nor wait for each other. It gives the host no access to the elements, which the device may use
/// meanwhile.
pub type PinnedView<'a, T> = View<'a, T, PinnedMemory>;

/// A mutable view of elements in pinned memory, for copies in both directions and for the host. No
/// other view of these elements exists while it is used.
///
/// The host waits for the uses of these elements, and for no others: one part can be filled while
/// the device reads another.
///
/// Elements are in one mutable view at most:
///
/// ```compile_fail,E0499
/// # use dmr_buffer::PinnedBuffer;
/// fn twice(buffer: &mut PinnedBuffer<u32>) {
///     let first = buffer.slice_mut(..4).unwrap();
///     let second = buffer.slice_mut(2..).unwrap();
///     drop((first, second));
/// }
/// ```
///
/// and no copy can be submitted while the host has a slice of them:
///
/// ```compile_fail,E0502
/// # use dmr_buffer::{DeviceBuffer, PinnedBuffer};
/// # use dmr_core::StreamId;
/// fn while_the_host_writes(buffer: &mut PinnedBuffer<u32>, target: &mut DeviceBuffer<u32>) {
///     let host = buffer.as_mut_slice().unwrap();
///     buffer.copy_to_device(target, StreamId::DEFAULT).unwrap();
///     host[0] = 1;
/// }
/// ```
pub type PinnedViewMut<'a, T> = ViewMut<'a, T, PinnedMemory>;

impl<T: Pod> PinnedView<'_, T> {
    /// Copies the elements to as many on the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// [`PinnedLengthMismatch`](BufferError::PinnedLengthMismatch);
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn copy_to_device<'t>(
        &self,
        target: impl Into<DeviceViewMut<'t, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let target = target.into();
        self.check_len(target.len())?;
        transfer::copy_pinned(target.as_view().span(), self.span(), stream.into())
    }

    /// Returns the host's address of the elements, which is the device's.
    pub(crate) fn start(&self) -> *mut T {
        match self.memory() {
            None => ptr::dangling_mut(),
            Some(_) => with_exposed_provenance_mut(self.device_ptr() as usize),
        }
    }

    fn check_len(&self, device_len: usize) -> Result<(), BufferError> {
        if self.len() == device_len {
            Ok(())
        } else {
            Err(BufferError::PinnedLengthMismatch { pinned_len: self.len(), device_len })
        }
    }
}

impl<'a, T: Pod> PinnedViewMut<'a, T> {
    /// Returns the elements, once every recorded use of them is done. Waits for that.
    ///
    /// # Errors
    ///
    /// [`InUse`](BufferError::InUse) while a launch that uses one of them is prepared and not
    /// finished; driver errors, when nothing is known of the uses.
    pub fn as_slice(&mut self) -> Result<&[T], BufferError> {
        self.as_mut_slice().map(|elements| &*elements)
    }

    /// Returns the elements, to read and write, once every recorded use of them is done. Waits for
    /// that.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], BufferError> {
        self.reborrow().into_mut_slice()
    }

    /// As [`as_mut_slice`](Self::as_mut_slice), for as long as the view could be used.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn into_mut_slice(self) -> Result<&'a mut [T], BufferError> {
        if let Some(memory) = self.as_view().memory()
            && !memory.synchronize(self.byte_range())?
        {
            return Err(BufferError::InUse);
        }
        // SAFETY: no use is under way, and none can be submitted: this view has the elements alone,
        // and is consumed.
        Ok(unsafe { self.into_unused_slice() })
    }

    /// Returns the elements.
    ///
    /// # Safety
    ///
    /// No device work uses them, or is submitted that will.
    pub(super) unsafe fn into_unused_slice(self) -> &'a mut [T] {
        let view = self.into_view();
        // SAFETY: `len` elements in memory whose every byte was written, aligned; any bytes are a
        // `Pod`. This view has them alone, and is consumed; the caller's obligation.
        unsafe { slice::from_raw_parts_mut(view.start(), view.len()) }
    }

    /// Copies the elements to as many on the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`copy_from_device`](Self::copy_from_device).
    pub fn copy_to_device<'t>(
        &self,
        target: impl Into<DeviceViewMut<'t, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.as_view().copy_to_device(target, stream)
    }

    /// Overwrites the elements with as many of the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// [`PinnedLengthMismatch`](BufferError::PinnedLengthMismatch);
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn copy_from_device<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let source = source.into();
        let view = self.as_view();
        view.check_len(source.len())?;
        transfer::copy_pinned(view.span(), source.span(), stream.into())
    }
}
