//! Told what a launch uses, makes it wait for what it must.

use std::ops::Deref;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use dmr_core::{
    Access, AllocTag, BlockId, BlockUse, DeviceMemoryResource, ResourceError, StreamId,
    StreamPoolId, UseTrackingExt,
};
use dmr_streams::{DeviceContext, KernelArg, MemoryOrigin, StreamGuard, StreamPool, TrackedMemory};
use smallvec::SmallVec;

use crate::error::RefusedMemory;
use crate::windows::Windows;
use crate::{LaunchError, PreflightError, PreflightedLaunch};

/// How many uses of one launch need no memory of the host's heap.
const INLINE: usize = 8;

/// What becomes of memory whose uses nobody tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaunchMode {
    /// The launch is refused before anything is enqueued.
    Strict,
    /// It is left out and counted; its order is up to the caller.
    Permissive,
}

/// What a launch on one stream reads and writes.
///
/// Recording takes a snapshot: the borrow ends with the call, and the
/// [`KernelArg`] that comes back is `Copy`. Several uses of one block, through views or the whole,
/// are one use with the combined access. The same block may be read and written.
///
/// Up to 8 blocks need no host heap.
///
/// # Misuse does not compile
///
/// Committing without preflight:
///
/// ```compile_fail,E0599
/// use dmr_core::StreamId;
/// use dmr_launch::LaunchRecorder;
///
/// LaunchRecorder::new_strict(StreamId::DEFAULT).commit();
/// ```
///
/// Preflighting, or launching, twice:
///
/// ```compile_fail,E0382
/// # use dmr_launch::LaunchRecorder;
/// # use dmr_streams::DeviceContext;
/// fn twice(ctx: &impl DeviceContext) {
///     let recorder = LaunchRecorder::new_strict(ctx.streams().default_stream());
///     recorder.preflight(ctx).unwrap().commit().unwrap();
///     recorder.preflight(ctx).unwrap().commit().unwrap(); // moved
/// }
/// ```
#[derive(Debug)]
#[must_use = "a recorder does nothing until `launch` or `preflight`"]
pub struct LaunchRecorder {
    stream: StreamId,
    mode: LaunchMode,
    uses: SmallVec<[BlockUse; INLINE]>,
    /// How many of the uses are of pinned memory. They come first.
    pinned: usize,
    /// What each use was recorded as, if it was a column.
    columns: SmallVec<[Option<AllocTag>; INLINE]>,
    /// The first that a strict launch is refused for.
    external: Option<RefusedMemory>,
    skipped: usize,
}

impl LaunchRecorder {
    /// For a launch that is refused if it uses memory whose order nobody knows.
    pub fn new_strict(stream: impl Into<StreamId>) -> Self {
        Self::new(stream.into(), LaunchMode::Strict)
    }

    /// For a launch that leaves such memory out, and counts it: ordering it is up to the caller.
    pub fn new_permissive(stream: impl Into<StreamId>) -> Self {
        Self::new(stream.into(), LaunchMode::Permissive)
    }

    /// The launch reads this memory. The answer goes into `launch_builder().arg(..)`.
    pub fn read<M: TrackedMemory + ?Sized>(&mut self, memory: &M) -> KernelArg {
        self.record(memory, Access::Read, None)
    }

    /// The launch overwrites this memory.
    pub fn write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.record(memory, Access::Write, None)
    }

    /// The launch reads and writes this memory.
    pub fn read_write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.record(memory, Access::ReadWrite, None)
    }

    /// [`read`](Self::read), with the name of the column for messages. A name made at run time is
    /// interned once: [`AllocTag::intern`].
    pub fn read_column<M: TrackedMemory + ?Sized>(
        &mut self,
        name: AllocTag,
        column: &M,
    ) -> KernelArg {
        self.record(column, Access::Read, Some(name))
    }

    /// [`write`](Self::write), with the name of the column for messages.
    pub fn write_column<M: TrackedMemory + ?Sized>(
        &mut self,
        name: AllocTag,
        column: &mut M,
    ) -> KernelArg {
        self.record(column, Access::Write, Some(name))
    }

    /// Makes the stream wait for what the uses must come after, and opens their windows: of all,
    /// or of none. A launch that uses no block that is tracked asks nothing of the resource.
    ///
    /// # Errors
    ///
    /// See [`PreflightError`]. Nothing was enqueued, except that waits may remain on the stream.
    pub fn preflight<C: DeviceContext + ?Sized>(
        mut self,
        ctx: &C,
    ) -> Result<PreflightedLaunch, PreflightError> {
        let (streams, resource) = (ctx.streams(), ctx.resource());
        let stream = streams.enter(self.stream).map_err(|error| self.refused(error))?;
        let mut windows = Windows::new(Arc::clone(streams), Arc::clone(resource), stream.id());
        self.open(&mut windows, &**resource, &stream)?;
        let counts = (self.uses.len(), self.skipped);
        Ok(PreflightedLaunch::new(windows, stream.id(), self.mode, counts))
    }

    /// Preflight, `enqueue`, commit. `enqueue` gets the stream to enqueue on.
    ///
    /// If it fails, or panics, the uses are recorded all the same: part of its work may be in
    /// flight.
    ///
    /// With feature `nvtx`, under memcheck, the kernels of a strict launch are held to the recorded
    /// uses while `enqueue` runs: a write to a block that was recorded as read, and an access to
    /// another announced block, are reported (`dmr_nvtx::restricted`). A preflighted launch
    /// is not: it may be committed on another thread, and permissions belong to a thread.
    ///
    /// # Errors
    ///
    /// See [`LaunchError`], which says at which step.
    pub fn launch<C, T, E>(
        mut self,
        ctx: &C,
        enqueue: impl FnOnce(&Arc<CudaStream>) -> Result<T, E>,
    ) -> Result<T, LaunchError<E>>
    where
        C: DeviceContext + ?Sized,
    {
        let (streams, resource) = (ctx.streams(), ctx.resource());
        let stream = streams.enter(self.stream).map_err(|error| self.refused(error))?;
        let mut windows = Windows::new(&**streams, &**resource, stream.id());
        self.open(&mut windows, &**resource, &stream)?;
        let enqueued = self.held_to_its_uses(|| enqueue(stream.stream()));
        match (enqueued, windows.finish()) {
            (Ok(value), Ok(())) => Ok(value),
            (Ok(_), Err(error)) => Err(LaunchError::Commit(error)),
            (Err(error), recorded) => Err(LaunchError::Enqueue { error, commit: recorded.err() }),
        }
    }

    /// The stream of the launch, as it was named.
    #[must_use]
    pub fn launch_stream(&self) -> StreamId {
        self.stream
    }

    /// What becomes of memory whose uses nobody tracks.
    #[must_use]
    pub fn mode(&self) -> LaunchMode {
        self.mode
    }

    /// How many different blocks the launch uses.
    #[must_use]
    pub fn recorded_count(&self) -> usize {
        self.uses.len()
    }

    /// How many uses of external memory a permissive recorder has left out so far. Preflight adds
    /// the blocks whose uses the context's resource does not track.
    #[must_use]
    pub fn skipped_count(&self) -> usize {
        self.skipped
    }

    fn new(stream: StreamId, mode: LaunchMode) -> Self {
        let (uses, columns) = (SmallVec::new(), SmallVec::new());
        Self { stream, mode, uses, pinned: 0, columns, external: None, skipped: 0 }
    }

    fn record<M: TrackedMemory + ?Sized>(
        &mut self,
        memory: &M,
        access: Access,
        column: Option<AllocTag>,
    ) -> KernelArg {
        match memory.origin() {
            MemoryOrigin::Block(block) => self.add(BlockUse::new(block, access), column),
            MemoryOrigin::Pinned(block) => self.add_pinned(BlockUse::new(block, access), column),
            MemoryOrigin::Empty => {}
            MemoryOrigin::External { name } => self.leave_out(name, column),
            // A kind of memory that this version does not know has no order that it knows.
            _ => self.leave_out("memory of an unknown kind", column),
        }
        KernelArg::of(memory)
    }

    fn add_pinned(&mut self, new: BlockUse, column: Option<AllocTag>) {
        let recorded = self.uses.len();
        self.add(new, column);
        if self.uses.len() > recorded {
            self.uses.swap(self.pinned, recorded);
            self.columns.swap(self.pinned, recorded);
            self.pinned += 1;
        }
    }

    /// The whole identity is the key: another generation at the same address is another block.
    fn add(&mut self, new: BlockUse, column: Option<AllocTag>) {
        match self.uses.iter().position(|known| known.block == new.block) {
            Some(index) => {
                let access = &mut self.uses[index].access;
                *access = access.and(new.access);
                self.columns[index] = self.columns[index].or(column);
            }
            None => {
                self.uses.push(new);
                self.columns.push(column);
            }
        }
    }

    fn leave_out(&mut self, name: &str, column: Option<AllocTag>) {
        match self.mode {
            LaunchMode::Permissive => self.skipped += 1,
            LaunchMode::Strict => {
                self.external
                    .get_or_insert_with(|| RefusedMemory::External { name: name.into(), column });
            }
        }
    }

    /// Runs `work`. Under memcheck its kernels are restricted to the recorded uses.
    #[cfg(feature = "nvtx")]
    fn held_to_its_uses<T>(&self, work: impl FnOnce() -> T) -> T {
        dmr_nvtx::range(c"launch", || match self.mode {
            LaunchMode::Strict => dmr_nvtx::restricted(&self.uses, work),
            LaunchMode::Permissive => dmr_nvtx::unrestricted(work),
        })
    }

    #[cfg(not(feature = "nvtx"))]
    fn held_to_its_uses<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    /// Opens all windows or none.
    #[inline]
    fn open<S: Deref<Target = StreamPool>, R: DeviceMemoryResource>(
        &mut self,
        windows: &mut Windows<S, R>,
        resource: &dyn DeviceMemoryResource,
        stream: &StreamGuard<'_>,
    ) -> Result<(), PreflightError> {
        self.refuse_or_leave_out_unordered(stream.pool().id(), resource, stream.id())?;
        let (pinned, blocks) = self.uses.split_at(self.pinned);
        windows.open(stream, pinned, blocks).map_err(|error| self.refused(error))
    }

    /// Refuses or leaves out everything that cannot be ordered, as the mode says.
    fn refuse_or_leave_out_unordered(
        &mut self,
        pool: StreamPoolId,
        resource: &dyn DeviceMemoryResource,
        stream: StreamId,
    ) -> Result<(), PreflightError> {
        if let Some(memory) = self.external.take() {
            return Err(PreflightError::External { stream, memory });
        }
        let is_foreign = |block: BlockId| block.alloc_stream().pool() != Some(pool);
        let pinned = self.pinned;
        let tracks = self.uses.len() == pinned || resource.supports_block_use_tracking();
        let unordered = |index, block| (!tracks && index >= pinned) || is_foreign(block);
        let mut uses = self.uses.iter().enumerate();
        let Some(first) = uses.position(|(index, known)| unordered(index, known.block)) else {
            return Ok(());
        };
        if self.mode == LaunchMode::Strict {
            let block = self.uses[first].block;
            let (generation, column) = (block.generation(), self.columns[first]);
            let memory = RefusedMemory::Block { generation, column };
            return Err(if is_foreign(block) {
                PreflightError::OtherPool { stream, memory }
            } else {
                let source = ResourceError::not_tracked(stream);
                PreflightError::Untracked { stream, memory, source }
            });
        }
        for index in (first..self.uses.len()).rev() {
            if unordered(index, self.uses[index].block) {
                self.uses.remove(index);
                self.columns.remove(index);
                self.pinned -= usize::from(index < pinned);
                self.skipped += 1;
            }
        }
        Ok(())
    }

    fn refused(&self, source: ResourceError) -> PreflightError {
        let named = self.uses.iter().zip(&self.columns);
        let columns = named
            .filter_map(|(known, column)| Some(((*column)?, known.block.generation())))
            .collect();
        PreflightError::Resource { stream: self.stream, source, columns }
    }
}
