//! The device buffer: owned elements in device memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, ByteRange, DeviceBlock, StreamId};
use dmr_streams::{DeviceContext, MemoryOrigin, TrackedMemory, TypedMemory, TypedMemoryMut};

use crate::owner::Owner;
use crate::{BufferError, Chunks, ChunksMut, DeviceView, DeviceViewMut, failures};

/// Owned elements in device memory.
///
/// It is made on a stream, its *home stream*. Dropping it does not wait: the memory is freed after
/// the work that was submitted to the home stream so far, and after every recorded use. If the
/// resource refuses to free it, the failure is counted and keeps the block: see [`failures`].
///
/// A buffer of no bytes needs no block, and its address is 0.
///
/// It [grows](Self::reserve) in place where its resource can do that, otherwise by a copy on a
/// stream.
///
/// It keeps its resource and its streams alive, and may outlive the context that it was made with.
pub struct DeviceBuffer<T: Pod> {
    /// `None` for no bytes, and while the buffer is dropped.
    pub(crate) block: Option<DeviceBlock>,
    /// At most as many as the block has room for.
    pub(crate) len: usize,
    /// The home stream of the block, or of one that a buffer without a block allocates when it
    /// grows.
    pub(crate) home: StreamId,
    /// The tag of the block, as `home`.
    pub(crate) tag: AllocTag,
    pub(crate) owner: Owner,
    pub(crate) elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates `len` elements of undefined content.
    ///
    /// Safe, because any bytes are a value of a `Pod`. Reading elements before they are written is
    /// still a mistake, which the simulated driver reports.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong), and the errors of
    /// [`allocate`](dmr_core::DeviceMemoryResource::allocate).
    pub fn uninit<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::uninit_tagged(ctx, stream, len, AllocTag::UNTAGGED)
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
        let bytes = Self::bytes_of(len)?;
        let stream = stream.into();
        let owner = Owner::of(ctx);
        let home = owner.streams.enter(stream)?.id();
        let block = match bytes {
            0 => None,
            _ => Some(owner.allocate(bytes, stream, tag)?),
        };
        Ok(Self { block, len, home, tag, owner, elements: PhantomData })
    }

    /// Returns the bytes of `len` elements.
    pub(crate) fn bytes_of(len: usize) -> Result<usize, BufferError> {
        let element_bytes = size_of::<T>();
        len.checked_mul(element_bytes).ok_or(BufferError::TooLong { len, element_bytes })
    }

    /// Allocates `len` elements and sets all of them to zero. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit), and driver errors.
    pub fn zeroed<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::zeroed_tagged(ctx, stream, len, AllocTag::UNTAGGED)
    }

    /// As [`zeroed`](Self::zeroed), with a tag that names the buffer's purpose in reports.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn zeroed_tagged<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
        tag: AllocTag,
    ) -> Result<Self, BufferError> {
        let stream = stream.into();
        let mut buffer = Self::uninit_tagged(ctx, stream, len, tag)?;
        buffer.fill_zero(stream)?;
        Ok(buffer)
    }

    /// Allocates a copy of the slice, ordered on `stream`. Returns when the copy no longer reads
    /// the slice.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit), and driver errors.
    pub fn from_host<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        host: &[T],
    ) -> Result<Self, BufferError> {
        Self::from_host_tagged(ctx, stream, host, AllocTag::UNTAGGED)
    }

    /// As [`from_host`](Self::from_host), with a tag that names the buffer's purpose in reports.
    ///
    /// # Errors
    ///
    /// As [`from_host`](Self::from_host).
    pub fn from_host_tagged<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        host: &[T],
        tag: AllocTag,
    ) -> Result<Self, BufferError> {
        let stream = stream.into();
        let mut buffer = Self::uninit_tagged(ctx, stream, host.len(), tag)?;
        buffer.copy_from_host(host, stream)?;
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

    /// Returns the size in bytes.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns the block of the elements; `None` if nothing was allocated, as for a new buffer of
    /// no bytes.
    #[must_use]
    pub fn block(&self) -> Option<&DeviceBlock> {
        self.block.as_ref()
    }

    /// Returns the resource and the streams that the buffer was made with.
    #[must_use]
    pub fn context(&self) -> &(dyn DeviceContext + Send + Sync) {
        &self.owner
    }

    /// Returns a view of all elements.
    #[must_use]
    pub fn view(&self) -> DeviceView<'_, T> {
        DeviceView::of_whole(&self.owner, self.block.as_ref(), self.len)
    }

    /// Returns a mutable view of all elements.
    #[must_use]
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut::new(self.view())
    }

    /// Returns a view of some elements.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>, BufferError> {
        self.view().slice(range)
    }

    /// Returns a mutable view of some elements.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceViewMut<'_, T>, BufferError> {
        self.view().slice(range).map(DeviceViewMut::new)
    }

    /// Divides the buffer into two views: of the elements before `mid`, and of the others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at(
        &self,
        mid: usize,
    ) -> Result<(DeviceView<'_, T>, DeviceView<'_, T>), BufferError> {
        self.view().split_at(mid)
    }

    /// Divides the buffer into two mutable views, as [`DeviceViewMut::split_at_mut`] does.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(DeviceViewMut<'_, T>, DeviceViewMut<'_, T>), BufferError> {
        let (left, right) = self.view().split_at(mid)?;
        Ok((DeviceViewMut::new(left), DeviceViewMut::new(right)))
    }

    /// Returns an iterator over parts of `chunk_len` elements, as [`DeviceView::chunks`] does.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks(&self, chunk_len: usize) -> Result<Chunks<'_, T>, BufferError> {
        self.view().chunks(chunk_len)
    }

    /// Returns an iterator over disjoint mutable parts of `chunk_len` elements, as
    /// [`DeviceViewMut::chunks_mut`] does.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks_mut(&mut self, chunk_len: usize) -> Result<ChunksMut<'_, T>, BufferError> {
        self.view().chunks(chunk_len).map(ChunksMut::new)
    }

    /// Copies all elements to the host, as [`DeviceView::to_host`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceView::to_host`].
    pub fn to_host(&self, stream: impl Into<StreamId>) -> Result<Vec<T>, BufferError> {
        self.view().to_host(stream)
    }

    /// Copies all elements to a slice, as [`DeviceView::copy_to_host`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceView::copy_to_host`].
    pub fn copy_to_host(
        &self,
        host: &mut [T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view().copy_to_host(host, stream)
    }

    /// Overwrites all elements, as [`DeviceViewMut::copy_from`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::copy_from`].
    pub fn copy_from<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError>
    where
        T: 's,
    {
        self.view_mut().copy_from(source, stream)
    }

    /// Overwrites all elements from a slice, as [`DeviceViewMut::copy_from_host`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::copy_from_host`].
    pub fn copy_from_host(
        &mut self,
        host: &[T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view_mut().copy_from_host(host, stream)
    }

    /// Sets every element to `value`, as [`DeviceViewMut::fill`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::fill`].
    pub fn fill(&mut self, value: T, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill(value, stream)
    }

    /// Sets every byte, as [`DeviceViewMut::fill_bytes`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::fill_bytes`].
    pub fn fill_bytes(&mut self, byte: u8, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill_bytes(byte, stream)
    }

    /// Sets every element to zero, as [`DeviceViewMut::fill_zero`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::fill_zero`].
    pub fn fill_zero(&mut self, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill_zero(stream)
    }
}

impl<T: Pod> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        if let Err(refused) = self.owner.resource.deallocate(block) {
            failures::keep(refused, &self.owner.resource);
        }
    }
}

impl<T: Pod> TrackedMemory for DeviceBuffer<T> {
    fn device_ptr(&self) -> u64 {
        self.view().device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.size_in_bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        let block = self.block.as_ref().filter(|_| self.size_in_bytes() > 0);
        block.map_or(MemoryOrigin::Empty, |block| MemoryOrigin::Block(block.id()))
    }

    fn byte_range(&self) -> ByteRange {
        ByteRange::WHOLE
    }
}

// SAFETY: the block, if there is one, has the elements, and is deallocated when the buffer is
// dropped. Any bytes are a value of a `Pod`.
unsafe impl<T: Pod> TypedMemory for DeviceBuffer<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: views of the buffer borrow it.
unsafe impl<T: Pod> TypedMemoryMut for DeviceBuffer<T> {}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}
