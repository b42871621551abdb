//! One wait of a future for an event, which the future and the watcher share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use dmr_core::panics;
use dmr_core::sync::lock;
use dmr_core::{ResourceResult, StreamPoolId};

use crate::progress::{CompletionLog, Event};
use crate::{Device, StreamPool};

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

impl Wait {
    /// Makes the wait for an event that was recorded on a stream of the pool.
    pub(crate) fn begin(pool: &StreamPool, event: Event) -> Self {
        let slot = event.slot();
        Self {
            device: pool.device().clone(),
            log: pool.progress().completion_log(),
            pool: pool.id(),
            event: Mutex::new(Some(event)),
            outcome: OnceLock::new(),
            waker: AtomicWaker::new(),
            is_watched: AtomicBool::new(false),
            slot,
            since: Instant::now(),
        }
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<ResourceResult<()>> {
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

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the result, once the wait has ended.
    pub(crate) fn outcome(&self) -> Option<&ResourceResult<()>> {
        self.outcome.get()
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
            self.log.record_completion(&event);
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
    pub(crate) fn abandon(&self) {
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
