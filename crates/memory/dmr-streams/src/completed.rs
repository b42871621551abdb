//! A future that is ready when a stream has done its work so far.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dmr_core::process::LeakedInChild;
use dmr_core::{ResourceResult, StreamId};

use crate::uses::RecordedEvent;
use crate::wait::Wait;
use crate::{StreamPool, watcher};

/// A future that is ready when a stream has done the work that was submitted before
/// [`StreamPool::completed`] returned it.
///
/// For any executor. It borrows nothing, keeps no stream pool and no memory alive, and may be sent
/// to another thread. Dropping it cancels nothing on the device. Once it is ready, each later poll
/// returns the same result.
///
/// Its waker is called on a thread of this library that looks at the events of all streams that are
/// waited for; a panic in the waker is caught. A waker that blocks holds up the other futures of
/// the process.
///
/// It does not stay pending if the device is lost or in a forked child: it returns the error. If no
/// thread looks for it, because none could be started or because the process is ending, each poll
/// looks itself and wakes its task, so that it is polled again.
#[must_use = "it waits only where it is awaited"]
pub struct Completed {
    state: State,
}

enum State {
    /// No wait was needed, or it could not be begun.
    Known(ResourceResult<()>),
    /// A forked child may find it in the middle of a change.
    Waiting(LeakedInChild<Arc<Wait>>),
}

impl StreamPool {
    /// Returns a future that is ready when all work submitted to the stream so far is done,
    /// recorded or not: what [`synchronize`](Self::synchronize) is to a thread. Records one event
    /// on the stream, which does not slow its work; work that is submitted later is not waited for.
    ///
    /// The future returns the error of a call that fails, also here:
    /// [`ForkedProcess`](dmr_core::ResourceError::ForkedProcess);
    /// [`DeviceLost`](dmr_core::ResourceError::DeviceLost);
    /// [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse) for an id of another pool, of a
    /// returned lease or of a retired stream;
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing);
    /// [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted earlier.
    pub fn completed(self: &Arc<Self>, stream: impl Into<StreamId>) -> Completed {
        let state = match self.begin_wait(stream.into()) {
            Ok(Some(wait)) => State::Waiting(LeakedInChild::new(wait)),
            Ok(None) => State::Known(Ok(())),
            Err(error) => State::Known(Err(error)),
        };
        Completed { state }
    }

    /// Returns a future that is ready when the work behind which `event` was recorded is done, as
    /// [`completed`](Self::completed) does for a stream's work so far. The event is of a stream of
    /// this pool.
    pub fn completed_event(&self, event: &RecordedEvent) -> Completed {
        let wait = Arc::new(Wait::begin(self, event.shared()));
        watcher::watch(&wait);
        Completed { state: State::Waiting(LeakedInChild::new(wait)) }
    }

    /// Records an event on the stream, and passes the wait for it to the watcher. `None` if the
    /// work is done.
    fn begin_wait(self: &Arc<Self>, stream: StreamId) -> ResourceResult<Option<Arc<Wait>>> {
        let stream = self.enter(stream)?;
        // Looks for a capture, after the record.
        let Some(event) = self.progress().event_on(&stream)? else { return Ok(None) };
        let wait = Arc::new(Wait::begin(self, event));
        watcher::watch(&wait);
        Ok(Some(wait))
    }
}

impl Completed {
    /// Returns whether the future is ready. Makes no driver call.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match &self.state {
            State::Known(_) => true,
            State::Waiting(wait) => wait.outcome().is_some(),
        }
    }
}

impl Future for Completed {
    type Output = ResourceResult<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.state {
            State::Known(outcome) => Poll::Ready(outcome.clone()),
            State::Waiting(wait) => wait.poll(context),
        }
    }
}

impl Drop for Completed {
    fn drop(&mut self) {
        if let State::Waiting(wait) = &self.state
            && !wait.device().is_forked()
        {
            wait.abandon();
        }
    }
}

impl fmt::Debug for Completed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match &self.state {
            State::Known(outcome) => Some(outcome),
            State::Waiting(wait) => wait.outcome(),
        };
        f.debug_struct("Completed").field("outcome", &outcome).finish_non_exhaustive()
    }
}
