//! Memory of other owners as columns: adopted, tracked, and read-only where its owner says so.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_core::error::AddressProblem;
use dmr_core::{AllocTag, ResourceError, StreamId};
use dmr_external::{AdoptError, ForeignBlocks, ForeignMemory, Ready};
use dmr_streams::{DeviceContext, TrackedMemory};

use crate::owner::Owner;
use crate::{BufferError, DeviceBuffer, DeviceViewMut};

/// The access that the owner of adopted memory allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedAccess {
    /// It may only be read: others may be reading it.
    ReadOnly,
    /// It may be read and written.
    ReadWrite,
}

/// Elements in device memory of another owner, adopted with the work of its producer.
///
/// It is tracked like a buffer: launches on any stream are ordered. When it is dropped, and the
/// device has completed its last use, its owner is dropped, once
/// ([`AdoptedBlocks`](dmr_external::AdoptedBlocks) says by which thread). The host does not wait.
///
/// A launch that declares a write of a read-only column is refused, and there is no mutable view
/// of it.
pub struct AdoptedColumn<T: Pod> {
    buffer: DeviceBuffer<T>,
    access: AllowedAccess,
}

impl<T: Pod> AdoptedColumn<T> {
    /// Adopts memory as elements, as many as its bytes hold, with `stream` as their home stream.
    /// The next work on `stream` comes after the work of `ready`, and uses on other streams come
    /// after that. Does not wait. Memory of no bytes becomes an empty column, and its owner is
    /// dropped here.
    ///
    /// # Errors
    ///
    /// The memory is in the error, as it was.
    /// [`NotAdopted`](ResourceError::NotAdopted) also for an address that is not aligned to the
    /// elements; otherwise as [`ForeignBlocks::adopt`].
    ///
    /// # Safety
    ///
    /// As [`ForeignBlocks::adopt`]. With [`AllowedAccess::ReadOnly`] others may read the elements,
    /// too, until the owner is dropped.
    pub unsafe fn adopt<C: DeviceContext + ?Sized>(
        ctx: &C,
        stream: impl Into<StreamId>,
        memory: ForeignMemory,
        ready: Ready,
        access: AllowedAccess,
        tag: AllocTag,
    ) -> Result<Self, Box<AdoptError>> {
        let blocks = ForeignBlocks::of(ctx);
        let owner = Owner { pinned: ctx.pinned_resources().cloned(), ..Owner::of(&blocks) };
        let home = match owner.streams.enter(stream.into()) {
            Ok(stream) => stream.id(),
            Err(error) => return Err(AdoptError::new(error, memory)),
        };
        let len = memory.bytes().checked_div(size_of::<T>()).unwrap_or(0);
        if len > 0 && !memory.ptr().is_multiple_of(align_of::<T>() as u64) {
            let problem = AddressProblem::misaligned(align_of::<T>());
            let device = owner.streams.device().ordinal();
            let error = ResourceError::not_adopted(memory.ptr(), memory.bytes(), device, problem);
            return Err(AdoptError::new(error, memory));
        }
        let memory = match len {
            0 => None,
            // SAFETY: the caller's obligation.
            _ => Some(unsafe { blocks.adopt(memory, home, ready, tag) }?),
        };
        let buffer = DeviceBuffer { memory, len, home, tag, owner, elements: PhantomData };
        Ok(Self { buffer, access })
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the access that the owner allows.
    #[must_use]
    pub fn access(&self) -> AllowedAccess {
        self.access
    }

    /// Returns the elements as a buffer, to read them.
    #[must_use]
    pub fn as_buffer(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }

    /// Returns a mutable view of the elements.
    ///
    /// # Errors
    ///
    /// [`ReadOnly`](BufferError::ReadOnly).
    pub fn view_mut(&mut self) -> Result<DeviceViewMut<'_, T>, BufferError> {
        match self.access {
            AllowedAccess::ReadOnly => Err(BufferError::ReadOnly),
            AllowedAccess::ReadWrite => Ok(self.buffer.view_mut()),
        }
    }

    /// Makes a column of another type of elements of the same memory.
    ///
    /// # Errors
    ///
    /// The column, unchanged, if the address or the size in bytes does not fit that type.
    pub fn cast_into<U: Pod>(self) -> Result<AdoptedColumn<U>, Box<Self>> {
        let Self { buffer, access } = self;
        match buffer.cast_into() {
            Ok(buffer) => Ok(AdoptedColumn { buffer, access }),
            Err(buffer) => Err(Box::new(Self { buffer: *buffer, access })),
        }
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Makes a buffer of another type of elements of the same memory.
    ///
    /// # Errors
    ///
    /// The buffer, unchanged, if the address or the size in bytes does not fit that type.
    pub fn cast_into<U: Pod>(mut self) -> Result<DeviceBuffer<U>, Box<Self>> {
        let bytes = self.size_in_bytes();
        let is_aligned = self.device_ptr().is_multiple_of(align_of::<U>() as u64);
        let len = match size_of::<U>() {
            size if size > 0 && bytes.is_multiple_of(size) && is_aligned => bytes / size,
            _ => return Err(Box::new(self)),
        };
        let memory = self.memory.take();
        let owner = self.owner.clone();
        let home = self.home;
        let tag = self.tag;
        Ok(DeviceBuffer { memory, len, home, tag, owner, elements: PhantomData })
    }
}

impl<T: Pod> TrackedMemory for AdoptedColumn<T> {
    fn device_ptr(&self) -> u64 {
        self.buffer.device_ptr()
    }

    fn size_in_bytes(&self) -> usize {
        self.buffer.size_in_bytes()
    }

    fn origin(&self) -> dmr_streams::MemoryOrigin<'_> {
        self.buffer.origin()
    }

    fn byte_range(&self) -> dmr_core::ByteRange {
        self.buffer.byte_range()
    }

    fn is_read_only(&self) -> bool {
        self.access == AllowedAccess::ReadOnly
    }
}

impl<T: Pod> fmt::Debug for AdoptedColumn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedColumn")
            .field("access", &self.access)
            .field("elements", &self.buffer)
            .finish()
    }
}
