//! The uses of work that is submitted again and again.

use std::time::Duration;

use dmr_core::{Access, AllocTag, StreamId};
use dmr_streams::{DeviceContext, KernelArg, StreamGuard, TrackedMemory};

use crate::mode::LaunchMode;
use crate::submit::Stream;
use crate::uses::LaunchUses;
use crate::{LaunchError, LaunchRecorder};

/// The reads and writes of work that is submitted more than once, on any stream, such as a graph.
///
/// Each [`launch`](Self::launch) is one use of all the memory, as a launch of a strict
/// [`LaunchRecorder`] is. A footprint keeps no memory alive: a launch after
/// a block was freed is refused.
///
/// Recording takes a snapshot, as with a recorder. Up to 8 uses need no allocation on the host
/// heap.
#[derive(Debug)]
pub struct Footprint {
    uses: LaunchUses,
    timeout: Duration,
}

impl Default for Footprint {
    fn default() -> Self {
        Self::new()
    }
}

impl Footprint {
    /// Makes a footprint of no memory.
    #[must_use]
    pub fn new() -> Self {
        Self { uses: LaunchUses::new(LaunchMode::Strict), timeout: Duration::ZERO }
    }

    /// Makes each launch wait up to `timeout` while another stream has a conflicting window open,
    /// as [`LaunchRecorder::with_timeout`](crate::LaunchRecorder::with_timeout) does.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the time that a launch waits for windows of other streams.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Records that the work reads this memory.
    pub fn read<M: TrackedMemory + ?Sized>(&mut self, memory: &M) -> KernelArg {
        self.uses.record(memory, Access::Read, None)
    }

    /// Records that the work overwrites this memory.
    pub fn write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.uses.record(memory, Access::Write, None)
    }

    /// Records that the work reads and writes this memory.
    pub fn read_write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.uses.record(memory, Access::ReadWrite, None)
    }

    /// Records a [`read`](Self::read), with the name of the column for messages. A name made at run
    /// time is interned once: [`AllocTag::intern`].
    pub fn read_column<M: TrackedMemory + ?Sized>(
        &mut self,
        name: AllocTag,
        column: &M,
    ) -> KernelArg {
        self.uses.record(column, Access::Read, Some(name))
    }

    /// Records a [`write`](Self::write), with the name of the column for messages.
    pub fn write_column<M: TrackedMemory + ?Sized>(
        &mut self,
        name: AllocTag,
        column: &mut M,
    ) -> KernelArg {
        self.uses.record(column, Access::Write, Some(name))
    }

    /// Submits the work, once: waits for what its uses depend on, runs `enqueue`, and records them.
    ///
    /// # Errors
    ///
    /// As [`LaunchRecorder::launch`](crate::LaunchRecorder::launch) of a strict recorder. A block
    /// that was freed is [`UseAfterFree`](dmr_core::ResourceError::UseAfterFree).
    #[inline]
    pub fn launch<C, T, E>(
        &self,
        ctx: &C,
        stream: impl Into<StreamId>,
        enqueue: impl FnOnce(&StreamGuard<'_>) -> Result<T, E>,
    ) -> Result<T, LaunchError<E>>
    where
        C: DeviceContext + ?Sized,
    {
        let id = stream.into();
        let guard = ctx.streams().enter(id).map_err(|error| self.uses.refused(id, error))?;
        self.uses.reject_untracked(&guard, &**ctx.resource())?;
        let stream = Stream { guard: &guard, id };
        self.uses.launch(ctx, stream, self.timeout, |stream, _| enqueue(stream))
    }

    /// Makes a recorder of one launch with these uses, for work that uses other memory beside them
    /// each time: record that, too.
    pub fn recorder(&self, stream: impl Into<StreamId>) -> LaunchRecorder {
        LaunchRecorder::with_uses(stream.into(), self.uses.clone(), self.timeout)
    }

    /// Returns the number of different blocks, and parts of blocks, that the work uses.
    #[must_use]
    pub fn recorded_count(&self) -> usize {
        self.uses.count()
    }
}
