//! Page-locked host memory, which the device copies to and from while the host goes on.

mod elements;
mod view;
mod write_combined;

use std::fmt;
use std::ops::RangeBounds;

use bytemuck::Pod;
use dmr_core::{AllocTag, ByteRange, ResourceResult, StreamId};
use dmr_streams::{
    DeviceContext, MemoryOrigin, PinnedKind, TrackedMemory, TypedMemory, TypedMemoryMut,
};

pub use dmr_streams::reap_orphaned_pinned;

use crate::{BufferError, DeviceView, DeviceViewMut};
use elements::Elements;

pub use view::{PinnedView, PinnedViewMut};
pub use write_combined::WriteCombinedBuffer;

/// Elements in page-locked host memory, for copies that do not wait.
///
/// The use table of the streams tracks it like a block. So copies on any stream are ordered with
/// each other, and kernels can be given it through a launch recorder: the device sees it at the
/// same address.
///
/// Its memory is from the context's pool of pinned memory ([`PinnedResource`](dmr_streams::PinnedResource)), or from
/// the context's stack over it, whose budget and statistics count it.
///
/// # The host's turn
///
/// [`as_slice`](Self::as_slice) and [`as_mut_slice`](Self::as_mut_slice) wait until every recorded
/// use is done, and for no other work. They borrow the buffer exclusively, so that no copy can be submitted
/// while the host has the slice.
///
/// # Dropping it
///
/// Dropping it makes no driver call. The memory is *retired*, and allocated again once its uses are done. Until then it
/// belongs to the stream pool, and keeps neither the pool nor the resource alive. [`trim_pinned`] returns unused memory
/// to the driver. When the last owner of the stream pool is dropped, memory whose uses are done is freed;
/// [`reap_orphaned_pinned`] frees the rest.
pub struct PinnedBuffer<T: Pod> {
    elements: Elements<T>,
}

/// The tag of a buffer whose purpose is not given.
const PINNED: AllocTag = AllocTag::new("pinned");

impl<T: Pod> PinnedBuffer<T> {
    /// Allocates `len` elements of unspecified content, mostly used on `stream`: its home stream.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong); stream errors; [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget); driver
    /// errors, among them that the host has no more memory to lock.
    pub fn uninit<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::uninit_tagged(ctx, stream, len, PINNED)
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
        let elements = Elements::allocate(ctx, stream.into(), len, PinnedKind::Cached, tag)?;
        Ok(Self { elements })
    }

    /// Allocates `len` elements, which the host sets to zero.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    pub fn zeroed<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::zeroed_tagged(ctx, stream, len, PINNED)
    }

    /// As [`zeroed`](Self::zeroed), with a tag that names the buffer's purpose in reports.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    pub fn zeroed_tagged<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
        tag: AllocTag,
    ) -> Result<Self, BufferError> {
        let mut buffer = Self::uninit_tagged(ctx, stream, len, tag)?;
        buffer.elements.unused_mut().fill(T::zeroed());
        Ok(buffer)
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
        Self::from_slice_tagged(ctx, stream, host, PINNED)
    }

    /// As [`from_slice`](Self::from_slice), with a tag that names the buffer's purpose in reports.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    pub fn from_slice_tagged<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        host: &[T],
        tag: AllocTag,
    ) -> Result<Self, BufferError> {
        let mut buffer = Self::uninit_tagged(ctx, stream, host.len(), tag)?;
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

    /// Returns the elements, once every recorded use is done. Waits for that.
    ///
    /// # Errors
    ///
    /// [`InUse`](BufferError::InUse) while a launch that uses it is prepared and not finished;
    /// driver errors, when nothing is known of the uses.
    pub fn as_slice(&mut self) -> Result<&[T], BufferError> {
        self.as_mut_slice().map(|elements| &*elements)
    }

    /// Returns the elements, to read and write, once every recorded use is done. Waits for that.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], BufferError> {
        self.view_mut().into_mut_slice()
    }

    /// Returns a view of all elements, for copies.
    #[must_use]
    pub fn view(&self) -> PinnedView<'_, T> {
        self.elements.view()
    }

    /// Returns a mutable view of all elements, for copies and for the host.
    #[must_use]
    pub fn view_mut(&mut self) -> PinnedViewMut<'_, T> {
        PinnedViewMut::new(self.elements.view())
    }

    /// Returns a view of a part.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<PinnedView<'_, T>, BufferError> {
        self.view().slice(range)
    }

    /// Returns a mutable view of a part.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<PinnedViewMut<'_, T>, BufferError> {
        self.view().slice(range).map(PinnedViewMut::new)
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

    /// Overwrites the elements with as many of the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`copy_to_device`](Self::copy_to_device).
    pub fn copy_from_device<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError>
    where
        T: 's,
    {
        self.view_mut().copy_from_device(source, stream)
    }
}

impl<T: Pod> TrackedMemory for PinnedBuffer<T> {
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

// SAFETY: the pinned memory has the elements, and is freed once the recorded uses are done. The host has a slice of
// them only while the buffer is borrowed exclusively, and after the recorded uses.
unsafe impl<T: Pod> TypedMemory for PinnedBuffer<T> {
    type Element = T;

    fn len(&self) -> usize {
        PinnedBuffer::len(self)
    }
}

// SAFETY: as above.
unsafe impl<T: Pod> TypedMemoryMut for PinnedBuffer<T> {}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.elements.fmt_as("PinnedBuffer", f)
    }
}

/// Frees the pinned memory of the context's streams that was dropped and whose uses are done, so that it can be
/// allocated again; returns its bytes. Polls the uses and does not wait for them.
///
/// # Errors
///
/// The first error. What could not be freed is still retired: call again.
pub fn try_reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    let freed = ctx.streams().try_reap_pinned();
    settle_layers(ctx);
    freed
}

/// Waits for the pinned memory of the context's streams that was dropped, unless a launch that
/// uses it is prepared and not finished, and frees it; returns its bytes.
///
/// # Errors
///
/// As [`try_reap_pinned`].
pub fn reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    let freed = ctx.streams().reap_pinned();
    settle_layers(ctx);
    freed
}

/// Returns pinned memory that no buffer uses to the driver while more than `keep_bytes` bytes of a kind are reserved;
/// returns the bytes. The driver's call may wait for other work of the device.
///
/// # Errors
///
/// The first error. All other memory was returned all the same.
pub fn trim_pinned<C: DeviceContext + ?Sized>(ctx: &C, keep_bytes: u64) -> ResourceResult<u64> {
    let trimmed = ctx.streams().trim_pinned(keep_bytes);
    settle_layers(ctx);
    trimmed
}

/// Lets the layers around pinned memory see what was freed below them: a budget releases its bytes.
fn settle_layers<C: DeviceContext + ?Sized>(ctx: &C) {
    for kind in PinnedKind::ALL {
        if let Some(resource) = ctx.pinned_resource(kind) {
            // The error of the reap before was returned.
            let _ = resource.try_reap();
        }
    }
}
