//! A copy to the host that a task awaits.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll, ready};

use bytemuck::Pod;
use dmr_core::StreamId;
use dmr_streams::Completed;

use crate::{BufferError, DeviceBuffer, DeviceView, PinnedBuffer};

/// A copy of device memory to pinned host memory: a future of the elements, made by
/// [`DeviceView::to_host_async`].
///
/// It borrows nothing. Dropping it cancels nothing on the device, does not wait, and frees the
/// pinned memory once the copy is done. It waits as [`Completed`] does, on any executor. A poll
/// after it was ready stays pending.
#[must_use = "the copy is submitted, and its elements are returned where it is awaited"]
pub struct ToHost<T: Pod> {
    state: State<T>,
}

enum State<T: Pod> {
    Copying {
        elements: PinnedBuffer<T>,
        completed: Completed,
    },
    /// The copy was not submitted.
    Failed(BufferError),
    /// It has returned its output.
    Taken,
}

/// Elements in pinned host memory that no device work uses: a slice, without another copy.
///
/// [`to_vec`](slice::to_vec) copies them to ordinary memory; [`into_pinned`](Self::into_pinned)
/// returns the memory for other copies.
pub struct HostCopy<T: Pod> {
    elements: PinnedBuffer<T>,
}

impl<'a, T: Pod> DeviceView<'a, T> {
    /// Copies the elements to pinned host memory, ordered on `stream`, and returns a future of
    /// them. The copy is submitted by this call, not by the first poll; it covers what was
    /// submitted before and nothing later.
    ///
    /// The future returns the errors of this call, too: [`Resource`](BufferError::Resource), for
    /// stream, use and driver errors, among them that the host has no more memory to lock, and
    /// [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget) of the context's budget for pinned
    /// memory.
    pub fn to_host_async(&self, stream: impl Into<StreamId>) -> ToHost<T> {
        let state = match self.copy_to_pinned(stream.into()) {
            Ok((elements, completed)) => State::Copying { elements, completed },
            Err(error) => State::Failed(error),
        };
        ToHost { state }
    }

    fn copy_to_pinned(
        &self,
        stream: StreamId,
    ) -> Result<(PinnedBuffer<T>, Completed), BufferError> {
        let owner = self.owner();
        let mut elements = PinnedBuffer::uninit(owner, stream, self.len())?;
        elements.copy_from_device(*self, stream)?;
        Ok((elements, owner.streams.completed(stream)))
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Copies all elements to pinned host memory, as [`DeviceView::to_host_async`] does.
    pub fn to_host_async(&self, stream: impl Into<StreamId>) -> ToHost<T> {
        self.view().to_host_async(stream)
    }
}

// Nothing in it is pinned.
impl<T: Pod> Unpin for ToHost<T> {}

impl<T: Pod> Future for ToHost<T> {
    type Output = Result<HostCopy<T>, BufferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.state {
            State::Copying { completed, .. } => ready!(Pin::new(completed).poll(context)),
            State::Failed(_) => Ok(()),
            State::Taken => return Poll::Pending,
        };
        Poll::Ready(match std::mem::replace(&mut self.state, State::Taken) {
            State::Copying { elements, .. } => {
                outcome.map(|()| HostCopy { elements }).map_err(BufferError::from)
            }
            State::Failed(error) => Err(error),
            State::Taken => return Poll::Pending,
        })
    }
}

impl<T: Pod> HostCopy<T> {
    /// Returns the pinned memory, for other copies.
    #[must_use]
    pub fn into_pinned(self) -> PinnedBuffer<T> {
        self.elements
    }
}

impl<T: Pod> Deref for HostCopy<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let copied = self.elements.view();
        // SAFETY: the copy has written `len` elements there and is done; any bytes are a `Pod`. No
        // other device work uses the memory: it was allocated for this copy, and is returned by
        // value only.
        unsafe { slice::from_raw_parts(copied.start(), copied.len()) }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for HostCopy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Pod> fmt::Debug for ToHost<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ToHost");
        match &self.state {
            State::Copying { elements, completed } => {
                shown.field("len", &elements.len()).field("completed", completed)
            }
            State::Failed(error) => shown.field("error", error),
            State::Taken => &mut shown,
        };
        shown.finish_non_exhaustive()
    }
}
