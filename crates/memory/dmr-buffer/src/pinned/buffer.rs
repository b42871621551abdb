//! Buffers in pinned memory, which the host reads and writes, or only writes.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, ByteRange, StreamId};
use dmr_streams::{
    DeviceContext, MemoryOrigin, PinnedKind, PinnedMemory, TrackedMemory, TypedMemory,
    TypedMemoryMut,
};

use super::{PinnedView, PinnedViewMut};
use crate::owner::Owner;
use crate::{BufferError, DeviceView, DeviceViewMut};

/// Elements in page-locked host memory, for copies that do not wait.
///
/// The use table of the streams tracks it like a block. So copies on any stream are ordered with
/// each other, and kernels can be given it through a launch recorder: the device sees it at the
/// same address.
///
/// Its memory is from the context's pool of pinned memory
/// ([`PinnedResource`](dmr_streams::PinnedResource)), or from the context's stack over it, whose
/// budget and statistics count it.
///
/// # The host's turn
///
/// [`as_slice`](Self::as_slice) and [`as_mut_slice`](Self::as_mut_slice) wait until every recorded
/// use is done, and for no other work. They borrow the buffer exclusively, so that no copy can be
/// submitted while the host has the slice.
///
/// # Dropping it
///
/// Dropping it makes no driver call. The memory is *retired*, and allocated again once its uses are
/// done. Until then it belongs to the stream pool, and keeps neither the pool nor the resource
/// alive. [`trim_pinned`](super::trim_pinned) returns unused memory to the driver. When the last
/// owner of the stream pool is dropped, memory whose uses are done is freed;
/// [`reap_orphaned_pinned`](super::reap_orphaned_pinned) frees the rest.
pub type PinnedBuffer<T> = PinnedElements<T, Cached>;

/// Elements in write-combined page-locked memory, for copies to the device.
///
/// The host's writes go past its caches, and reading takes it many times as long. So a buffer gives
/// no slice: the host [writes](Self::write) it, whole elements in order, and the device reads it.
/// Apart from that it is as a [`PinnedBuffer`](super::PinnedBuffer): pooled, tracked, and dropped
/// without a driver call.
pub type WriteCombinedBuffer<T> = PinnedElements<T, WriteCombined>;

/// Owned elements in pinned memory of the kind `K`: a [`PinnedBuffer`], or a
/// [`WriteCombinedBuffer`].
pub struct PinnedElements<T: Pod, K: PinnedBufferKind> {
    /// `None` for no bytes.
    memory: Option<PinnedMemory>,
    len: usize,
    owner: Owner,
    kind: PhantomData<(T, K)>,
}

/// Memory that the processor caches.
#[derive(Debug)]
pub struct Cached;

/// Memory that the host writes past its caches.
#[derive(Debug)]
pub struct WriteCombined;

/// The kind of the memory of a buffer. No other crate can name it.
pub trait PinnedBufferKind: Send + Sync {
    /// The name of a buffer of it.
    const BUFFER: &'static str;
    /// The kind of memory of the pool.
    const KIND: PinnedKind;
}

impl PinnedBufferKind for Cached {
    const BUFFER: &'static str = "PinnedBuffer";
    const KIND: PinnedKind = PinnedKind::Cached;
}

impl PinnedBufferKind for WriteCombined {
    const BUFFER: &'static str = "WriteCombinedBuffer";
    const KIND: PinnedKind = PinnedKind::WriteCombined;
}

/// The tag of a buffer whose purpose is not given.
const PINNED: AllocTag = AllocTag::new("pinned");

impl<T: Pod, K: PinnedBufferKind> PinnedElements<T, K> {
    /// Allocates `len` elements of unspecified content, mostly used on `stream`: its home stream.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong); stream errors;
    /// [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget); driver errors, among them that the
    /// host has no more memory to lock.
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
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "blocks are aligned to less") };
        let stream = stream.into();
        let element_bytes = size_of::<T>();
        let bytes = len
            .checked_mul(element_bytes)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(BufferError::TooLong { len, element_bytes })?;
        let owner = Owner::of(ctx);
        let memory = match bytes {
            0 => {
                drop(owner.streams.enter(stream)?);
                None
            }
            _ => {
                let resource = owner.pinned.as_ref().and_then(|pinned| pinned.of_kind(K::KIND));
                let streams = &owner.streams;
                let memory =
                    PinnedMemory::allocate(resource, streams, K::KIND, bytes, stream, tag)?;
                Some(memory)
            }
        };
        Ok(Self { memory, len, owner, kind: PhantomData })
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
        buffer.unused_mut().copy_from_slice(host);
        Ok(buffer)
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

    /// Returns a view of all elements, for copies.
    #[must_use]
    pub fn view(&self) -> PinnedView<'_, T> {
        PinnedView::of_whole(&self.owner, self.memory.as_ref(), self.len)
    }

    /// Returns a view of a part.
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

    /// Returns the elements of memory that was allocated just now, so that the device does not use
    /// it.
    fn unused_mut(&mut self) -> &mut [T] {
        // SAFETY: a new buffer has no uses.
        unsafe { PinnedViewMut::new(self.view()).into_unused_slice() }
    }
}

impl<T: Pod> PinnedBuffer<T> {
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
        buffer.unused_mut().fill(T::zeroed());
        Ok(buffer)
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

    /// Returns a mutable view of all elements, for copies and for the host.
    #[must_use]
    pub fn view_mut(&mut self) -> PinnedViewMut<'_, T> {
        PinnedViewMut::new(self.view())
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

impl<T: Pod> WriteCombinedBuffer<T> {
    /// Overwrites the elements from index `at` on with those of a slice, once every recorded use of
    /// them is done. Waits for that.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange); [`InUse`](BufferError::InUse) while a launch that
    /// uses it is prepared and not finished; driver errors, when nothing is known of the uses.
    pub fn write(&mut self, at: usize, host: &[T]) -> Result<(), BufferError> {
        let part = self.view().slice(at..at.saturating_add(host.len()))?;
        PinnedViewMut::new(part).into_mut_slice()?.copy_from_slice(host);
        Ok(())
    }
}

impl<T: Pod, K: PinnedBufferKind> TrackedMemory for PinnedElements<T, K> {
    fn device_ptr(&self) -> u64 {
        self.view().device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        let id = self.memory.as_ref().map(|memory| memory.block().id());
        id.map_or(MemoryOrigin::Empty, MemoryOrigin::Pinned)
    }

    fn byte_range(&self) -> ByteRange {
        ByteRange::WHOLE
    }
}

// SAFETY: the pinned memory has the elements, and is freed once the recorded uses are done. The
// host has a slice of them only while the buffer is borrowed exclusively, and after the recorded
// uses.
unsafe impl<T: Pod> TypedMemory for PinnedBuffer<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl<T: Pod> TypedMemoryMut for PinnedBuffer<T> {}

impl<T: Pod, K: PinnedBufferKind> fmt::Debug for PinnedElements<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::BUFFER)
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.memory.as_ref().map(PinnedMemory::block))
            .finish_non_exhaustive()
    }
}
