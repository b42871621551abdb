//! Write-combined host memory, which the host writes and does not read.

use std::fmt;
use std::ops::RangeBounds;

use bytemuck::Pod;
use dmr_core::{AllocTag, ByteRange, StreamId};
use dmr_streams::{DeviceContext, MemoryOrigin, PinnedKind, TrackedMemory};

use super::elements::Elements;
use super::{PinnedView, PinnedViewMut};
use crate::{BufferError, DeviceViewMut};

/// Elements in write-combined page-locked memory, for copies to the device.
///
/// The host's writes go past its caches, and reading takes it many times as long. So a buffer gives no slice: the host
/// [writes](Self::write) it, whole elements in order, and the device reads it. Apart from that it is as a
/// [`PinnedBuffer`](super::PinnedBuffer): pooled, tracked, and dropped without a driver call.
pub struct WriteCombinedBuffer<T: Pod> {
    elements: Elements<T>,
}

impl<T: Pod> WriteCombinedBuffer<T> {
    /// Allocates `len` elements of unspecified content, mostly used on `stream`: its home stream.
    ///
    /// # Errors
    ///
    /// As [`PinnedBuffer::uninit`](super::PinnedBuffer::uninit).
    pub fn uninit<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::uninit_tagged(ctx, stream, len, super::PINNED)
    }

    /// As [`uninit`](Self::uninit), with a tag that names the buffer's purpose in reports.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    pub fn uninit_tagged<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
        tag: AllocTag,
    ) -> Result<Self, BufferError> {
        let kind = PinnedKind::WriteCombined;
        Ok(Self { elements: Elements::allocate(ctx, stream.into(), len, kind, tag)? })
    }

    /// Allocates a copy of the slice.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    pub fn from_slice<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        host: &[T],
    ) -> Result<Self, BufferError> {
        let mut buffer = Self::uninit(ctx, stream, host.len())?;
        buffer.elements.unused_mut().copy_from_slice(host);
        Ok(buffer)
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.len() == 0
    }

    /// Overwrites the elements from index `at` on with those of a slice, once every recorded use of them is done.
    /// Waits for that.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange);
    /// [`InUse`](BufferError::InUse) while a launch that uses it is prepared and not finished; driver errors, when
    /// nothing is known of the uses.
    pub fn write(&mut self, at: usize, host: &[T]) -> Result<(), BufferError> {
        let part = self.elements.view().slice(at..at.saturating_add(host.len()))?;
        PinnedViewMut::new(part).into_mut_slice()?.copy_from_slice(host);
        Ok(())
    }

    /// Returns a view of all elements, for copies to the device.
    #[must_use]
    pub fn view(&self) -> PinnedView<'_, T> {
        self.elements.view()
    }

    /// Returns a view of a part, for copies to the device.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<PinnedView<'_, T>, BufferError> {
        self.view().slice(range)
    }

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
    ) -> Result<(), BufferError>
    where
        T: 't,
    {
        self.view().copy_to_device(target, stream)
    }
}

impl<T: Pod> TrackedMemory for WriteCombinedBuffer<T> {
    fn device_ptr(&self) -> u64 {
        self.view().device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.elements.origin()
    }

    fn byte_range(&self) -> ByteRange {
        ByteRange::WHOLE
    }
}

impl<T: Pod> fmt::Debug for WriteCombinedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt_as("WriteCombinedBuffer", f)
    }
}
