//! The kinds of memory that buffers are in.

use dmr_core::{AllocTag, DeviceBlock, ResourceResult, StreamId};

use bytemuck::Pod;

use super::Buffer;
use crate::BufferError;
use crate::owner::Owner;
use crate::view::ViewedMemory;

/// A kind of memory that buffers are in. No other crate can name it.
pub trait BufferKind: Send + Sync + Sized {
    /// The name of a buffer of it.
    const NAME: &'static str;
    /// The tag of a buffer whose purpose is not given.
    const TAG: AllocTag;
    /// The most bytes of a buffer. A resource may have less.
    const MAX_BYTES: usize;

    /// The owner of the bytes of one buffer.
    type Memory: ViewedMemory;

    /// Allocates memory of at least `bytes` bytes.
    fn allocate(
        owner: &Owner,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<Self::Memory>;

    /// Frees the memory after the uses that were recorded of it.
    fn free(_: &Owner, memory: Self::Memory) {
        drop(memory);
    }
}

/// A kind of memory that has mutable views. The write-combined kind has none, because they would
/// let the host read it.
pub trait MutableKind: BufferKind {
    /// Sets the elements of a new buffer to zero, and does not wait.
    fn zero<T: Pod>(buffer: &mut Buffer<T, Self>, stream: StreamId) -> Result<(), BufferError>;
}

/// Device memory of the context's resource.
#[derive(Debug)]
pub struct Device;

impl BufferKind for Device {
    const NAME: &'static str = "DeviceBuffer";
    const TAG: AllocTag = AllocTag::UNTAGGED;
    const MAX_BYTES: usize = usize::MAX;

    type Memory = DeviceBlock;

    fn allocate(
        owner: &Owner,
        bytes: usize,
        stream: StreamId,
        tag: AllocTag,
    ) -> ResourceResult<DeviceBlock> {
        owner.allocate(bytes, stream, tag)
    }

    fn free(owner: &Owner, block: DeviceBlock) {
        owner.free(block);
    }
}

impl MutableKind for Device {
    fn zero<T: Pod>(buffer: &mut Buffer<T, Self>, stream: StreamId) -> Result<(), BufferError> {
        buffer.fill_zero(stream)
    }
}
