//! What a free must come after, once the block has left the table.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use dmr_core::ledger::UseId;
use dmr_core::{ResourceResult, StreamId};
use smallvec::SmallVec;

use super::UseTable;
use crate::progress::Event;
use crate::{Device, StreamGuard};

/// When a retired block may be freed.
#[derive(Debug)]
pub enum FreeOrder {
    /// A window is open: ask again when it has closed.
    InUse,
    /// The order holds on the home stream: a free that is queued there waits for nothing else.
    Home,
    /// Other streams have used the block, the home stream has not waited for them, and they are
    /// not known to be done.
    After(Dependencies),
}

/// Whether a retired block may be freed on its home stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeOrder {
    /// A window is open: ask again when it has closed.
    InUse,
    /// The order holds there: see [`FreeOrder::Home`].
    Holds,
    /// Not yet: other streams may not be done with the block.
    Others(LastUse),
    /// Never: the stream's owner has taken it back.
    Ended,
}

/// A use on another stream that a free on the home stream would have to wait for:
/// [`UseTable::has_passed`](super::UseTable::has_passed) says whether it still would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastUse {
    pub(super) used: UseId,
    /// No other stream was to be waited for.
    pub(super) is_only: bool,
}

impl LastUse {
    /// Whether the block has no other use to wait for. A retired block gets no more.
    #[must_use]
    #[inline]
    pub fn is_only(self) -> bool {
        self.is_only
    }

    /// The first of several, of which there is one more.
    #[inline]
    pub(super) fn and_another(first: Option<Self>, used: UseId) -> Self {
        match first {
            None => Self { used, is_only: true },
            Some(first) => Self { is_only: false, ..first },
        }
    }
}

/// Device work that a free must come after: what other streams have done with the block, and what
/// the home stream had been given until the block was.
///
/// Holds the events; dropping it lets them be recorded again.
pub struct Dependencies {
    device: Device,
    /// Those not known to be done.
    events: Mutex<SmallVec<[Event; 4]>>,
}

impl Dependencies {
    pub(crate) fn new(device: Device, events: SmallVec<[Event; 4]>) -> Self {
        Self { device, events: Mutex::new(events) }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Makes a stream wait for all of it. For a stream on which nobody's work waits.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver); some waits may have been queued.
    pub fn make_wait(&self, stream: &StreamGuard<'_>) -> ResourceResult<()> {
        for event in self.events().iter() {
            event.driver_event().make_wait(stream)?;
        }
        Ok(())
    }

    /// Whether all of it is done. Asks the driver, does not wait.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted earlier.
    pub fn is_done(&self) -> ResourceResult<bool> {
        let relaxed = self.device.relaxed()?;
        let events = &mut *self.events();
        while let Some(event) = events.last() {
            if !event.driver_event().query(&relaxed)? {
                return Ok(false);
            }
            event.set_done();
            events.pop();
        }
        Ok(true)
    }

    /// Waits until all of it is done.
    ///
    /// # Errors
    ///
    /// As [`is_done`](Self::is_done).
    pub fn synchronize(&self) -> ResourceResult<()> {
        let relaxed = self.device.relaxed()?;
        // Not under the lock: waiting takes as long as the work does.
        let events = self.events().clone();
        for event in &events {
            event.driver_event().synchronize(&relaxed)?;
            event.set_done();
        }
        self.events().clear();
        Ok(())
    }

    fn events(&self) -> std::sync::MutexGuard<'_, SmallVec<[Event; 4]>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UseTable<'_> {
    /// All that was submitted to `stream` so far, recorded or not, also after its lease was
    /// returned: records an event now.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse) for a stream of another pool;
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing);
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub fn work_so_far(&self, stream: StreamId) -> ResourceResult<Dependencies> {
        self.pool.device().refuse_fork()?;
        let slot = self.of_this_pool(stream)?.slot();
        let event = self.pool.progress().event_now(self.pool, slot)?;
        Ok(Dependencies::new(self.pool.device().clone(), SmallVec::from_iter(event)))
    }
}

impl fmt::Debug for Dependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Dependencies");
        if !self.device.is_forked() {
            shown.field("events", &self.events().len());
        }
        shown.finish_non_exhaustive()
    }
}
