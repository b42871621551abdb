//! Owned elements in pinned memory.

use std::fmt;
use std::ptr::NonNull;
use std::slice;

use bytemuck::Pod;
use dmr_core::size::BLOCK_ALIGNMENT;
use dmr_core::{AllocTag, StreamId};
use dmr_streams::{DeviceContext, MemoryOrigin, PinnedKind, PinnedMemory};

use super::PinnedView;
use crate::BufferError;
use crate::owner::Owner;

/// The memory of a pinned buffer, of any kind.
pub(super) struct Elements<T: Pod> {
    /// `None` for no bytes.
    memory: Option<PinnedMemory>,
    start: NonNull<T>,
    len: usize,
    owner: Owner,
}

// SAFETY: it owns its elements as a `Vec` does; nothing in it belongs to a thread.
unsafe impl<T: Pod + Send> Send for Elements<T> {}
// SAFETY: shared, it gives no access to the elements but to the device, ordered by the use table.
unsafe impl<T: Pod + Sync> Sync for Elements<T> {}

impl<T: Pod> Elements<T> {
    /// Allocates `len` elements in memory whose every byte was written.
    pub(super) fn allocate<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: StreamId,
        len: usize,
        kind: PinnedKind,
        tag: AllocTag,
    ) -> Result<Self, BufferError> {
        const { assert!(align_of::<T>() <= BLOCK_ALIGNMENT, "blocks are aligned to less") };
        let element_bytes = size_of::<T>();
        let bytes = len
            .checked_mul(element_bytes)
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or(BufferError::TooLong { len, element_bytes })?;
        let owner = Owner::of(ctx);
        if bytes == 0 {
            drop(owner.streams.enter(stream)?);
            return Ok(Self { memory: None, start: NonNull::dangling(), len, owner });
        }
        let resource = ctx.pinned_resource(kind);
        let memory = PinnedMemory::allocate(resource, &owner.streams, kind, bytes, stream, tag)?;
        let start = memory.start().cast();
        Ok(Self { memory: Some(memory), start, len, owner })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the elements of memory that was allocated just now, so that the device does not use it.
    pub(super) fn unused_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` elements in memory whose every byte was written, aligned, ours alone while this is
        // borrowed; any bytes are a `Pod`.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub(super) fn view(&self) -> PinnedView<'_, T> {
        PinnedView::of_whole(&self.owner, self.memory.as_ref(), self.len)
    }

    pub(super) fn origin(&self) -> MemoryOrigin<'_> {
        let id = self.memory.as_ref().map(|memory| memory.block().id());
        id.map_or(MemoryOrigin::Empty, MemoryOrigin::Pinned)
    }

    pub(super) fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len)
            .field("block", &self.memory.as_ref().map(PinnedMemory::block))
            .finish_non_exhaustive()
    }
}
