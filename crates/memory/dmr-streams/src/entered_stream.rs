//! A stream that a call has entered: the regular path of the hot calls.
//!
//! A stream that the pool has made lives as long as the pool, so nothing counts the call, and a
//! call begins with two comparisons. Where a function of this module returns `None` or `false`, the
//! call goes on as for any stream, with a [`StreamGuard`], which returns the error. From a guard it
//! comes back here ([`StreamGuard::entered`]): so allocations and frees on adopted streams have the
//! same path.

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUstreamCaptureStatus};
use dmr_core::ledger::UseId;
use dmr_core::{BlockSlot, Generation, StreamId};

use crate::event::DriverEvent;
use crate::progress::Line;
use crate::stream_entry::StreamEntry;
use crate::uses::FreeSlot;
use crate::{StreamGuard, StreamPool};

/// The result of a look for a capture.
pub(crate) type CaptureLook = Result<CUstreamCaptureStatus, DriverError>;

/// Returns whether a stream is capturing a graph.
///
/// # Safety
///
/// The stream is alive.
#[inline(always)]
pub(crate) unsafe fn capture_status_of(stream: sys::CUstream) -> CaptureLook {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller's obligation.
    unsafe { sys::cuStreamIsCapturing(stream, &mut status) }.result()?;
    Ok(status)
}

/// Returns whether a look has found no capture.
#[inline(always)]
pub(crate) fn is_none(look: CaptureLook) -> bool {
    look == Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// A stream that a call has entered: one that its pool has made, or one that a guard keeps.
#[derive(Clone, Copy)]
pub struct EnteredStream<'p> {
    pool: &'p StreamPool,
    entry: &'p StreamEntry,
    timeline: &'p Line,
    id: StreamId,
}

impl StreamPool {
    /// Begins a call as [`enter`](Self::enter) does, if the stream is the pool's own. Otherwise,
    /// and instead of an error, returns `None`.
    #[inline(always)]
    pub fn enter_own(&self, stream: StreamId) -> Option<EnteredStream<'_>> {
        let id = if stream.is_default() { self.default_stream() } else { stream };
        let entry = self.entry(id.slot())?;
        if entry.admits_own(id) { self.entered_own(entry, id) } else { None }
    }

    /// Begins a call as [`enter_home`](Self::enter_home) does, if the stream is the pool's own.
    /// Otherwise, and instead of an error, returns `None`.
    #[inline(always)]
    pub fn enter_own_home(&self, home: StreamId) -> Option<EnteredStream<'_>> {
        let entry = self.entry(home.slot())?;
        if entry.is_own_home(home) { self.entered_own(entry, home) } else { None }
    }

    #[inline(always)]
    fn entered_own<'p>(
        &'p self,
        entry: &'p StreamEntry,
        id: StreamId,
    ) -> Option<EnteredStream<'p>> {
        let timeline = self.progress().timeline(id.slot())?;
        if self.device().is_usable() {
            Some(EnteredStream { pool: self, entry, timeline, id })
        } else {
            None
        }
    }
}

impl StreamGuard<'_> {
    /// Returns the stream for the regular path of allocations and frees, as long as the guard
    /// lives. On one of CUDA's default streams call nothing of it that calls the driver: those are
    /// of the context that is current.
    #[inline]
    pub fn entered(&self) -> Option<EnteredStream<'_>> {
        let timeline = self.pool().progress().timeline(self.slot())?;
        Some(EnteredStream { pool: self.pool(), entry: self.entry(), timeline, id: self.id() })
    }
}

impl<'p> EnteredStream<'p> {
    /// Returns the id under which the stream may be stored: never [`StreamId::DEFAULT`].
    #[must_use]
    #[inline(always)]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the slot of the stream in its pool.
    #[must_use]
    #[inline(always)]
    pub fn slot(&self) -> usize {
        self.id.slot()
    }

    /// Returns the sequence number that stands for all work submitted to the stream so far.
    #[must_use]
    #[inline(always)]
    pub fn submitted(&self) -> u64 {
        self.timeline.submitted()
    }

    #[inline(always)]
    pub(crate) fn timeline(&self) -> &'p Line {
        self.timeline
    }

    /// Returns whether the stream captures no graph. If code outside of the library has had the
    /// stream, makes one driver call, which reads a state. Returns `false` if that fails.
    #[must_use]
    #[inline(always)]
    pub fn is_not_capturing(&self) -> bool {
        is_none(self.look())
    }

    /// Looks for a capture, if code outside of the library has had the stream.
    #[inline(always)]
    pub(crate) fn look(&self) -> CaptureLook {
        if !self.entry.is_lent() {
            return Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        }
        // SAFETY: the pool keeps its own stream, and a guard an adopted one.
        unsafe { capture_status_of(self.entry.handle()) }
    }

    /// Records an event on the stream.
    ///
    /// # Errors
    ///
    /// The driver's, also because the context is not current.
    #[inline(always)]
    pub(crate) fn record_event(&self, event: &DriverEvent) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive, and of the device's context.
        unsafe { sys::cuEventRecord(event.handle(), self.entry.handle()) }.result()
    }

    /// Puts a block into a slot, as [`StreamGuard::occupy`](crate::StreamGuard::occupy) does.
    ///
    /// # Errors
    ///
    /// The slot, unchanged, if it is of another pool.
    #[inline(always)]
    pub fn occupy(&self, slot: FreeSlot, generation: Generation) -> Result<BlockSlot, FreeSlot> {
        let allocation = UseId::from_parts(self.slot(), self.submitted());
        self.pool.slots().occupy(slot, generation, allocation)
    }
}
