//! The recorder of a launch's uses.

use std::sync::Arc;
use std::time::Duration;

use dmr_core::{Access, AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_streams::{DeviceContext, KernelArg, StreamGuard, TrackedMemory};

use crate::others::OtherStreams;
use crate::submit::Stream;
use crate::uses::LaunchUses;
use crate::windows::{self, Windows};
use crate::{LaunchError, PrepareError, PreparedLaunch};

pub use crate::mode::LaunchMode;

/// The reads and writes of a launch on one stream.
///
/// Recording takes a snapshot: the borrow ends with the call, and the returned [`KernelArg`] is
/// `Copy`. Several uses of the same bytes of one block are one use with the combined access. The
/// same bytes may be read and written, and parts of a block that overlap may be used in one launch.
/// Launches that use disjoint parts of a block neither conflict nor wait for each other.
///
/// Up to 8 uses need no allocation on the host heap.
///
/// # Misuse does not compile
///
/// Finishing without prepare:
///
/// ```compile_fail,E0599
/// use dmr_core::StreamId;
/// use dmr_launch::LaunchRecorder;
///
/// LaunchRecorder::new_strict(StreamId::DEFAULT).finish();
/// ```
///
/// Preparing, or launching, twice:
///
/// ```compile_fail,E0382
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn twice(ctx: &impl DeviceContext) {
///     let recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     recorder.prepare(ctx).unwrap().finish().unwrap();
///     recorder.prepare(ctx).unwrap().finish().unwrap(); // moved
/// }
/// ```
#[derive(Debug)]
#[must_use = "a recorder does nothing until `launch` or `prepare`"]
pub struct LaunchRecorder {
    stream: StreamId,
    pub(crate) uses: LaunchUses,
    /// The time that it waits for windows of other streams.
    timeout: Duration,
    /// `true` once `launch` or `prepare` was called, also if it was refused.
    is_consumed: bool,
}

impl LaunchRecorder {
    /// Makes a recorder of a launch that is refused if it uses memory whose uses are not tracked.
    pub fn new_strict(stream: impl Into<StreamId>) -> Self {
        Self::new(stream.into(), LaunchMode::Strict)
    }

    /// Makes a recorder of a launch that skips such memory, and counts it: the caller orders its
    /// uses.
    pub fn new_permissive(stream: impl Into<StreamId>) -> Self {
        Self::new(stream.into(), LaunchMode::Permissive)
    }

    /// Makes the launch wait up to `timeout` while another stream has a conflicting window open,
    /// instead of being refused at once, which is the default. The thread waits: briefly without
    /// giving up its processor, then asleep. It holds no window meanwhile, so launches that wait
    /// for each other's buffers do not block each other for good. A window that this very thread
    /// has open does not close meanwhile.
    ///
    /// Once the time is over, the error is the last
    /// [`WindowConflict`](ResourceError::WindowConflict). Any other error, such as a lost device,
    /// is returned at once.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Records that the launch reads this memory. The returned value goes into
    /// `launch_builder().arg(..)`.
    pub fn read<M: TrackedMemory + ?Sized>(&mut self, memory: &M) -> KernelArg {
        self.uses.record(memory, Access::Read, None)
    }

    /// Records that the launch overwrites this memory.
    pub fn write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.uses.record(memory, Access::Write, None)
    }

    /// Records that the launch reads and writes this memory.
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

    /// Makes the stream wait for the dependencies of the uses, and opens their windows: of all,
    /// or of none. A launch without tracked blocks makes no call of the resource.
    ///
    /// # Errors
    ///
    /// See [`PrepareError`]. Nothing was enqueued, except that waits may remain on the stream.
    pub fn prepare<C: DeviceContext + ?Sized>(
        mut self,
        ctx: &C,
    ) -> Result<PreparedLaunch, PrepareError> {
        self.is_consumed = true;
        let streams = ctx.streams();
        let resource = ctx.resource();
        let stream = streams.enter(self.stream).map_err(|error| self.refused(error))?;
        let mut windows = Windows::new(Arc::clone(streams), Arc::clone(resource), stream.id());
        self.uses.reject_or_skip_untracked(&stream, &**resource)?;
        let named = Stream { guard: &stream, id: self.stream };
        self.uses.open(&mut windows, named, self.timeout)?;
        let declared = self.uses.declare(streams.device(), Some(&stream));
        Ok(PreparedLaunch::new(windows, stream.id(), &self.uses, declared))
    }

    /// Makes all steps: prepare, `enqueue`, finish.
    ///
    /// `enqueue` gets the stream to enqueue on: kernels with
    /// [`launch_builder`](StreamGuard::launch_builder), other work with cudarc's functions, which
    /// *lend* the stream. On a lent stream each later call looks for a capture, in 13 to 19 ns: see
    /// [`StreamGuard::stream`].
    ///
    /// If it fails, or panics, the uses are recorded all the same: part of its work may be in
    /// flight.
    ///
    /// With feature `nvtx`, under memcheck, the kernels of a strict launch are restricted to the
    /// recorded uses while `enqueue` runs: a write to a block that was recorded as read, and an
    /// access to another announced block, are reported (`dmr_nvtx::restricted`). A prepared launch
    /// is not restricted: it may be finished on another thread, and permissions belong to a thread.
    ///
    /// # Errors
    ///
    /// See [`LaunchError`], which has the step.
    #[inline]
    pub fn launch<C, T, E>(
        mut self,
        ctx: &C,
        enqueue: impl FnOnce(&StreamGuard<'_>) -> Result<T, E>,
    ) -> Result<T, LaunchError<E>>
    where
        C: DeviceContext + ?Sized,
    {
        self.launch_in_place(ctx, (), |(), _, _| Ok(()), |stream, (), _| enqueue(stream))
    }

    /// As [`launch`](Self::launch), with `memory` for `check` and `enqueue`. Borrows the recorder,
    /// which is hundreds of bytes long.
    pub(crate) fn launch_in_place<C, M, T, E>(
        &mut self,
        ctx: &C,
        memory: M,
        check: impl FnOnce(&M, &StreamGuard<'_>, &dyn DeviceMemoryResource) -> Result<(), PrepareError>,
        enqueue: impl FnOnce(&StreamGuard<'_>, M, &OtherStreams<'_>) -> Result<T, E>,
    ) -> Result<T, LaunchError<E>>
    where
        C: DeviceContext + ?Sized,
    {
        self.is_consumed = true;
        let resource = ctx.resource();
        let stream = ctx.streams().enter(self.stream).map_err(|error| self.refused(error))?;
        check(&memory, &stream, &**resource)?;
        self.uses.reject_or_skip_untracked(&stream, &**resource)?;
        let named = Stream { guard: &stream, id: self.stream };
        self.uses.launch(ctx, named, self.timeout, |stream, others| enqueue(stream, memory, others))
    }

    /// Returns the stream of the launch, as it was passed.
    #[must_use]
    pub fn launch_stream(&self) -> StreamId {
        self.stream
    }

    /// Returns the treatment of memory whose uses are not tracked.
    #[must_use]
    pub fn mode(&self) -> LaunchMode {
        self.uses.mode
    }

    /// Returns the number of different blocks, and parts of blocks, that the launch uses.
    #[must_use]
    pub fn recorded_count(&self) -> usize {
        self.uses.count()
    }

    /// Returns the number of uses of external memory that a permissive recorder has skipped so far.
    /// Prepare adds the blocks whose uses the context's resource does not track.
    #[must_use]
    pub fn skipped_count(&self) -> usize {
        self.uses.skipped
    }

    fn new(stream: StreamId, mode: LaunchMode) -> Self {
        Self::with_uses(stream, LaunchUses::new(mode), Duration::ZERO)
    }

    pub(crate) fn with_uses(stream: StreamId, uses: LaunchUses, timeout: Duration) -> Self {
        Self { stream, uses, timeout, is_consumed: false }
    }

    fn refused(&self, source: ResourceError) -> PrepareError {
        self.uses.refused(self.stream, source)
    }
}

/// Counts a launch that has recorded uses and was neither launched nor prepared.
impl Drop for LaunchRecorder {
    #[inline]
    fn drop(&mut self) {
        if !self.is_consumed && !self.uses.is_empty() {
            windows::count_unlaunched(self.stream, self.recorded_count());
        }
    }
}
