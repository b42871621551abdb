//! Buffers in device memory.

use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_core::{AllocTag, DeviceBlock, StreamId};
use dmr_streams::DeviceContext;

use super::{Buffer, Device};
use crate::owner::Owner;
use crate::{BufferError, DeviceView};

/// Owned elements in device memory.
///
/// It is made on a stream, its *home stream*. Dropping it does not wait: the memory is freed after
/// the work that was submitted to the home stream so far, and after every recorded use. If the
/// resource refuses to free it, the failure is counted and keeps the block: see
/// [`failures`](crate::failures).
///
/// A buffer of no bytes needs no block, and its address is 0.
///
/// It [grows](Self::reserve) in place where its resource can do that, otherwise by a copy on a
/// stream.
///
/// It keeps its resource and its streams alive, and may outlive the context that it was made with.
pub type DeviceBuffer<T> = Buffer<T, Device>;

impl<T: Pod> DeviceBuffer<T> {
    /// Allocates a copy of the slice, ordered on `stream`. Returns when the copy no longer reads
    /// the slice.
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

    /// As [`from_host`](Self::from_host), with a tag that names the buffer's purpose in reports.
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

    /// Returns the block of the elements; `None` if nothing was allocated, as for a new buffer of
    /// no bytes.
    #[must_use]
    pub fn block(&self) -> Option<&DeviceBlock> {
        self.memory.as_ref()
    }

    /// Returns the resource and the streams that the buffer was made with.
    #[must_use]
    pub fn context(&self) -> &(dyn DeviceContext + Send + Sync) {
        &self.owner
    }

    /// Copies all elements to the host, as [`DeviceView::to_host`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceView::to_host`].
    pub fn to_host(&self, stream: impl Into<StreamId>) -> Result<Vec<T>, BufferError> {
        self.view().to_host(stream)
    }

    /// Copies all elements to a slice, as [`DeviceView::copy_to_host`] does.
    ///
    /// # Errors
    ///
    /// As [`DeviceView::copy_to_host`].
    pub fn copy_to_host(
        &self,
        host: &mut [T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view().copy_to_host(host, stream)
    }

    /// Overwrites all elements, as [`DeviceViewMut::copy_from`](crate::DeviceViewMut::copy_from)
    /// does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::copy_from`](crate::DeviceViewMut::copy_from).
    pub fn copy_from<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view_mut().copy_from(source, stream)
    }

    /// Overwrites all elements from a slice, as
    /// [`DeviceViewMut::copy_from_host`](crate::DeviceViewMut::copy_from_host) does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::copy_from_host`](crate::DeviceViewMut::copy_from_host).
    pub fn copy_from_host(
        &mut self,
        host: &[T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        self.view_mut().copy_from_host(host, stream)
    }

    /// Sets every element to `value`, as [`DeviceViewMut::fill`](crate::DeviceViewMut::fill) does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::fill`](crate::DeviceViewMut::fill).
    pub fn fill(&mut self, value: T, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill(value, stream)
    }

    /// Sets every byte, as [`DeviceViewMut::fill_bytes`](crate::DeviceViewMut::fill_bytes) does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::fill_bytes`](crate::DeviceViewMut::fill_bytes).
    pub fn fill_bytes(&mut self, byte: u8, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill_bytes(byte, stream)
    }

    /// Sets every element to zero, as [`DeviceViewMut::fill_zero`](crate::DeviceViewMut::fill_zero)
    /// does.
    ///
    /// # Errors
    ///
    /// As [`DeviceViewMut::fill_zero`](crate::DeviceViewMut::fill_zero).
    pub fn fill_zero(&mut self, stream: impl Into<StreamId>) -> Result<(), BufferError> {
        self.view_mut().fill_zero(stream)
    }
}

impl DeviceBuffer<u8> {
    /// Makes a buffer of all bytes of a block of the context's resource. Dropping the buffer
    /// deallocates the block.
    #[must_use]
    pub fn from_block<C: DeviceContext + ?Sized>(ctx: &C, block: DeviceBlock) -> Self {
        Self {
            len: block.bytes(),
            home: block.alloc_stream(),
            tag: block.tag(),
            owner: Owner::of(ctx),
            memory: Some(block),
            elements: PhantomData,
        }
    }
}
