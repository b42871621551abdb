//! Page-locked host memory, which the device copies to and from while the host goes on.

use std::fmt;
use std::ptr::NonNull;
use std::slice;

use bytemuck::Pod;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{ByteRange, DeviceBlock, ResourceResult, StreamId};
use dmr_streams::{
    DeviceContext, MemoryOrigin, PinnedMemory, TrackedMemory, TypedMemory, TypedMemoryMut,
};

pub use dmr_streams::reap_orphaned_pinned;

use crate::owner::{Kind, Owner};
use crate::transfer::{self, Span};
use crate::{BufferError, DeviceView, DeviceViewMut};

/// Elements in page-locked host memory, for copies that do not wait.
///
/// The use table of the streams tracks it like a block. So copies on any stream are ordered with
/// each other, and kernels can be given it through a launch recorder: the device sees it at the
/// same address.
///
/// # The host's turn
///
/// [`as_slice`](Self::as_slice) and [`as_mut_slice`](Self::as_mut_slice) wait until every recorded
/// use is done. They borrow the buffer exclusively, so that no copy can be submitted while the host
/// has the slice.
///
/// # Dropping it
///
/// Dropping it does not wait. The memory is *retired*, and freed once its uses are done: when the
/// next pinned buffer of the stream pool is made, in [`try_reap_pinned`], or in [`reap_pinned`],
/// which waits. Until then it belongs to the stream pool, and keeps neither the pool nor the
/// resource alive. When the last owner of the stream pool is dropped, memory whose uses are done is
/// freed; [`reap_orphaned_pinned`] frees the rest.
///
/// The driver's own free, `cuMemFreeHost`, may wait for other work of the device.
pub struct PinnedBuffer<T: Pod> {
    /// `None` for no bytes.
    memory: Option<PinnedMemory>,
    elements: NonNull<T>,
    len: usize,
    owner: Owner,
}

// SAFETY: it owns its elements as a `Vec` does; nothing in it belongs to a thread.
unsafe impl<T: Pod + Send> Send for PinnedBuffer<T> {}
// SAFETY: shared, it gives no access to the elements but to the device, ordered by the use table.
unsafe impl<T: Pod + Sync> Sync for PinnedBuffer<T> {}

impl<T: Pod> PinnedBuffer<T> {
    /// `len` elements, all zero, mostly used on `stream`: its home stream.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong); stream errors; driver errors, among them that the host
    /// has no more memory to lock.
    pub fn zeroed<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        len: usize,
    ) -> Result<Self, BufferError> {
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "pages are not aligned to that") };
        let element_bytes = size_of::<T>();
        let bytes = len
            .checked_mul(element_bytes)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(BufferError::TooLong { len, element_bytes })?;
        let owner = Owner::of(ctx);
        let home = owner.streams.resolve_id(stream.into())?;
        if bytes == 0 {
            return Ok(Self { memory: None, elements: NonNull::dangling(), len, owner });
        }
        let memory = owner.streams.allocate_pinned(bytes, home)?;
        let elements = memory.start().cast();
        Ok(Self { memory: Some(memory), elements, len, owner })
    }

    /// A copy of the slice.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed).
    pub fn from_slice<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        host: &[T],
    ) -> Result<Self, BufferError> {
        let mut pinned = Self::zeroed(ctx, stream, host.len())?;
        pinned.elements_mut().copy_from_slice(host);
        Ok(pinned)
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

    /// The elements, once every recorded use is done. Waits for that.
    ///
    /// # Errors
    ///
    /// [`InUse`](BufferError::InUse) while a launch that uses it is prepared and not finished;
    /// driver errors, when nothing is known of the uses.
    pub fn as_slice(&mut self) -> Result<&[T], BufferError> {
        self.as_mut_slice().map(|elements| &*elements)
    }

    /// The elements, to read and write, once every recorded use is done. Waits for that.
    ///
    /// # Errors
    ///
    /// As [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], BufferError> {
        if let Some(memory) = &mut self.memory
            && !memory.synchronize()?
        {
            return Err(BufferError::InUse);
        }
        Ok(self.elements_mut())
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
        let source = source.into();
        self.check_len(source.len())?;
        transfer::copy_pinned(self.span(), source.span(), stream.into())
    }

    fn check_len(&self, device_len: usize) -> Result<(), BufferError> {
        if self.len == device_len {
            Ok(())
        } else {
            Err(BufferError::PinnedLengthMismatch { pinned_len: self.len, device_len })
        }
    }

    fn block(&self) -> Option<&DeviceBlock> {
        self.memory.as_ref().map(PinnedMemory::block)
    }

    /// The caller has made sure that the device does not use them.
    fn elements_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` elements that were written when they were allocated, aligned, ours alone
        // while this is borrowed; any bytes are a `Pod`.
        unsafe { slice::from_raw_parts_mut(self.elements.as_ptr(), self.len) }
    }

    fn span(&self) -> Span<'_> {
        let block = self.block();
        Span {
            owner: &self.owner,
            block: block.map(DeviceBlock::id),
            ptr: block.map_or(0, DeviceBlock::ptr),
            bytes: self.len * size_of::<T>(),
            used: ByteRange::WHOLE,
            kind: Kind::Pinned,
        }
    }
}

impl<T: Pod> TrackedMemory for PinnedBuffer<T> {
    fn device_ptr(&self) -> u64 {
        self.block().map_or(0, DeviceBlock::ptr)
    }

    fn size_in_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn origin(&self) -> MemoryOrigin<'_> {
        self.block().map_or(MemoryOrigin::Empty, |block| MemoryOrigin::Pinned(block.id()))
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
        self.len
    }
}

// SAFETY: as above.
unsafe impl<T: Pod> TypedMemoryMut for PinnedBuffer<T> {}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.block())
            .finish_non_exhaustive()
    }
}

/// Frees the pinned buffers of the context's streams that were dropped and whose uses are done;
/// returns their bytes. Polls the uses and does not wait for them; does nothing while another
/// thread reaps.
///
/// # Errors
///
/// The first error. What could not be freed is still retired: call again.
pub fn try_reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    ctx.streams().try_reap_pinned()
}

/// Waits for the pinned buffers of the context's streams that were dropped, unless a launch that
/// uses one is prepared and not finished, and frees them; returns their bytes.
///
/// # Errors
///
/// As [`try_reap_pinned`].
pub fn reap_pinned<C: DeviceContext + ?Sized>(ctx: &C) -> ResourceResult<u64> {
    ctx.streams().reap_pinned()
}
