//! Owned elements on a device.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, DeviceBlock, StreamId};
use dmr_streams::{DeviceContext, MemoryOrigin, TrackedMemory};

use crate::owner::Owner;
use crate::{BufferError, DeviceView, DeviceViewMut, failures};

/// Elements in device memory, given back when this is dropped.
///
/// Made on a stream, its *home stream*. Dropping it waits for nothing: the memory is freed after
/// the work of the home stream so far, and after every use that was recorded. A resource that
/// refuses to take it back is counted and keeps its block: see [`failures`].
///
/// A buffer of no bytes has no block, and its address is 0.
///
/// It keeps its resource and its streams alive: drop it before or after the context it was made
/// with.
pub struct DeviceBuffer<T: Pod> {
    /// `None` for no bytes, and once it has been given back.
    block: Option<DeviceBlock>,
    len: usize,
    owner: Owner,
    elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// `len` elements of undefined content.
    ///
    /// Safe, because any bytes are a `Pod`. Reading them before they are written is a mistake all
    /// the same, which the simulated driver reports.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong), and whatever
    /// [`allocate`](dmr_core::DeviceMemoryResource::allocate) answers.
    pub fn uninit<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::uninit_tagged(ctx, stream, len, AllocTag::UNTAGGED)
    }

    /// [`uninit`](Self::uninit), with a tag that says in reports what it is for.
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
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "blocks are not aligned to that") };
        let element_bytes = size_of::<T>();
        let bytes =
            len.checked_mul(element_bytes).ok_or(BufferError::TooLong { len, element_bytes })?;
        let (stream, owner) = (stream.into(), Owner::of(ctx));
        let block = match bytes {
            0 => {
                drop(owner.streams.enter(stream)?);
                None
            }
            _ => Some(owner.allocate(bytes, stream, tag)?),
        };
        Ok(Self { block, len, owner, elements: PhantomData })
    }

    /// `len` elements, all zero. Does not wait.
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

    /// [`zeroed`](Self::zeroed), with a tag that says in reports what it is for.
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

    /// A copy of the slice, ordered on `stream`. Returns when the slice is free again.
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

    /// [`from_host`](Self::from_host), with a tag that says in reports what it is for.
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

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The block that the elements are in; `None` if they have no bytes.
    #[must_use]
    pub fn block(&self) -> Option<&DeviceBlock> {
        self.block.as_ref()
    }

    /// All elements, to read.
    #[must_use]
    pub fn view(&self) -> DeviceView<'_, T> {
        let block = self.block.as_ref();
        let ptr = block.map_or(0, DeviceBlock::ptr);
        DeviceView::new(&self.owner, block.map(DeviceBlock::id), ptr, self.len)
    }

    /// All elements, to read and write.
    #[must_use]
    pub fn view_mut(&mut self) -> DeviceViewMut<'_, T> {
        DeviceViewMut::new(self.view())
    }

    /// Some elements, to read.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceView<'_, T>, BufferError> {
        self.view().slice(range)
    }

    /// Some elements, to read and write.
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

    /// As [`DeviceView::to_host`], of all elements.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn to_host(&self, stream: impl Into<StreamId>) -> Result<Vec<T>, BufferError> {
        self.view().to_host(stream)
    }

    /// As [`DeviceView::copy_to_host`], of all elements.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn copy_to_host(
        &self,
        host: &mut [T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view().copy_to_host(host, stream)
    }

    /// As [`DeviceViewMut::copy_from`], over all elements.
    ///
    /// # Errors
    ///
    /// The same.
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

    /// As [`DeviceViewMut::copy_from_host`], over all elements.
    ///
    /// # Errors
    ///
    /// The same.
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
    /// The same.
    pub fn fill(&mut self, value: T, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill(value, stream)
    }

    /// As [`DeviceViewMut::fill_bytes`], over all elements.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn fill_bytes(&mut self, byte: u8, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill_bytes(byte, stream)
    }

    /// As [`DeviceViewMut::fill_zero`], over all elements.
    ///
    /// # Errors
    ///
    /// The same.
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
        self.block.as_ref().map_or(0, DeviceBlock::ptr)
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.block.as_ref().map_or(MemoryOrigin::Empty, |block| MemoryOrigin::Block(block.id()))
    }
}

impl<T: Pod> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}
