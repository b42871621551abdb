//! Views of a buffer, or of a part of it, in device memory and in pinned memory.

mod cast;
mod device;
mod memory;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;
use dmr_core::{BlockId, ByteRange};
use dmr_streams::{MemoryOrigin, TrackedMemory, TypedMemory, TypedMemoryMut};

use crate::owner::Owner;
use crate::transfer::Span;
use crate::{BufferError, Chunks, ChunksMut};

pub(crate) use device::same_len;
pub use device::{DeviceView, DeviceViewMut};
pub(crate) use memory::ViewedMemory;

/// A view of elements in memory of the kind `M`: a [`DeviceView`], or a
/// [`PinnedView`](crate::PinnedView).
pub struct View<'a, T: Pod, M: ViewedMemory> {
    owner: &'a Owner,
    /// `None` for no bytes.
    memory: Option<&'a M>,
    /// The address of the first element; 0 for no bytes.
    ptr: u64,
    len: usize,
    /// It covers its block, so a use of it is a use of the whole block.
    is_whole: bool,
    elements: PhantomData<&'a [T]>,
}

/// A mutable view of elements in memory of the kind `M`: a [`DeviceViewMut`], or a
/// [`PinnedViewMut`](crate::PinnedViewMut).
pub struct ViewMut<'a, T: Pod, M: ViewedMemory> {
    view: View<'a, T, M>,
    elements: PhantomData<&'a mut [T]>,
}

/// Two views: of the elements before an index, and of the others.
pub(crate) type Halves<V> = (V, V);

impl<'a, T: Pod, M: ViewedMemory> View<'a, T, M> {
    /// Makes a view of all `len` elements of a buffer, which begin where its memory does.
    pub(crate) fn of_whole(owner: &'a Owner, memory: Option<&'a M>, len: usize) -> Self {
        let ptr = memory.map_or(0, |memory| memory.block().ptr());
        Self { is_whole: true, ..Self::new(owner, memory, ptr, len) }
    }

    /// Makes a view of `len` elements at `ptr`, inside of the memory.
    fn new(owner: &'a Owner, memory: Option<&'a M>, ptr: u64, len: usize) -> Self {
        // Memory of no bytes has no block and needs no order.
        let (memory, ptr) = if len * size_of::<T>() == 0 { (None, 0) } else { (memory, ptr) };
        Self { owner, memory, ptr, len, is_whole: false, elements: PhantomData }
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

    /// Returns an iterator over parts of `chunk_len` elements, from the first element on. The last
    /// part is shorter if there are not enough elements.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks(&self, chunk_len: usize) -> Result<Chunks<'a, T, M>, BufferError> {
        Chunks::new(*self, chunk_len)
    }

    /// Returns a view of elements in a range that is inside of this view.
    pub(crate) fn part(&self, Range { start, end }: Range<usize>) -> Self {
        let ptr = self.ptr + (start * size_of::<T>()) as u64;
        let is_whole = self.is_whole && end - start == self.len;
        Self { is_whole, ..Self::new(self.owner, self.memory, ptr, end - start) }
    }

    pub(crate) fn owner(&self) -> &'a Owner {
        self.owner
    }

    /// Returns the memory; `None` for no bytes.
    pub(crate) fn memory(&self) -> Option<&'a M> {
        self.memory
    }

    pub(crate) fn span(&self) -> Span<'a> {
        let bytes = self.size_in_bytes();
        let used = self.byte_range();
        let Self { owner, ptr, .. } = *self;
        Span { owner, block: self.block(), ptr, bytes, used, kind: M::KIND }
    }

    /// Returns where the uses of the elements are tracked.
    pub(crate) fn origin(&self) -> MemoryOrigin<'static> {
        self.block().map_or(MemoryOrigin::Empty, M::origin)
    }

    fn block(&self) -> Option<BlockId> {
        self.memory.map(|memory| memory.block().id())
    }
}

impl<'a, T: Pod, M: ViewedMemory> ViewMut<'a, T, M> {
    /// Makes a mutable view. The caller has borrowed the elements mutably.
    pub(crate) fn new(view: View<'a, T, M>) -> Self {
        Self { view, elements: PhantomData }
    }

    /// Returns a view of the same elements, which borrows this one.
    #[must_use]
    pub fn as_view(&self) -> View<'_, T, M> {
        self.view
    }

    /// Returns a mutable view of the same elements, which borrows this one.
    pub(crate) fn reborrow(&mut self) -> ViewMut<'_, T, M> {
        ViewMut::new(self.view)
    }

    /// Returns a view of the same elements, for as long as this one could be used.
    pub(crate) fn into_view(self) -> View<'a, T, M> {
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
    ) -> Result<ViewMut<'_, T, M>, BufferError> {
        self.view.slice(range).map(ViewMut::new)
    }

    /// Divides the view into two mutable views: of the elements before `mid`, and of the others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at_mut(&mut self, mid: usize) -> Result<Halves<ViewMut<'_, T, M>>, BufferError> {
        let (left, right) = self.view.split_at(mid)?;
        Ok((ViewMut::new(left), ViewMut::new(right)))
    }

    /// Returns an iterator over disjoint mutable parts of `chunk_len` elements, from the first
    /// element on. The last part is shorter if there are not enough elements.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks_mut(&mut self, chunk_len: usize) -> Result<ChunksMut<'_, T, M>, BufferError> {
        self.view.chunks(chunk_len).map(ChunksMut::new)
    }
}

impl<T: Pod, M: ViewedMemory> Clone for View<'_, T, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod, M: ViewedMemory> Copy for View<'_, T, M> {}

impl<T: Pod, M: ViewedMemory> TrackedMemory for View<'_, T, M> {
    fn device_ptr(&self) -> u64 {
        self.ptr
    }

    fn size_in_bytes(&self) -> usize {
        self.size_in_bytes()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.origin()
    }

    fn byte_range(&self) -> ByteRange {
        match self.is_whole {
            true => ByteRange::WHOLE,
            false => ByteRange::new(self.ptr, self.size_in_bytes()),
        }
    }
}

tracked_as!([T: Pod, M: ViewedMemory] ViewMut<'_, T, M>, memory => memory.view);

// SAFETY: the elements are inside of a buffer, which is borrowed. The host has a slice of pinned
// elements only while their mutable view is borrowed exclusively, and after the recorded uses.
unsafe impl<T: Pod, M: ViewedMemory> TypedMemory for View<'_, T, M> {
    type Element = T;

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl<T: Pod, M: ViewedMemory> TypedMemory for ViewMut<'_, T, M> {
    type Element = T;

    fn len(&self) -> usize {
        self.view.len
    }
}

// SAFETY: it borrows its elements exclusively.
unsafe impl<T: Pod, M: ViewedMemory> TypedMemoryMut for ViewMut<'_, T, M> {}

impl<'a, T: Pod, M: ViewedMemory> From<&'a ViewMut<'_, T, M>> for View<'a, T, M> {
    fn from(view: &'a ViewMut<'_, T, M>) -> Self {
        view.as_view()
    }
}

impl<T: Pod, M: ViewedMemory> fmt::Debug for View<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(M::VIEW)
            .field("ptr", &format_args!("{:#x}", self.ptr))
            .field("len", &self.len)
            .field("block", &self.block().map(BlockId::generation))
            .finish_non_exhaustive()
    }
}

impl<T: Pod, M: ViewedMemory> fmt::Debug for ViewMut<'_, T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(M::VIEW_MUT).field(&self.view).finish()
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
