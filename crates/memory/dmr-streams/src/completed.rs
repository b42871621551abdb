//! A future that is ready when a stream has done its work so far.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use dmr_core::panics;
use dmr_core::process::LeakedInChild;
use dmr_core::sync::lock;
use dmr_core::{ResourceResult, StreamId, StreamPoolId};

use crate::progress::{CompletionLog, Event};
use crate::{Device, StreamPool, watcher};

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

/// A wait that a future and the watcher share.
pub(crate) struct Wait {
    device: Device,
    log: CompletionLog,
    pool: StreamPoolId,
    /// Recorded behind the work. `None` once the work is known to be done, and when the future was
    /// dropped.
    event: Mutex<Option<Event>>,
    outcome: OnceLock<ResourceResult<()>>,
    waker: AtomicWaker,
    /// True while the watcher looks at the event. If not, each poll looks itself.
    is_watched: AtomicBool,
    /// The stream's slot in its pool.
    slot: usize,
    since: Instant,
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

    /// Records an event on the stream, and passes the wait for it to the watcher. `None` if the
    /// work is done.
    fn begin_wait(self: &Arc<Self>, stream: StreamId) -> ResourceResult<Option<Arc<Wait>>> {
        let stream = self.enter(stream)?;
        // Looks for a capture, after the record.
        let Some(event) = self.progress().event_on(&stream)? else { return Ok(None) };
        let wait = Arc::new(Wait {
            device: self.device().clone(),
            log: self.progress().completion_log(),
            pool: self.id(),
            event: Mutex::new(Some(event)),
            outcome: OnceLock::new(),
            waker: AtomicWaker::new(),
            is_watched: AtomicBool::new(false),
            slot: stream.slot(),
            since: Instant::now(),
        });
        watcher::watch(&wait);
        Ok(Some(wait))
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
            && !wait.device.is_forked()
        {
            wait.abandon();
        }
    }
}

impl fmt::Debug for Completed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match &self.state {
            State::Known(outcome) => Some(outcome),
            State::Waiting(wait) => wait.outcome.get(),
        };
        f.debug_struct("Completed").field("outcome", &outcome).finish_non_exhaustive()
    }
}

impl Wait {
    fn poll(&self, context: &Context<'_>) -> Poll<ResourceResult<()>> {
        // First: the watcher of the parent may have held a lock when the process was forked.
        self.device.refuse_fork()?;
        if let Some(outcome) = self.outcome.get() {
            return Poll::Ready(outcome.clone());
        }
        self.waker.register(context.waker());
        let is_watched = self.is_watched.load(Ordering::Acquire);
        if !is_watched {
            self.look();
        }
        // The outcome may be set since, and the waker of before have been called.
        if let Some(outcome) = self.outcome.get() {
            return Poll::Ready(outcome.clone());
        }
        if !is_watched {
            std::thread::yield_now();
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    pub(crate) fn set_watched(&self, is_watched: bool) {
        self.is_watched.store(is_watched, Ordering::Release);
    }

    /// Queries the event. Returns whether the wait has ended: the work is done, the query has
    /// failed, or the future was dropped.
    pub(crate) fn look(&self) -> bool {
        let Some(event) = lock(&self.event).clone() else { return true };
        let queried = self.device.relaxed(|relaxed| event.driver_event().query(relaxed));
        if queried == Ok(false) {
            return false;
        }
        if queried == Ok(true) {
            self.log.has_completed(&event);
        }
        // Before the future is ready: nothing of the pool is in use then.
        drop(event);
        drop(lock(&self.event).take());
        let _ = self.outcome.set(queried.map(drop));
        self.wake();
        true
    }

    /// Calls the waker of the task that has polled last.
    pub(crate) fn wake(&self) {
        // The waker is code of the executor.
        let _ = panics::catch(|| self.waker.wake());
    }

    /// Frees what the future has kept; the watcher forgets the wait when it looks at it next.
    fn abandon(&self) {
        let event = lock(&self.event).take();
        let waker = self.waker.take();
        drop((event, waker));
    }

    /// Returns whether the wait has ended, or the future was dropped. Makes no driver call.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.event).is_none()
    }

    /// Returns whether both wait for the same stream.
    pub(crate) fn is_of_stream(&self, other: &Self) -> bool {
        self.slot == other.slot && self.pool == other.pool
    }

    /// Returns when the wait began.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}
