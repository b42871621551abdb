//! What freed memory still depends on, carried along by whoever keeps it for the next owner.

use std::fmt;

use dmr_core::ledger::UseId;
use dmr_core::{ResourceResult, StreamId};
use smallvec::SmallVec;

use super::{Needs, UseTable};
use crate::HomeStream;

/// Uses of some streams that memory was freed after: whoever uses the memory next comes after
/// them.
///
#[derive(Clone, Default)]
pub struct Carried {
    pub(super) needs: SmallVec<[UseId; 2]>,
}

impl fmt::Debug for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.needs).finish()
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
        self.needs.push(UseId::new(stream.slot(), number));
    }

    /// Adds all that another one holds.
    pub fn add_all(&mut self, other: &Self) {
        self.needs.extend_from_slice(&other.needs);
    }

    /// Whether there is nothing to come after.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty()
    }
}

/// How work that something depends on stands to what is submitted to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedOrder {
    /// It is known to be done.
    Done,
    /// The stream comes after it.
    Before,
    /// Neither.
    Unordered,
}

impl UseTable<'_> {
    /// The number that stands for everything submitted to the stream so far, recorded or not.
    /// Numbers of one stream grow.
    #[must_use]
    #[inline]
    pub fn submitted(&self, stream: StreamId) -> u64 {
        self.pool.progress().submitted(stream.slot()).seq()
    }

    /// Whether all that was submitted to `stream` up to this number is known to be done. Asks
    /// nobody.
    #[must_use]
    pub fn is_done(&self, stream: StreamId, number: u64) -> bool {
        self.pool.progress().is_done(UseId::new(stream.slot(), number))
    }

    /// The same for all of what is carried.
    #[must_use]
    pub fn is_known_done(&self, carried: &Carried) -> bool {
        let progress = self.pool.progress();
        carried.needs.iter().all(|used| progress.is_done(*used))
    }

    /// Whether what is submitted to `stream` from now on comes after all of it, or it is known to
    /// be done. Asks nobody.
    #[must_use]
    #[inline]
    pub fn is_after(&self, stream: StreamId, carried: &Carried) -> bool {
        let slot = stream.slot();
        carried.needs.iter().all(|used| !self.holds_up(slot, *used))
    }

    /// The same for one number of one other stream.
    #[must_use]
    #[inline]
    pub fn is_after_number(&self, stream: StreamId, other: usize, number: u64) -> bool {
        !self.holds_up(stream.slot(), UseId::new(other, number))
    }

    /// Returns whether the stream is retired: nothing can be submitted to it any more.
    #[must_use]
    pub fn has_ended(&self, stream: StreamId) -> bool {
        self.pool.is_retired(stream.slot())
    }

    /// Returns how what is carried stands to what is submitted to `stream` from now on.
    #[must_use]
    #[inline]
    pub fn order_of(&self, stream: StreamId, carried: &Carried) -> CarriedOrder {
        let (progress, slot) = (self.pool.progress(), stream.slot());
        let mut order = CarriedOrder::Done;
        for used in &carried.needs {
            if !progress.is_done(*used) {
                if self.holds_up(slot, *used) {
                    return CarriedOrder::Unordered;
                }
                order = CarriedOrder::Before;
            }
        }
        order
    }

    /// Makes `stream` wait for all of it that is not known to be done or waited for.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing); [`Driver`](dmr_core::ResourceError::Driver),
    /// when some waits may have been queued.
    pub fn wait_for(&self, stream: StreamId, carried: &Carried) -> ResourceResult<()> {
        let mut needs = Needs::new();
        for used in &carried.needs {
            if self.holds_up(stream.slot(), *used) {
                Self::add_need(*used, &mut needs);
            }
        }
        if needs.is_empty() {
            return Ok(());
        }
        let HomeStream::Live(stream) = self.pool.enter_home(stream)? else {
            return Err(self.pool.misuse(stream));
        };
        stream.refuse_capture()?;
        self.wait(&stream, &needs)
    }

    /// Asks the driver whether all of it is done. The answer is remembered for all earlier uses of
    /// the same streams.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver), which may come from work submitted earlier.
    pub fn poll(&self, carried: &Carried) -> ResourceResult<bool> {
        for used in &carried.needs {
            if !self.pool.progress().is_done(*used) && !self.ask(*used)? {
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
        let progress = self.pool.progress();
        for used in carried.needs.iter().filter(|used| !progress.is_done(**used)) {
            if let Some(event) = progress.event_for(self.pool, *used)? {
                progress.synchronize(self.pool.device(), &event)?;
            }
        }
        Ok(())
    }

    /// Asks the driver whether a use is done; not that of a lost device.
    pub(super) fn ask(&self, used: UseId) -> ResourceResult<bool> {
        self.pool.device().check()?;
        let progress = self.pool.progress();
        match progress.event_for(self.pool, used)? {
            None => Ok(true),
            Some(event) => progress.query(self.pool.device(), &event),
        }
    }
}
