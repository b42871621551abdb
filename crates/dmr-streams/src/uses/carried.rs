//! What freed memory still depends on, carried along by whoever keeps it for the next owner.

use std::fmt;

use cudarc::driver::{result, sys};
use dmr_core::{BlockId, BlockSlot, ResourceError, ResourceResult, StreamId};
use smallvec::SmallVec;

use super::slots::{Need, Yielded};
use super::{Needs, UseTable};
use crate::Owner;
use crate::progress::Event;

/// Uses of some streams that memory was freed after: whoever uses the memory next comes after
/// them.
///
/// Holds the events of uses that other streams than the freeing one have made. What the freeing
/// stream did itself is a number: an event of a later moment stands for it as well.
#[derive(Clone, Default)]
pub struct Carried {
    needs: SmallVec<[Need<Option<Event>>; 2]>,
}

/// What [`UseTable::surrender`] finds.
#[derive(Debug)]
pub enum Surrender {
    /// The block is another owner's, or nobody's: nothing has changed.
    Foreign,
    /// A window is open: the block is retired, [`UseTable::surrender_retired`] takes it later.
    InUse(BlockSlot),
    /// The block has left the table. On its home stream its memory can be used again after what is
    /// carried; elsewhere also after what was submitted to the home stream by now. The slot is the
    /// one that the block had before the table.
    Free(BlockSlot, Carried),
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

    /// Takes a block back whose memory is used again by the same owner, who then answers for its
    /// order. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`UseAfterFree`](ResourceError::UseAfterFree) if it was given back before.
    #[inline]
    pub fn surrender(&self, block: BlockId, owner: Owner) -> ResourceResult<Surrender> {
        let mut carried = Carried::default();
        let keep = self.keep_for(block, &mut carried);
        Ok(match self.slots().surrender(block, owner, keep) {
            Yielded::Foreign => Surrender::Foreign,
            Yielded::Before => return Err(ResourceError::use_after_free(block.generation())),
            Yielded::InUse(inner_slot) => Surrender::InUse(inner_slot),
            Yielded::Gone(inner_slot) => Surrender::Free(inner_slot, carried),
        })
    }

    /// As [`surrender`](Self::surrender), for a block that was found [`InUse`](Surrender::InUse)
    /// before; `None` while a window is open.
    #[must_use]
    pub fn surrender_retired(&self, block: BlockId) -> Option<Carried> {
        let mut carried = Carried::default();
        let keep = self.keep_for(block, &mut carried);
        self.slots().surrender_retired(block, keep).then_some(carried)
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

    /// Whether the stream's owner has taken it back: nothing can be submitted to it any more.
    #[must_use]
    pub fn has_ended(&self, stream: StreamId) -> bool {
        self.pool.progress().ended(stream.slot()).is_some()
    }

    /// Makes `stream` wait for all of it that is not known to be done or waited for.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver),
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
        self.refuse_capture(stream)?;
        self.wait(stream, &mut needs)
    }

    /// Asks the driver whether all of it is done. The answer is remembered for all earlier uses of
    /// the same streams.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver), which may come from work submitted earlier.
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

    /// Asks the driver whether a use is done.
    pub(super) fn ask(&self, need: &Need<Option<Event>>) -> ResourceResult<bool> {
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

    /// Keeps what a free on the block's home stream would have to wait for.
    fn keep_for<'c>(
        &self,
        block: BlockId,
        carried: &'c mut Carried,
    ) -> impl FnMut(Need<Option<Event>>) + 'c
    where
        Self: 'c,
    {
        let (table, home) = (*self, block.alloc_stream().slot());
        move |need| {
            if table.holds_up(home, need.slot, need.order) {
                carried.needs.push(need);
            }
        }
    }
}
