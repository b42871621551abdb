//! A capture in progress: its stream, the streams that have joined it, and the memory that its work
//! uses.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use cudarc::driver::result;
use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_core::{AllocTag, ResourceError, ResourceResult, StreamId};
use dmr_launch::Footprint;
use dmr_streams::event::DriverEvent;
use dmr_streams::{DeviceContext, KernelArg, StreamGuard, TrackedMemory};

use crate::arena::Arena;
use crate::executable::Template;
use crate::memory::{GraphMemory, GraphPool};
use crate::order::{ORIGIN, Order};

/// The calls that a capture forbids meanwhile. In each mode they are calls that may synchronise,
/// such as `cuMemAlloc` and `cuEventQuery`; calls of this library are never among them.
/// `cuCtxSynchronize`, by any thread, ends the captures of its context in every mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CaptureMode {
    /// Calls of every thread of the process: one of them ends the capture as invalid.
    Global,
    /// Calls of the capturing thread.
    #[default]
    ThreadLocal,
    /// No calls.
    Relaxed,
}

impl CaptureMode {
    fn of_driver(self) -> CUstreamCaptureMode {
        match self {
            Self::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Self::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Self::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// The tag of the memory of a graph's own pool.
const TAG: AllocTag = AllocTag::new("graph");

/// The options of a capture. A [`CaptureMode`] alone is enough, too.
#[derive(Clone, Debug, Default)]
pub struct CaptureOptions {
    mode: CaptureMode,
    pool: Option<GraphPool>,
    tag: Option<AllocTag>,
}

impl CaptureOptions {
    /// Makes the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the mode.
    #[must_use]
    pub fn with_mode(mut self, mode: CaptureMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the tag of the memory of the graph's own pool: the name of the graph in statistics,
    /// logs, heap maps and the errors of budgets. By default it is `graph`. A pool that graphs
    /// [share](Self::with_pool) has a tag already.
    #[must_use]
    pub fn with_tag(mut self, tag: AllocTag) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Sets the pool that [`Capture::allocate`] uses, which other graphs may share. By default a
    /// graph has a pool of its own. A pool of a context with other streams is refused when the
    /// capture begins.
    #[must_use]
    pub fn with_pool(mut self, pool: &GraphPool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    pub(crate) fn mode(&self) -> CaptureMode {
        self.mode
    }

    /// Returns the pool that was set, or one of the graph's own.
    pub(crate) fn pool_in<C: DeviceContext + ?Sized>(&self, ctx: &C) -> GraphPool {
        let own = || GraphPool::new(ctx, self.tag.unwrap_or(TAG));
        self.pool.clone().unwrap_or_else(own)
    }
}

impl From<CaptureMode> for CaptureOptions {
    fn from(mode: CaptureMode) -> Self {
        Self::new().with_mode(mode)
    }
}

/// A capture in progress: the argument of the closure of [`Graph::capture`](crate::Graph::capture).
///
/// Record the memory that the work uses, and enqueue the work on [`stream`](Self::stream). Nothing
/// of it runs meanwhile.
///
/// Calls of the library on the stream are refused with
/// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing), and the capture stays valid:
/// copies, launches of a recorder, allocations from its resource. Make them before the capture, and
/// allocate memory for intermediate results with [`allocate`](Self::allocate).
pub struct Capture<'c> {
    origin: &'c StreamGuard<'c>,
    /// Streams that have joined the capture.
    forks: Vec<ForkedLane<'c>>,
    order: Order,
    pool: GraphPool,
    arena: Arena,
    /// The events between the streams. They live until the capture ends.
    events: Vec<DriverEvent>,
    pub(crate) footprint: Footprint,
    pub(crate) kept: Vec<Box<dyn Any + Send + Sync>>,
    is_ended: bool,
}

struct ForkedLane<'c> {
    guard: StreamGuard<'c>,
    lane: usize,
    /// The capture's stream has waited for it, and it has not been forked to since.
    is_joined: bool,
}

/// A stream that has joined a capture.
#[derive(Debug)]
pub struct Fork<'c> {
    lane: usize,
    stream: StreamGuard<'c>,
    /// A lane of another capture would say nothing about this one.
    _of_the_capture: PhantomData<fn(&'c ()) -> &'c ()>,
}

impl<'c> Fork<'c> {
    /// Returns the stream to enqueue work on that runs beside that of the capture's stream.
    pub fn stream(&self) -> &StreamGuard<'c> {
        &self.stream
    }
}

impl<'c> Capture<'c> {
    pub(crate) fn begin(
        origin: &'c StreamGuard<'c>,
        mode: CaptureMode,
        pool: &GraphPool,
    ) -> ResourceResult<Self> {
        let device = origin.device();
        device.bind()?;
        origin.refuse_capture()?;
        // Other streams may need what was submitted, and no event can be recorded meanwhile.
        origin.record_submitted()?;
        // SAFETY: the stream is alive while there is a guard.
        unsafe { result::stream::begin_capture(origin.handle().cast(), mode.of_driver()) }
            .map_err(|error| device.driver_error("cuStreamBeginCapture", error))?;
        Ok(Self {
            origin,
            forks: Vec::new(),
            order: Order::new(),
            pool: pool.clone(),
            arena: pool.arena(),
            events: Vec::new(),
            footprint: Footprint::new(),
            kept: Vec::new(),
            is_ended: false,
        })
    }

    /// Returns the stream to enqueue the work on.
    pub fn stream(&self) -> &'c StreamGuard<'c> {
        self.origin
    }

    /// Records that the work reads this memory. The returned value goes into
    /// `launch_builder().arg(..)`.
    pub fn read<M: TrackedMemory + ?Sized>(&mut self, memory: &M) -> KernelArg {
        self.footprint.read(memory)
    }

    /// Records that the work overwrites this memory.
    pub fn write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.footprint.write(memory)
    }

    /// Records that the work reads and writes this memory.
    pub fn read_write<M: TrackedMemory + ?Sized>(&mut self, memory: &mut M) -> KernelArg {
        self.footprint.read_write(memory)
    }

    /// Records a [`read`](Self::read), with the name of the column for messages.
    pub fn read_column<M: TrackedMemory + ?Sized>(
        &mut self,
        name: AllocTag,
        column: &M,
    ) -> KernelArg {
        self.footprint.read_column(name, column)
    }

    /// Records a [`write`](Self::write), with the name of the column for messages.
    pub fn write_column<M: TrackedMemory + ?Sized>(
        &mut self,
        name: AllocTag,
        column: &mut M,
    ) -> KernelArg {
        self.footprint.write_column(name, column)
    }

    /// Keeps a value until the graph is dropped and its last replay is done, such as a module or
    /// the workspace of a library. A graph that keeps values waits for its last replay when it is
    /// dropped, and each replay records one more event.
    pub fn keep(&mut self, value: impl Any + Send + Sync) {
        self.kept.push(Box::new(value));
    }

    /// Lets a stream of the same pool join the capture, after all work that was captured on the
    /// capture's stream so far. It belongs to the capture until that ends, and is waited for by
    /// then at the latest. After a [`join`](Self::join) it can be forked to again.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](dmr_core::ResourceError::StreamMisuse) for a stream of another pool or of a
    /// returned lease; [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing) if it captures
    /// already; [`Driver`](dmr_core::ResourceError::Driver).
    pub fn fork(&mut self, stream: impl Into<StreamId>) -> ResourceResult<Fork<'c>> {
        let guard = self.origin.pool().enter(stream.into())?;
        let joined = self.forks.iter().position(|it| it.is_joined && it.guard.id() == guard.id());
        if joined.is_none() {
            guard.refuse_capture()?;
            guard.record_submitted()?;
        }
        // Lends it: calls of other threads look for the capture from here on.
        let _ = guard.handle();
        let stream = self.origin.pool().enter(guard.id())?;
        let event = self.recorded_on(self.origin)?;
        let lane = self.order.fork();
        let fork = Fork { lane, stream, _of_the_capture: PhantomData };
        // From here on it is waited for, also if its wait fails.
        let forked = ForkedLane { guard, lane, is_joined: false };
        match joined {
            Some(at) => self.forks[at] = forked,
            None => self.forks.push(forked),
        }
        if let Err(error) = fork.stream.wait_in_capture(&event) {
            if joined.is_some() {
                // Nothing was captured on it since.
                self.note_join(lane);
            }
            return Err(error);
        }
        self.events.push(event);
        Ok(fork)
    }

    /// Makes the capture's stream wait for all work that was captured on a fork.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver): the capture is invalid then.
    pub fn join(&mut self, fork: Fork<'c>) -> ResourceResult<()> {
        self.wait_for(&fork.stream)?;
        self.note_join(fork.lane);
        Ok(())
    }

    fn note_join(&mut self, lane: usize) {
        if let Some(joined) = self.forks.iter_mut().find(|it| it.lane == lane) {
            joined.is_joined = true;
            self.order.join(lane);
        }
    }

    /// Allocates memory for work on the capture's stream, and on streams that come after it: for
    /// results that only the captured work uses. It keeps its address in every replay; its bytes
    /// are undefined when a replay begins.
    ///
    /// Memory that was freed in the capture is used again where the new work comes after all that
    /// was captured before the free, by the order of the streams, forks and joins.
    ///
    /// # Errors
    ///
    /// Those of the resource, if the pool needs another slab: for instance
    /// [`OutOfBudget`](dmr_core::ResourceError::OutOfBudget). The capture stays valid.
    pub fn allocate(&mut self, bytes: usize) -> ResourceResult<GraphMemory<'c>> {
        self.allocate_on_lane(bytes, ORIGIN)
    }

    /// Allocates memory as [`allocate`](Self::allocate) does, for work on a fork.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub fn allocate_on(
        &mut self,
        fork: &Fork<'c>,
        bytes: usize,
    ) -> ResourceResult<GraphMemory<'c>> {
        self.allocate_on_lane(bytes, fork.lane)
    }

    /// Frees memory, after all work that was captured so far.
    pub fn free(&mut self, memory: GraphMemory<'c>) {
        self.arena.release(memory.address, memory.bytes as u64, self.order.now());
    }

    fn allocate_on_lane(&mut self, bytes: usize, lane: usize) -> ResourceResult<GraphMemory<'c>> {
        if bytes == 0 {
            return Err(ResourceError::zero_size());
        }
        let address = match self.arena.acquire(bytes as u64, lane, &self.order) {
            Some(address) => address,
            None => {
                self.pool.grow(bytes, &mut self.arena)?;
                let acquired = self.arena.acquire(bytes as u64, lane, &self.order);
                acquired.ok_or_else(|| ResourceError::size_overflow(bytes))?
            }
        };
        Ok(GraphMemory::new(address, bytes))
    }

    /// Records the slabs of the memory that was allocated.
    pub(crate) fn record_slabs(&mut self) {
        self.pool.record(&self.arena, &mut self.footprint);
    }

    /// Makes the capture's stream wait for what was captured on another one.
    fn wait_for(&mut self, stream: &StreamGuard<'_>) -> ResourceResult<()> {
        let event = self.recorded_on(stream)?;
        self.origin.wait_in_capture(&event)?;
        self.events.push(event);
        Ok(())
    }

    /// Returns an event that stands for what was captured on a stream so far.
    fn recorded_on(&self, stream: &StreamGuard<'_>) -> ResourceResult<DriverEvent> {
        let device = self.origin.device();
        let event = DriverEvent::new(device)?;
        let recorded = stream.record_event(&event);
        recorded.map_err(|error| device.driver_error("cuEventRecord", error))?;
        Ok(event)
    }

    /// Joins the forks that are left, and ends the capture. It has ended, also on an error.
    pub(crate) fn end(&mut self) -> ResourceResult<Template> {
        let mut joined = Ok(());
        for forked in std::mem::take(&mut self.forks) {
            // One that has left the capture, or never joined it, has nothing to wait for.
            if !forked.is_joined && forked.guard.is_capturing().unwrap_or(false) {
                joined = joined.and(self.wait_for(&forked.guard));
            }
        }
        self.is_ended = true;
        let mut ended = self.end_once();
        if ended.is_err() && self.origin.is_capturing() != Ok(false) {
            // The call has not reached the stream: a capture that is invalid has ended by now.
            let again = self.end_once();
            ended = ended.and(again);
        }
        let template = ended?;
        joined.map(|()| template)
    }

    fn end_once(&self) -> ResourceResult<Template> {
        let device = self.origin.device();
        device.bind()?;
        // SAFETY: the stream is alive while there is a guard.
        unsafe { result::stream::end_capture(self.origin.handle().cast()) }
            .map(|graph| Template::new(graph, device))
            .map_err(|error| device.driver_error("cuStreamEndCapture", error))
    }
}

/// Ends the capture, as after a panic of the closure.
impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            drop(self.end());
        }
    }
}

impl fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("stream", &self.origin.id())
            .field("forks", &self.forks.len())
            .field("footprint", &self.footprint)
            .finish_non_exhaustive()
    }
}
