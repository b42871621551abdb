//! Views of a buffer, or of a part of it.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;
use dmr_core::{BlockId, ByteRange, DeviceBlock, StreamId};
use dmr_streams::{MemoryOrigin, TrackedMemory, TypedMemory, TypedMemoryMut};

use crate::owner::{Kind, Owner};
use crate::transfer::{self, Span};
use crate::{BufferError, Chunks, ChunksMut, DeviceBuffer};

/// A view of elements of a buffer. `Copy`.
///
/// A use of it is a use of these elements: launches that use disjoint parts of one buffer neither conflict nor
/// wait for each other, on whatever streams they are, and launches that use overlapping parts are ordered.
#[derive(Clone, Copy)]
pub struct DeviceView<'a, T: Pod> {
    owner: &'a Owner,
    block: Option<BlockId>,
    ptr: u64,
    len: usize,
    /// It covers its block, so a use of it is a use of the whole block.
    is_whole: bool,
    elements: PhantomData<&'a [T]>,
}

/// A mutable view of elements of a buffer. No other view of these elements exists while it is used.
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
pub struct DeviceViewMut<'a, T: Pod> {
    view: DeviceView<'a, T>,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Pod> DeviceView<'a, T> {
    /// Makes a view of the `len` elements of a block.
    pub(crate) fn of_whole(owner: &'a Owner, block: Option<&DeviceBlock>, len: usize) -> Self {
        let ptr = block.map_or(0, DeviceBlock::ptr);
        Self { is_whole: true, ..Self::new(owner, block.map(DeviceBlock::id), ptr, len) }
    }

    /// Makes a view of `len` elements at `ptr`, inside the block.
    pub(crate) fn new(owner: &'a Owner, block: Option<BlockId>, ptr: u64, len: usize) -> Self {
        // Memory of no bytes has no block and needs no order.
        let (block, ptr) = if len * size_of::<T>() == 0 { (None, 0) } else { (block, ptr) };
        Self { owner, block, ptr, len, is_whole: false, elements: PhantomData }
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

    /// Returns a view of a part.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, BufferError> {
        Ok(self.part(bounds(range, self.len)?))
    }

    /// Divides the view into two: the elements before `mid`, and the others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at(&self, mid: usize) -> Result<(Self, Self), BufferError> {
        Ok((self.slice(..mid)?, self.slice(mid..)?))
    }

    /// Returns an iterator over parts of `chunk_len` elements, from the first element on. The last part is
    /// shorter if there are not enough elements.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks(&self, chunk_len: usize) -> Result<Chunks<'a, T>, BufferError> {
        Chunks::new(*self, chunk_len)
    }

    /// Returns a view of elements in a range that is inside of this view.
    pub(crate) fn part(&self, Range { start, end }: Range<usize>) -> Self {
        let ptr = self.ptr + (start * size_of::<T>()) as u64;
        let is_whole = self.is_whole && end - start == self.len;
        Self { is_whole, ..Self::new(self.owner, self.block, ptr, end - start) }
    }

    /// Copies the elements to the host, ordered on `stream`, and waits for the copy.
    ///
    /// # Errors
    ///
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn to_host(&self, stream: impl Into<StreamId>) -> Result<Vec<T>, BufferError> {
        let mut host = ManuallyDrop::new(Vec::<T>::with_capacity(self.len));
        // SAFETY: the vector has capacity for the elements, and is leaked if it may still be written.
        let copied =
            unsafe { transfer::download(host.as_mut_ptr().cast(), self.span(), stream.into()) };
        let written = copied.outcome.map(|()| {
            // SAFETY: every element has been written, and any bytes are a value of a `Pod`.
            unsafe { host.set_len(self.len) };
        });
        let host = copied.host_is_free.then(|| ManuallyDrop::into_inner(host));
        written.map(|()| host.unwrap_or_default())
    }

    /// Copies the elements to a slice of the same length, ordered on `stream`, and waits for the copy.
    ///
    /// # Errors
    ///
    /// [`LengthMismatch`](BufferError::LengthMismatch), and as [`to_host`](Self::to_host).
    pub fn copy_to_host(
        &self,
        host: &mut [T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        same_len(self.len, host.len())?;
        // SAFETY: the slice has that length. The copy has ended when this returns, unless neither the stream
        // nor the device could be synchronised: then the context is lost, and runs no more work.
        unsafe { transfer::download(host.as_mut_ptr().cast(), self.span(), stream.into()) }.outcome
    }

    pub(crate) fn owner(&self) -> &'a Owner {
        self.owner
    }

    pub(crate) fn span(&self) -> Span<'a> {
        let (bytes, used) = (self.size_in_bytes(), self.byte_range());
        let Self { owner, block, ptr, .. } = *self;
        Span { owner, block, ptr, bytes, used, kind: Kind::Device }
    }
}

impl<'a, T: Pod> DeviceViewMut<'a, T> {
    pub(crate) fn new(view: DeviceView<'a, T>) -> Self {
        Self { view, elements: PhantomData }
    }

    /// Returns a view of the same elements, which borrows this one.
    #[must_use]
    pub fn as_view(&self) -> DeviceView<'_, T> {
        self.view
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Returns a mutable view of a part.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceViewMut<'_, T>, BufferError> {
        self.view.slice(range).map(DeviceViewMut::new)
    }

    /// Divides the view into two mutable views: of the elements before `mid`, and of the others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(DeviceViewMut<'_, T>, DeviceViewMut<'_, T>), BufferError> {
        let (left, right) = self.view.split_at(mid)?;
        Ok((DeviceViewMut::new(left), DeviceViewMut::new(right)))
    }

    /// Returns an iterator over disjoint mutable parts of `chunk_len` elements, from the first element on. The
    /// last part is shorter if there are not enough elements.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks_mut(&mut self, chunk_len: usize) -> Result<ChunksMut<'_, T>, BufferError> {
        self.view.chunks(chunk_len).map(ChunksMut::new)
    }

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
    ) -> Result<(), BufferError>
    where
        T: 's,
    {
        let source = source.into();
        same_len(source.len, self.view.len)?;
        transfer::copy(self.view.span(), source.span(), stream.into())
    }

    /// Copies the elements of a slice of the same length, ordered on `stream`. Returns when the copy no longer
    /// reads the slice.
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
        same_len(host.len(), self.view.len)?;
        // SAFETY: as in `copy_to_host`.
        unsafe { transfer::upload(self.view.span(), host.as_ptr().cast(), stream.into()) }.outcome
    }

    /// Sets every element to `value`, ordered on `stream`. Does not wait.
    ///
    /// Takes one memset if `value` consists of 1, 2 or 4 bytes repeated. For any other value, memsets write
    /// the first element, one for each 4 bytes (2 or 1, if its size is not a multiple of 4), and copies on
    /// the device double the number of written elements until all are written.
    ///
    /// # Errors
    ///
    /// [`Resource`](BufferError::Resource): stream, use and driver errors. After a driver error
    /// some elements may have been written.
    pub fn fill(&mut self, value: T, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        transfer::fill(self.view.span(), bytemuck::bytes_of(&value), stream.into())
    }

    /// Sets every byte, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Resource`](BufferError::Resource): stream, use and driver errors.
    pub fn fill_bytes(&mut self, byte: u8, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        transfer::fill(self.view.span(), &[byte], stream.into())
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

impl<T: Pod> TrackedMemory for DeviceView<'_, T> {
    fn device_ptr(&self) -> u64 {
        self.ptr
    }

    fn size_in_bytes(&self) -> usize {
        self.size_in_bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.block.map_or(MemoryOrigin::Empty, MemoryOrigin::Block)
    }

    fn byte_range(&self) -> ByteRange {
        match self.is_whole {
            true => ByteRange::WHOLE,
            false => ByteRange::new(self.ptr, self.size_in_bytes()),
        }
    }
}

impl<T: Pod> TrackedMemory for DeviceViewMut<'_, T> {
    fn device_ptr(&self) -> u64 {
        self.view.device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.view.size_in_bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.view.origin()
    }

    fn byte_range(&self) -> ByteRange {
        self.view.byte_range()
    }
}

// SAFETY: the elements are inside of a buffer, which is borrowed.
unsafe impl<T: Pod> TypedMemory for DeviceView<'_, T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl<T: Pod> TypedMemory for DeviceViewMut<'_, T> {
    type Element = T;

    fn len(&self) -> usize {
        self.view.len
    }
}

// SAFETY: it borrows its elements exclusively.
unsafe impl<T: Pod> TypedMemoryMut for DeviceViewMut<'_, T> {}

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

impl<'a, T: Pod> From<&'a DeviceViewMut<'_, T>> for DeviceView<'a, T> {
    fn from(view: &'a DeviceViewMut<'_, T>) -> Self {
        view.as_view()
    }
}

impl<T: Pod> fmt::Debug for DeviceView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceView")
            .field("ptr", &format_args!("{:#x}", self.ptr))
            .field("len", &self.len)
            .field("block", &self.block.map(BlockId::generation))
            .finish_non_exhaustive()
    }
}

impl<T: Pod> fmt::Debug for DeviceViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeviceViewMut").field(&self.view).finish()
    }
}

pub(crate) fn same_len(source_len: usize, target_len: usize) -> Result<(), BufferError> {
    if source_len == target_len {
        Ok(())
    } else {
        Err(BufferError::LengthMismatch { source_len, target_len })
    }
}

/// Returns a range with its bounds resolved, if it is inside `0..len`.
pub(crate) fn bounds(
    range: impl RangeBounds<usize>,
    len: usize,
) -> Result<Range<usize>, BufferError> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    if start <= end && end <= len {
        Ok(start..end)
    } else {
        Err(BufferError::OutOfRange { start, end, len })
    }
}
