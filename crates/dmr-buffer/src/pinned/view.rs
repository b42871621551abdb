//! Views of pinned memory, or of a part of it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::slice;

use bytemuck::Pod;
use dmr_core::{ByteRange, StreamId};
use dmr_streams::{MemoryOrigin, PinnedMemory, TrackedMemory};

use crate::owner::{Kind, Owner};
use crate::transfer::{self, Span};
use crate::view::bounds;
use crate::{BufferError, DeviceView, DeviceViewMut};

/// A view of elements in pinned memory, for copies to the device. `Copy`.
///
/// A use of it is a use of these elements: uses of disjoint parts of one buffer neither conflict nor wait for each
/// other. It gives the host no access to the elements, which the device may use meanwhile.
#[derive(Clone, Copy)]
pub struct PinnedView<'a, T: Pod> {
    owner: &'a Owner,
    /// `None` for no bytes.
    memory: Option<&'a PinnedMemory>,
    start: NonNull<T>,
    len: usize,
    /// It covers its buffer, so a use of it is a use of the whole block.
    is_whole: bool,
    elements: PhantomData<&'a [T]>,
}

/// A mutable view of elements in pinned memory, for copies in both directions and for the host. No other view of these
/// elements exists while it is used.
///
/// The host waits for the uses of these elements, and for no others: one part can be filled while the device reads
/// another.
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
pub struct PinnedViewMut<'a, T: Pod> {
    view: PinnedView<'a, T>,
    elements: PhantomData<&'a mut [T]>,
}

// SAFETY: a shared view gives no access to the elements but to the device, ordered by the use table.
unsafe impl<T: Pod + Sync> Send for PinnedView<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Sync> Sync for PinnedView<'_, T> {}
// SAFETY: it has its elements alone, as a `&mut [T]` has.
unsafe impl<T: Pod + Send> Send for PinnedViewMut<'_, T> {}
// SAFETY: shared, it gives no access to the elements but to the device, ordered by the use table.
unsafe impl<T: Pod + Sync> Sync for PinnedViewMut<'_, T> {}

impl<'a, T: Pod> PinnedView<'a, T> {
    /// Makes a view of the `len` elements of a buffer.
    pub(super) fn of_whole(
        owner: &'a Owner,
        memory: Option<&'a PinnedMemory>,
        start: NonNull<T>,
        len: usize,
    ) -> Self {
        Self { owner, memory, start, len, is_whole: true, elements: PhantomData }
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
    pub fn chunks(
        &self,
        chunk_len: usize,
    ) -> Result<impl ExactSizeIterator<Item = Self> + use<'a, T>, BufferError> {
        if chunk_len == 0 {
            return Err(BufferError::EmptyChunks);
        }
        let all = *self;
        let starts = (0..all.len).step_by(chunk_len);
        Ok(starts.map(move |start| all.part(start..all.len.min(start + chunk_len))))
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
        let target = target.into();
        self.check_len(target.len())?;
        transfer::copy_pinned(target.as_view().span(), self.span(), stream.into())
    }

    fn check_len(&self, device_len: usize) -> Result<(), BufferError> {
        if self.len == device_len {
            Ok(())
        } else {
            Err(BufferError::PinnedLengthMismatch { pinned_len: self.len, device_len })
        }
    }

    /// Returns a view of a range that is inside of this one.
    fn part(&self, Range { start, end }: Range<usize>) -> Self {
        let len = end - start;
        let is_whole = self.is_whole && len == self.len;
        // A part of no bytes needs no order.
        let memory = self.memory.filter(|_| len * size_of::<T>() > 0);
        // SAFETY: the range is inside of the view.
        let start = unsafe { self.start.add(start) };
        Self { memory, start, len, is_whole, ..*self }
    }

    fn span(&self) -> Span<'a> {
        Span {
            owner: self.owner,
            block: self.memory.map(|memory| memory.block().id()),
            ptr: self.device_ptr(),
            bytes: self.size_in_bytes(),
            used: self.byte_range(),
            kind: Kind::Pinned,
        }
    }
}

impl<'a, T: Pod> PinnedViewMut<'a, T> {
    /// Makes a mutable view. The caller has borrowed the elements mutably.
    pub(super) fn new(view: PinnedView<'a, T>) -> Self {
        Self { view, elements: PhantomData }
    }

    /// Returns a view of the same elements, which borrows this one.
    #[must_use]
    pub fn as_view(&self) -> PinnedView<'_, T> {
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
    ) -> Result<PinnedViewMut<'_, T>, BufferError> {
        self.view.slice(range).map(PinnedViewMut::new)
    }

    /// Divides the view into two mutable views: of the elements before `mid`, and of the others.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`](BufferError::OutOfRange).
    pub fn split_at_mut(
        &mut self,
        mid: usize,
    ) -> Result<(PinnedViewMut<'_, T>, PinnedViewMut<'_, T>), BufferError> {
        let (left, right) = self.view.split_at(mid)?;
        Ok((PinnedViewMut::new(left), PinnedViewMut::new(right)))
    }

    /// Returns an iterator over disjoint mutable parts of `chunk_len` elements, from the first element on. The
    /// last part is shorter if there are not enough elements.
    ///
    /// # Errors
    ///
    /// [`EmptyChunks`](BufferError::EmptyChunks) if `chunk_len` is 0.
    pub fn chunks_mut(
        &mut self,
        chunk_len: usize,
    ) -> Result<impl ExactSizeIterator<Item = PinnedViewMut<'_, T>>, BufferError> {
        let parts = self.as_view().chunks(chunk_len)?;
        Ok(parts.map(PinnedViewMut::new))
    }

    /// Returns the elements, once every recorded use of them is done. Waits for that.
    ///
    /// # Errors
    ///
    /// [`InUse`](BufferError::InUse) while a launch that uses one of them is prepared and not finished;
    /// driver errors, when nothing is known of the uses.
    pub fn as_slice(&mut self) -> Result<&[T], BufferError> {
        self.as_mut_slice().map(|elements| &*elements)
    }

    /// Returns the elements, to read and write, once every recorded use of them is done. Waits for that.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], BufferError> {
        Self::new(self.view).into_mut_slice()
    }

    /// As [`as_mut_slice`](Self::as_mut_slice), for as long as the view could be used.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn into_mut_slice(self) -> Result<&'a mut [T], BufferError> {
        if let Some(memory) = self.view.memory
            && !memory.synchronize(self.view.byte_range())?
        {
            return Err(BufferError::InUse);
        }
        // SAFETY: `len` elements in memory whose every byte was written, aligned; any bytes are a `Pod`. No use is
        // under way, and none can be submitted: this view has the elements alone, and is consumed.
        Ok(unsafe { slice::from_raw_parts_mut(self.view.start.as_ptr(), self.view.len) })
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
    ) -> Result<(), BufferError>
    where
        T: 't,
    {
        self.view.copy_to_device(target, stream)
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
    ) -> Result<(), BufferError>
    where
        T: 's,
    {
        let source = source.into();
        self.view.check_len(source.len())?;
        transfer::copy_pinned(self.view.span(), source.span(), stream.into())
    }
}

impl<T: Pod> TrackedMemory for PinnedView<'_, T> {
    fn device_ptr(&self) -> u64 {
        self.memory.map_or(0, |_| self.start.addr().get() as u64)
    }

    fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.memory.map_or(MemoryOrigin::Empty, |memory| MemoryOrigin::Pinned(memory.block().id()))
    }

    fn byte_range(&self) -> ByteRange {
        match self.is_whole {
            true => ByteRange::WHOLE,
            false => ByteRange::new(self.device_ptr(), self.size_in_bytes()),
        }
    }
}

impl<T: Pod> TrackedMemory for PinnedViewMut<'_, T> {
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

impl<T: Pod> fmt::Debug for PinnedView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedView")
            .field("ptr", &format_args!("{:#x}", self.device_ptr()))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<T: Pod> fmt::Debug for PinnedViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PinnedViewMut").field(&self.view).finish()
    }
}
