//! A graph: what was captured, and the memory that each replay uses.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::result;
use dmr_core::sync::lock;
use dmr_core::{DeviceMemoryResource, Generation, ResourceError, StreamId};
use dmr_launch::{Footprint, LaunchError};
use dmr_recorder::hooks;
use dmr_streams::event::DriverEvent;
use dmr_streams::{DeviceContext, StreamGuard, StreamPool};

use crate::capture::{Capture, CaptureMode, CaptureOptions};
use crate::error::CaptureError;
use crate::executable::{Executable, Template};
use crate::memory::GraphPool;
use crate::replay::Replay;

/// Captured work that can be launched again and again.
///
/// A launch is one use of all memory that was recorded in the capture, as a launch of a
/// [`LaunchRecorder`](dmr_launch::LaunchRecorder) is: it waits for what other streams do with that
/// memory, and later uses wait for it. It costs one look at each block and one event, whatever the
/// number of nodes. Launches of one graph run one after the other, also on different streams: the
/// driver orders them.
///
/// A graph keeps no block alive. A launch after a block was freed is
/// [`UseAfterFree`](ResourceError::UseAfterFree), and launches nothing.
///
/// Dropping it does not wait, and replays in flight go on; if it [keeps](Capture::keep) values, it
/// waits for its last replay, and drops them then.
pub struct Graph {
    pub(crate) context: Context,
    pub(crate) footprint: Footprint,
    launched: Mutex<Launched>,
    /// Its number in recordings.
    number: Generation,
    pool: GraphPool,
    /// Values that the captures keep.
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

struct Launched {
    executable: Executable,
    /// Recorded behind the last replay, if the graph keeps values. The driver runs the replays of a
    /// graph one after the other.
    last: Option<DriverEvent>,
    /// The events of executable graphs that updates have replaced.
    earlier: Vec<DriverEvent>,
    /// A replay is in flight that no event covers.
    is_untracked: bool,
}

impl Launched {
    fn new(executable: Executable) -> Mutex<Self> {
        Mutex::new(Self { executable, last: None, earlier: Vec::new(), is_untracked: false })
    }
}

/// The resource that tracks the memory, and the streams that the graph is launched on.
pub(crate) struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// The results of a capture.
struct Captured {
    template: Template,
    footprint: Footprint,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Graph {
    /// Captures what `work` enqueues on a stream.
    ///
    /// If `work` fails or panics, the capture ends without a graph.
    ///
    /// # Errors
    ///
    /// See [`CaptureError`]. The stream does not capture afterwards.
    ///
    /// # Safety
    ///
    /// At each launch of the graph the captured work accesses only
    ///
    /// - memory that `work` has recorded, or that launch's [`Replay`], in the recorded way, and
    /// - memory that is valid until the graph is dropped and its last replay is done, and that
    ///   nothing else writes meanwhile: of the host, of modules, of values that it
    ///   [keeps](Capture::keep).
    ///
    /// Between begin and end no capture of these streams is ended or begun by anything else, and no
    /// other thread submits to them. Work on another stream is captured between a
    /// [`fork`](Capture::fork) to it and the [`join`](Capture::join) only: memory that is
    /// [freed](Capture::free) is used again without regard to other work, such as that of a stream
    /// that has joined by an event of the program, or goes on after its join.
    pub unsafe fn capture<C, E>(
        ctx: &C,
        stream: impl Into<StreamId>,
        options: impl Into<CaptureOptions>,
        work: impl FnOnce(&mut Capture<'_>) -> Result<(), E>,
    ) -> Result<Self, CaptureError<E>>
    where
        C: DeviceContext + ?Sized,
    {
        let streams = Arc::clone(ctx.streams());
        let context = Context { resource: Arc::clone(ctx.resource()), streams };
        let options = options.into();
        let pool = options.pool_in(&context);
        let captured = captured(&context, stream.into(), options.mode(), &pool, work)?;
        let executable = captured.template.instantiate().map_err(CaptureError::Instantiate)?;
        let Captured { footprint, kept, .. } = captured;
        let number = Generation::next();
        Ok(Self { context, footprint, launched: Launched::new(executable), number, pool, kept })
    }

    /// Takes over an executable graph by its handle (a `CUgraphExec`), and drops its owner when
    /// this is dropped, with the context current: whatever destroys the graph then, or `()` if the
    /// program itself sees to it. Each launch uses the memory of `footprint`, as each launch of a
    /// captured graph uses what was recorded.
    ///
    /// # Safety
    ///
    /// As [`capture`](Self::capture). The graph is of the context's device and alive while the
    /// owner is, and nothing else launches, updates or destroys it.
    pub unsafe fn adopt_raw<C>(
        ctx: &C,
        graph: *mut c_void,
        owner: impl Any + Send + Sync,
        footprint: Footprint,
    ) -> Self
    where
        C: DeviceContext + ?Sized,
    {
        let streams = Arc::clone(ctx.streams());
        let context = Context { resource: Arc::clone(ctx.resource()), streams };
        let executable = Executable::adopt(graph, Box::new(owner), context.streams.device());
        let launched = Launched::new(executable);
        let pool = CaptureOptions::new().pool_in(&context);
        let number = Generation::next();
        Self { context, footprint, launched, number, pool, kept: Vec::new() }
    }

    /// Makes each launch wait up to `timeout` while another stream has a conflicting window open,
    /// instead of being refused at once.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.footprint = std::mem::take(&mut self.footprint).with_timeout(timeout);
        self
    }

    /// Launches the graph on any stream of its pool: one use of all its memory.
    ///
    /// # Errors
    ///
    /// See [`LaunchError`]. A block that was freed is
    /// [`UseAfterFree`](ResourceError::UseAfterFree), and nothing is launched. A stream that
    /// captures is [`StreamCapturing`](ResourceError::StreamCapturing): a graph does not become
    /// part of another one.
    pub fn launch(
        &self,
        stream: impl Into<StreamId>,
    ) -> Result<(), LaunchError<Box<ResourceError>>> {
        let has_uses = self.footprint.recorded_count() > 0;
        self.footprint.launch(&self.context, stream, |stream| self.enqueue(stream, has_uses))
    }

    /// Begins a launch that uses memory beside what the capture has recorded: record that, then
    /// [`launch`](Replay::launch) it.
    pub fn replay(&self, stream: impl Into<StreamId>) -> Replay<'_> {
        Replay::new(self, stream.into())
    }

    /// Enqueues a replay whose uses are prepared.
    pub(crate) fn enqueue(
        &self,
        stream: &StreamGuard<'_>,
        has_uses: bool,
    ) -> Result<(), Box<ResourceError>> {
        let device = self.context.streams.device();
        // With uses, preparing them has looked.
        if !has_uses {
            stream.refuse_capture()?;
        }
        let mut launched = lock(&self.launched);
        let Launched { executable, last, is_untracked, .. } = &mut *launched;
        // Before the launch: once it is submitted, no error may hide it.
        if !self.kept.is_empty() && last.is_none() {
            *last = Some(DriverEvent::new(device)?);
        }
        // SAFETY: the stream is alive while there is a guard, and the graph is locked.
        let launch = |on| unsafe { executable.launch(on) };
        stream.call(launch).map_err(|error| device.driver_error("cuGraphLaunch", error))?;
        if let Some(last) = last
            && stream.record_event(last).is_err()
        {
            let _waiting = hooks::HostWait::for_stream(stream.id());
            // A capture of another stream may forbid the call.
            // SAFETY: as above.
            let done = stream.call_relaxed(|on| unsafe { result::stream::synchronize(on) });
            *is_untracked |= done.is_err();
        }
        hooks::graph_launched(stream.id(), self.number.get(), self.pool.tag());
        Ok(())
    }

    /// Captures again, and launches what was captured from now on. If it has the nodes and edges
    /// of before, only parameters change, which costs less than a new graph: addresses, sizes,
    /// arguments of kernels. Replays in flight go on with what they were launched with. Values that
    /// earlier captures keep are kept until the graph is dropped.
    ///
    /// # Errors
    ///
    /// See [`CaptureError`]. The graph is as before.
    ///
    /// # Safety
    ///
    /// As [`capture`](Self::capture).
    pub unsafe fn update<E>(
        &mut self,
        stream: impl Into<StreamId>,
        mode: CaptureMode,
        work: impl FnOnce(&mut Capture<'_>) -> Result<(), E>,
    ) -> Result<(), CaptureError<E>> {
        let Captured { template, footprint, kept } =
            captured(&self.context, stream.into(), mode, &self.pool, work)?;
        let launched = self.launched.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Launched { executable, last, earlier, .. } = launched;
        if !template.update(executable).map_err(CaptureError::Instantiate)? {
            *executable = template.instantiate().map_err(CaptureError::Instantiate)?;
            earlier.extend(last.take());
        }
        self.footprint = footprint.with_timeout(self.footprint.timeout());
        // What is in flight may use what was kept so far.
        self.kept.extend(kept);
        Ok(())
    }

    /// Returns the pool of the memory that was allocated in its captures.
    #[must_use]
    pub fn pool(&self) -> &GraphPool {
        &self.pool
    }

    /// Returns the number of different blocks, and parts of blocks, that a launch uses.
    #[must_use]
    pub fn recorded_count(&self) -> usize {
        self.footprint.recorded_count()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let launched = self.launched.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let device = self.context.streams.device();
        // A forked child makes no driver call, also not by a value's drop.
        let mut is_in_use = launched.is_untracked || device.is_forked();
        for event in launched.earlier.drain(..).chain(launched.last.take()) {
            is_in_use |= device.relaxed(|relaxed| event.synchronize(relaxed)).is_err();
        }
        if is_in_use {
            // A replay may still use them.
            std::mem::forget(std::mem::take(&mut self.kept));
        }
    }
}

/// Captures what `work` enqueues.
fn captured<E>(
    context: &Context,
    stream: StreamId,
    mode: CaptureMode,
    pool: &GraphPool,
    work: impl FnOnce(&mut Capture<'_>) -> Result<(), E>,
) -> Result<Captured, CaptureError<E>> {
    let guard = context.streams.enter(stream).map_err(CaptureError::Begin)?;
    // The home of slabs cannot be made while the only other stream captures, and is refused if the
    // pool is of other streams: no launch could use its memory.
    drop(pool.home().and_then(|home| context.streams.enter(home)).map_err(CaptureError::Begin)?);
    let mut capture = Capture::begin(&guard, mode, pool).map_err(CaptureError::Begin)?;
    let worked = work(&mut capture);
    let ended = capture.end();
    worked.map_err(CaptureError::Work)?;
    let template = ended.map_err(CaptureError::End)?;
    capture.record_slabs();
    let footprint = std::mem::take(&mut capture.footprint);
    let kept = std::mem::take(&mut capture.kept);
    Ok(Captured { template, footprint, kept })
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("footprint", &self.footprint)
            .field("kept", &self.kept.len())
            .finish_non_exhaustive()
    }
}
