//! Owned elements in memory of any kind: what device buffers and pinned buffers have in common.

mod device;
mod kind;

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use bytemuck::Pod;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, StreamId};
use dmr_streams::{DeviceContext, TypedMemory, TypedMemoryMut};

use crate::owner::Owner;
use crate::view::{Halves, View, ViewMut, ViewedMemory};
use crate::{BufferError, Chunks, ChunksMut};

pub use device::DeviceBuffer;
pub(crate) use kind::{BufferKind, Device, MutableKind};

/// Owned elements in memory of the kind `K`: a [`DeviceBuffer`], a
/// [`PinnedBuffer`](crate::PinnedBuffer), or a [`WriteCombinedBuffer`](crate::WriteCombinedBuffer).
pub struct Buffer<T: Pod, K: BufferKind> {
    /// `None` for no bytes, and while the buffer is dropped.
    pub(crate) memory: Option<K::Memory>,
    /// At most as many as the memory has room for.
    pub(crate) len: usize,
    /// The home stream of the memory, or of a block that a buffer without one allocates when it
    /// grows.
    pub(crate) home: StreamId,
    /// The tag of the memory, as `home`.
    pub(crate) tag: AllocTag,
    pub(crate) owner: Owner,
    pub(crate) elements: PhantomData<(T, K)>,
}

impl<T: Pod, K: BufferKind> Buffer<T, K> {
    /// Allocates `len` elements of undefined content, mostly used on `stream`: the buffer's home
    /// stream.
    ///
    /// Safe, because any bytes are a value of a `Pod`. Reading elements on the device before they
    /// are written is still a mistake, which the simulated driver reports.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong), and the errors of
    /// [`allocate`](dmr_core::DeviceMemoryResource::allocate): for pinned memory also that the host
    /// has no more memory to lock.
    pub fn uninit<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::uninit_tagged(ctx, stream, len, K::TAG)
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
        let memory = match bytes {
            0 => None,
            _ => Some(K::allocate(&owner, bytes, stream, tag)?),
        };
        Ok(Self { memory, len, home, tag, owner, elements: PhantomData })
    }

    /// Returns the bytes of `len` elements.
    pub(crate) fn bytes_of(len: usize) -> Result<usize, BufferError> {
        let element_bytes = size_of::<T>();
        let bytes = len.checked_mul(element_bytes).filter(|bytes| *bytes <= K::MAX_BYTES);
        bytes.ok_or(BufferError::TooLong { len, element_bytes })
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

    /// Returns the number of elements that the buffer has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match size_of::<T>() {
            0 => usize::MAX,
            bytes => self.memory.as_ref().map_or(0, |memory| memory.block().bytes()) / bytes,
        }
    }

    /// Returns a view of all elements.
    #[must_use]
    pub fn view(&self) -> View<'_, T, K::Memory> {
        View::of_whole(&self.owner, self.memory.as_ref(), self.len)
    }

    /// Returns a view of some elements.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice(
        &self,
        range: impl RangeBounds<usize>,
    ) -> Result<View<'_, T, K::Memory>, BufferError> {
        self.view().slice(range)
    }

    /// Divides the buffer into two views: of the elements before `mid`, and of the others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at(&self, mid: usize) -> Result<Halves<View<'_, T, K::Memory>>, BufferError> {
        self.view().split_at(mid)
    }

    /// Returns an iterator over parts of `chunk_len` elements, as [`View::chunks`] does.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks(&self, chunk_len: usize) -> Result<Chunks<'_, T, K::Memory>, BufferError> {
        self.view().chunks(chunk_len)
    }
}

impl<T: Pod, K: MutableKind> Buffer<T, K> {
    /// Allocates `len` elements and sets all of them to zero: on `stream` in device memory, by the
    /// host in pinned memory. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit), and driver errors.
    pub fn zeroed<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        Self::zeroed_tagged(ctx, stream, len, K::TAG)
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
        K::zero(&mut buffer, stream)?;
        Ok(buffer)
    }

    /// Returns a mutable view of all elements.
    #[must_use]
    pub fn view_mut(&mut self) -> ViewMut<'_, T, K::Memory> {
        ViewMut::new(self.view())
    }

    /// Returns a mutable view of some elements.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<ViewMut<'_, T, K::Memory>, BufferError> {
        self.view().slice(range).map(ViewMut::new)
    }

    /// Divides the buffer into two mutable views, as [`ViewMut::split_at_mut`] does.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<Halves<ViewMut<'_, T, K::Memory>>, BufferError> {
        let (left, right) = self.view().split_at(mid)?;
        Ok((ViewMut::new(left), ViewMut::new(right)))
    }

    /// Returns an iterator over disjoint mutable parts of `chunk_len` elements, as
    /// [`ViewMut::chunks_mut`] does.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks_mut(
        &mut self,
        chunk_len: usize,
    ) -> Result<ChunksMut<'_, T, K::Memory>, BufferError> {
        self.view().chunks(chunk_len).map(ChunksMut::new)
    }
}

impl<T: Pod, K: BufferKind> Drop for Buffer<T, K> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        K::free(&self.owner, memory);
    }
}

tracked_as!([T: Pod, K: BufferKind] Buffer<T, K>, buffer => buffer.view());

// SAFETY: the memory, if there is any, has the elements, and is freed when the buffer is dropped,
// after the recorded uses. Any bytes are a value of a `Pod`. The host has a slice of pinned
// elements only while the buffer is borrowed exclusively, and after the recorded uses.
unsafe impl<T: Pod, K: MutableKind> TypedMemory for Buffer<T, K> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: views of the buffer borrow it.
unsafe impl<T: Pod, K: MutableKind> TypedMemoryMut for Buffer<T, K> {}

impl<T: Pod, K: BufferKind> fmt::Debug for Buffer<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::NAME)
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .field("block", &self.memory.as_ref().map(K::Memory::block))
            .finish_non_exhaustive()
    }
}
