//! Views of device memory.

use std::mem::ManuallyDrop;

use bytemuck::Pod;
use dmr_core::{DeviceBlock, StreamId};

use super::{View, ViewMut};
use crate::transfer;
use crate::{BufferError, DeviceBuffer};

/// A view of elements in device memory. `Copy`.
///
/// A use of it is a use of these elements: launches that use disjoint parts of one buffer neither
/// conflict nor wait for each other, on whatever streams they are, and launches that use
/// overlapping parts are ordered.
pub type DeviceView<'a, T> = View<'a, T, DeviceBlock>;

/// A mutable view of elements in device memory. No other view of these elements exists while it is
/// used.
///
/// Its parts are disjoint, and can be sent to other threads:
///
/// ```
/// # use dmr_buffer::{BufferError, DeviceViewMut};
/// # use dmr_core::StreamId;
/// fn fill_halves(
///     mut all: DeviceViewMut<'_, u32>,
///     streams: [StreamId; 2],
/// ) -> Result<(), BufferError> {
///     let (mut left, mut right) = all.split_at_mut(all.len() / 2)?;
///     std::thread::scope(|threads| {
///         let right = threads.spawn(move || right.fill(2, streams[1]));
///         left.fill(1, streams[0])?;
///         right.join().expect("the other thread")
///     })
/// }
/// ```
///
/// Elements are in one mutable view at most:
///
/// ```compile_fail,E0499
/// # use dmr_buffer::DeviceBuffer;
/// fn twice(buffer: &mut DeviceBuffer<u32>) {
///     let (left, _) = buffer.split_at_mut(4).unwrap();
///     let (_, right) = buffer.split_at_mut(2).unwrap();
///     drop((left, right));
/// }
/// ```
///
/// and in no other view meanwhile:
///
/// ```compile_fail,E0502
/// # use dmr_buffer::DeviceBuffer;
/// fn shared(buffer: &mut DeviceBuffer<u32>) {
///     let first = buffer.chunks_mut(4).unwrap().next();
///     let all = buffer.view();
///     drop((first, all));
/// }
/// ```
pub type DeviceViewMut<'a, T> = ViewMut<'a, T, DeviceBlock>;

impl<T: Pod> DeviceView<'_, T> {
    /// Copies the elements to the host, ordered on `stream`, and waits for the copy.
    ///
    /// # Errors
    ///
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn to_host(&self, stream: impl Into<StreamId>) -> Result<Vec<T>, BufferError> {
        let mut host = ManuallyDrop::new(Vec::<T>::with_capacity(self.len()));
        // SAFETY: the vector has capacity for the elements, and is leaked if it may still be
        // written.
        let copied =
            unsafe { transfer::download(host.as_mut_ptr().cast(), self.span(), stream.into()) };
        let written = copied.outcome.map(|()| {
            // SAFETY: every element has been written, and any bytes are a value of a `Pod`.
            unsafe { host.set_len(self.len()) };
        });
        let host = copied.host_is_free.then(|| ManuallyDrop::into_inner(host));
        written.map(|()| host.unwrap_or_default())
    }

    /// Copies the elements to a slice of the same length, ordered on `stream`, and waits for the
    /// copy.
    ///
    /// # Errors
    ///
    /// [`LengthMismatch`](BufferError::LengthMismatch), and as [`to_host`](Self::to_host).
    pub fn copy_to_host(
        &self,
        host: &mut [T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        same_len(self.len(), host.len())?;
        // SAFETY: the slice has that length. The copy has ended when this returns, unless neither
        // the stream nor the device could be synchronised: then the context is lost, and runs no
        // more work.
        unsafe { transfer::download(host.as_mut_ptr().cast(), self.span(), stream.into()) }.outcome
    }
}

impl<T: Pod> DeviceViewMut<'_, T> {
    /// Copies the elements of a source of the same length, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// [`LengthMismatch`](BufferError::LengthMismatch);
    /// [`Resource`](BufferError::Resource): stream, use and driver errors, and
    /// [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse) if the source belongs to another
    /// stream pool.
    pub fn copy_from<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let source = source.into();
        same_len(source.len(), self.len())?;
        transfer::copy(self.as_view().span(), source.span(), stream.into())
    }

    /// Copies the elements of a slice of the same length, ordered on `stream`. Returns when the
    /// copy no longer reads the slice.
    ///
    /// # Errors
    ///
    /// [`LengthMismatch`](BufferError::LengthMismatch);
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn copy_from_host(
        &mut self,
        host: &[T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        same_len(host.len(), self.len())?;
        // SAFETY: as in `copy_to_host`.
        unsafe { transfer::upload(self.as_view().span(), host.as_ptr().cast(), stream.into()) }
            .outcome
    }

    /// Sets every element to `value`, ordered on `stream`. Does not wait.
    ///
    /// Takes one memset if `value` consists of 1, 2 or 4 bytes repeated. For any other value,
    /// memsets write the first element, one for each 4 bytes (2 or 1, if its size is not a multiple
    /// of 4), and copies on the device double the number of written elements until all are written.
    ///
    /// # Errors
    ///
    /// [`Resource`](BufferError::Resource): stream, use and driver errors. After a driver error
    /// some elements may have been written.
    pub fn fill(&mut self, value: T, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        transfer::fill(self.as_view().span(), bytemuck::bytes_of(&value), stream.into())
    }

    /// Sets every byte, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn fill_bytes(&mut self, byte: u8, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        transfer::fill(self.as_view().span(), &[byte], stream.into())
    }

    /// Sets every element to zero, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`fill_bytes`](Self::fill_bytes).
    pub fn fill_zero(&mut self, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.fill_bytes(0, stream)
    }
}

impl<'a, T: Pod> From<&'a DeviceBuffer<T>> for DeviceView<'a, T> {
    fn from(buffer: &'a DeviceBuffer<T>) -> Self {
        buffer.view()
    }
}

impl<'a, T: Pod> From<&'a mut DeviceBuffer<T>> for DeviceViewMut<'a, T> {
    fn from(buffer: &'a mut DeviceBuffer<T>) -> Self {
        buffer.view_mut()
    }
}

pub(crate) fn same_len(source_len: usize, target_len: usize) -> Result<(), BufferError> {
    if source_len == target_len {
        Ok(())
    } else {
        Err(BufferError::LengthMismatch { source_len, target_len })
    }
}
