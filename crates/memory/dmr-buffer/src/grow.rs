//! Growing a device buffer: in place, or into a new block by a copy on a stream.

use std::marker::PhantomData;

use bytemuck::Pod;
use dmr_core::{ResourceError, StreamId};

use crate::{BufferError, DeviceBuffer, DeviceView, DeviceViewMut};

impl<T: Pod> DeviceBuffer<T> {
    /// Makes the buffer `new_len` elements long if it has room for them, or can [grow in
    /// place](dmr_core::DeviceMemoryResource::try_grow). Returns whether it has at least `new_len`
    /// elements now; if it is `false`, nothing has changed: [`reserve`](Self::reserve) copies the
    /// elements to a larger block. Never makes a buffer shorter. Submits no copy, and does not
    /// wait.
    ///
    /// The content of the new elements is undefined. Address and home stream stay. The home stream
    /// waits for recorded uses on other streams if the block grows; later uses on other streams
    /// wait for that.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong); [`Resource`](BufferError::Resource), as for
    /// [`DeviceMemoryResource::try_grow`](dmr_core::DeviceMemoryResource::try_grow), among them a
    /// [`WindowConflict`](dmr_core::ResourceError::WindowConflict) while a launch on another stream
    /// uses the buffer. Out of memory and out of budget are `false`, and so is a home stream whose
    /// lease was returned or that was retired.
    pub fn try_grow(&mut self, new_len: usize) -> Result<bool, BufferError> {
        if new_len > self.capacity() && !self.grow_block(new_len)? {
            return Ok(false);
        }
        self.len = self.len.max(new_len);
        Ok(true)
    }

    /// Reserves room for `additional` elements behind the existing ones: afterwards the
    /// [capacity](Self::capacity) is at least `len + additional`. Does not wait for the device.
    ///
    /// Grows in place where it can, as [`try_grow`](Self::try_grow) does, and then submits nothing
    /// to `stream`. Otherwise it allocates a larger block, copies the elements on `stream`, and
    /// frees the old block after the copy and all earlier uses. The new block has the tag and the
    /// home stream of the old one; if that stream's lease was returned, or its owner has retired
    /// it, the home stream is `stream` from now on. Both blocks are charged to a budget until the
    /// old one is freed.
    ///
    /// It reserves exactly that: to append many times, reserve once for all of them.
    ///
    /// A launch that was prepared with the buffer goes on using the old block, which is kept until
    /// the launch is finished: what it writes there is not in the new one.
    ///
    /// # Errors
    ///
    /// [`TooLong`](BufferError::TooLong); [`Resource`](BufferError::Resource), as for
    /// [`try_grow`](Self::try_grow), [`allocate`](dmr_core::DeviceMemoryResource::allocate) and
    /// [`copy_from`](Self::copy_from). After an error the buffer is as it was.
    pub fn reserve(
        &mut self,
        additional: usize,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let too_long = BufferError::TooLong { len: usize::MAX, element_bytes: size_of::<T>() };
        let needed = self.len.checked_add(additional).ok_or(too_long)?;
        let stream = self.owner.streams.enter(stream.into())?.id();
        if needed <= self.capacity() || self.grow_block(needed)? {
            return Ok(());
        }
        self.move_to_larger(needed, stream)
    }

    /// Appends a copy of the slice, ordered on `stream`. [Reserves](Self::reserve) the room first.
    /// Returns when the copy no longer reads the slice.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`copy_from_host`](Self::copy_from_host). After an error
    /// the elements are as they were; the capacity may be larger.
    pub fn extend_from_host(
        &mut self,
        host: &[T],
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let stream = stream.into();
        self.extend(host.len(), stream, |mut new| new.copy_from_host(host, stream))
    }

    /// Appends a copy of a view's elements, ordered on `stream`. [Reserves](Self::reserve) the room
    /// first. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve) and [`copy_from`](Self::copy_from). After an error the
    /// elements are as they were; the capacity may be larger.
    pub fn extend_from<'s>(
        &mut self,
        source: impl Into<DeviceView<'s, T>>,
        stream: impl Into<StreamId>,
    ) -> Result<(), BufferError> {
        let source = source.into();
        let stream = stream.into();
        self.extend(source.len(), stream, |mut new| new.copy_from(source, stream))
    }

    /// Makes the buffer `len` elements long if it is longer. The capacity stays, and the block: no
    /// memory is freed.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Makes the buffer longer, and writes the new elements.
    fn extend(
        &mut self,
        additional: usize,
        stream: StreamId,
        write: impl FnOnce(DeviceViewMut<'_, T>) -> Result<(), BufferError>,
    ) -> Result<(), BufferError> {
        self.reserve(additional, stream)?;
        let old_len = self.len;
        // No overflow: it is no more than the capacity.
        self.len += additional;
        let written = self.slice_mut(old_len..).and_then(write);
        if written.is_err() {
            self.len = old_len;
        }
        written
    }

    /// Grows the block in place to `len` elements, more than it has room for. Returns whether it
    /// could.
    fn grow_block(&mut self, len: usize) -> Result<bool, BufferError> {
        let bytes = Self::bytes_of(len)?;
        let Some(block) = &mut self.memory else { return Ok(false) };
        // A resource may exchange the block for a smaller one, or return `true` without the room:
        // copies must not write over other memory. After a panic the buffer has no elements.
        let elements = std::mem::take(&mut self.len);
        let grown = self.owner.resource.try_grow(block, bytes);
        let room = block.bytes();
        self.len = elements.min(self.capacity());
        match grown {
            // The lease of the home stream was returned, or its owner has retired it.
            Err(ResourceError::StreamMisuse { .. }) => Ok(false),
            grown => Ok(grown? && room >= bytes),
        }
    }

    /// Replaces the block by one with room for `len` elements, and copies the elements on `stream`.
    fn move_to_larger(&mut self, len: usize, stream: StreamId) -> Result<(), BufferError> {
        let owner = self.owner.clone();
        // A resource that tracks no uses may not look: the graph would have the copy, and the
        // buffer not.
        owner.streams.enter(stream)?.refuse_capture()?;
        let home = owner.streams.enter(self.home).map_or(stream, |home| home.id());
        let memory = Some(owner.allocate(Self::bytes_of(len)?, home, self.tag)?);
        let len = self.len;
        let tag = self.tag;
        let mut larger = Self { memory, len, home, tag, owner, elements: PhantomData };
        larger.copy_from(&*self, stream)?;
        *self = larger;
        Ok(())
    }
}
