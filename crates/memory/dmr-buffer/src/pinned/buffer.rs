//! Buffers in pinned memory, which the host reads and writes, or only writes.

use bytemuck::Pod;
use dmr_core::{AllocTag, ResourceResult, StreamId};
use dmr_pinned::{PinnedKind, PinnedMemory};
use dmr_streams::DeviceContext;

use super::PinnedViewMut;
use crate::buffer::{Buffer, BufferKind, MutableKind};
use crate::owner::Owner;
use crate::{BufferError, DeviceView, DeviceViewMut};

/// Elements in page-locked host memory, for copies that do not wait.
///
/// The use table of the streams tracks it like a block. So copies on any stream are ordered with
/// each other, and kernels can be given it through a launch recorder: the device sees it at the
/// same address.
///
/// Its memory is from the context's pool of pinned memory
/// ([`PinnedResource`](dmr_pinned::PinnedResource)), or from the context's stack over it, whose
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
pub type PinnedBuffer<T> = Buffer<T, Cached>;

/// Elements in write-combined page-locked memory, for copies to the device.
///
/// The host's writes go past its caches, and reading takes it many times as long. So a buffer gives
/// no slice: the host [writes](Self::write) it, whole elements in order, and the device reads it.
/// Apart from that it is as a [`PinnedBuffer`](super::PinnedBuffer): pooled, tracked, and dropped
/// without a driver call.
pub type WriteCombinedBuffer<T> = Buffer<T, WriteCombined>;

/// Memory that the processor caches.
#[derive(Debug)]
pub struct Cached;

/// Memory that the host writes past its caches.
#[derive(Debug)]
pub struct WriteCombined;

/// Implements the kind of a buffer of pinned memory.
macro_rules! pinned_kind {
    ($kind:ident, $name:literal) => {
        impl BufferKind for $kind {
            const NAME: &'static str = $name;
            const TAG: AllocTag = AllocTag::new("pinned");
            // The host has slices of it.
            const MAX_BYTES: usize = isize::MAX as usize;

            type Memory = PinnedMemory;

            fn allocate(
                owner: &Owner,
                bytes: usize,
                stream: StreamId,
                tag: AllocTag,
            ) -> ResourceResult<PinnedMemory> {
                const KIND: PinnedKind = PinnedKind::$kind;
                let resource = owner.pinned.as_ref().and_then(|pinned| pinned.of_kind(KIND));
                PinnedMemory::allocate(resource, &owner.streams, KIND, bytes, stream, tag)
            }
        }
    };
}

pinned_kind!(Cached, "PinnedBuffer");
pinned_kind!(WriteCombined, "WriteCombinedBuffer");

impl MutableKind for Cached {
    fn zero<T: Pod>(buffer: &mut PinnedBuffer<T>, _: StreamId) -> Result<(), BufferError> {
        buffer.unused_mut().fill(T::zeroed());
        Ok(())
    }
}

impl<T: Pod, K: BufferKind<Memory = PinnedMemory>> Buffer<T, K> {
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
        Self::from_slice_tagged(ctx, stream, host, K::TAG)
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
    ) -> Result<(), BufferError> {
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

    /// Overwrites the elements with as many of the device, ordered on `stream`. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`copy_to_device`](Self::copy_to_device).
    pub fn copy_from_device<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
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
