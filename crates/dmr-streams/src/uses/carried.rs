//! What freed memory still depends on, carried along by whoever keeps it for the next owner.

use std::fmt;

use cudarc::driver::{result, sys};
use dmr_core::{ResourceResult, StreamId};
use smallvec::SmallVec;

use super::slots::Need;
use super::{Needs, UseTable};
use crate::HomeStream;
use crate::progress::Event;

/// Uses of some streams that memory was freed after: whoever uses the memory next comes after
/// them.
///
/// Holds the events of uses that other streams than the freeing one have made. What the freeing
/// stream did itself is a number: an event of a later moment stands for it as well.
#[derive(Clone, Default)]
pub struct Carried {
    pub(super) needs: SmallVec<[Need<Option<Event>>; 2]>,
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.needs.iter().map(|need| (need.slot, need.order));
        f.debug_map().entries(numbers).finish()
    }
}

impl Carried {
    /// What was submitted to `stream` up to this number ([`UseTable::submitted`]).
    #[must_use]
    pub fn of(stream: StreamId, number: u64) -> Self {
        let mut carried = Self::default();
        carried.add(stream, number);
        carried
    }

    /// Adds what was submitted to `stream` up to this number.
    pub fn add(&mut self, stream: StreamId, number: u64) {
        self.needs.push(Need { slot: stream.slot(), order: number, event: None });
    }

    /// Adds all that another one holds.
    pub fn add_all(&mut self, other: &Self) {
        self.needs.extend(other.needs.iter().cloned());
    }

    /// Whether there is nothing to come after.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }
}

impl UseTable<'_> {
    /// The number that stands for everything submitted to the stream so far, recorded or not.
    /// Numbers of one stream grow.
    #[must_use]
    #[inline]
    pub fn submitted(&self, stream: StreamId) -> u64 {
        self.pool.progress().number_allocation(stream.slot())
    }

    /// Whether all that was submitted to `stream` up to this number is known to be done. Asks
    /// nobody.
    #[must_use]
    pub fn is_done(&self, stream: StreamId, number: u64) -> bool {
        self.pool.progress().is_done(stream.slot(), number)
    }

    /// The same for all of what is carried.
    #[must_use]
    pub fn is_known_done(&self, carried: &Carried) -> bool {
        let progress = self.pool.progress();
        carried.needs.iter().all(|need| progress.is_done(need.slot, need.order))
    }

    /// Whether what is submitted to `stream` from now on comes after all of it, or it is known to
    /// be done. Asks nobody.
    #[must_use]
    #[inline]
    pub fn is_after(&self, stream: StreamId, carried: &Carried) -> bool {
        let slot = stream.slot();
        carried.needs.iter().all(|need| !self.holds_up(slot, need.slot, need.order))
    }

    /// The same for one number of one other stream.
    #[must_use]
    #[inline]
    pub fn is_after_number(&self, stream: StreamId, other: usize, number: u64) -> bool {
        !self.holds_up(stream.slot(), other, number)
    }

    /// Returns whether the stream is retired: nothing can be submitted to it any more.
    #[must_use]
    pub fn has_ended(&self, stream: StreamId) -> bool {
        self.pool.is_retired(stream.slot())
    }

    /// Makes `stream` wait for all of it that is not known to be done or waited for.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing); [`Driver`](dmr_core::ResourceError::Driver),
    /// when some waits may have been queued.
    pub fn wait_for(&self, stream: StreamId, carried: &Carried) -> ResourceResult<()> {
        let mut needs = Needs::new();
        for need in &carried.needs {
            if self.holds_up(stream.slot(), need.slot, need.order) {
                Self::add_need(need.clone(), &mut needs);
            }
        }
        if needs.is_empty() {
            return Ok(());
        }
        let HomeStream::Live(stream) = self.pool.enter_home(stream)? else {
            return Err(self.pool.misuse(stream));
        };
        stream.refuse_capture()?;
        self.wait(&stream, &mut needs)
    }

    /// Asks the driver whether all of it is done. The answer is remembered for all earlier uses of
    /// the same streams.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted earlier.
    pub fn poll(&self, carried: &Carried) -> ResourceResult<bool> {
        for need in &carried.needs {
            if !self.pool.progress().is_done(need.slot, need.order) && !self.ask(need)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all of it is done.
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn synchronize(&self, carried: &Carried) -> ResourceResult<()> {
        for need in &carried.needs {
            if self.pool.progress().is_done(need.slot, need.order) {
                continue;
            }
            let event = self.event_of(need)?;
            self.pool.device().bind()?;
            // SAFETY: the event is alive, and nobody re-records it while it is held.
            unsafe { result::event::synchronize(event.handle()) }
                .map_err(|error| self.pool.device().driver_error("cuEventSynchronize", error))?;
            self.pool.progress().has_completed(&event);
        }
        Ok(())
    }

    /// Asks the driver whether a use is done; not that of a lost device.
    pub(super) fn ask(&self, need: &Need<Option<Event>>) -> ResourceResult<bool> {
        self.pool.device().check()?;
        let event = self.event_of(need)?;
        self.pool.device().bind()?;
        // SAFETY: the event is alive, and nobody re-records it while it is held.
        match unsafe { result::event::query(event.handle()) } {
            Ok(()) => {
                self.pool.progress().has_completed(&event);
                Ok(true)
            }
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(self.pool.device().driver_error("cuEventQuery", error)),
        }
    }

    fn event_of(&self, need: &Need<Option<Event>>) -> ResourceResult<Event> {
        match &need.event {
            Some(event) => Ok(event.clone()),
            None => self.pool.progress().event_for(self.pool, need.slot, need.order),
        }
    }
}
