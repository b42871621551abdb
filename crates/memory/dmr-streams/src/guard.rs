//! A stream that a call uses: checked once, and alive until the call ends.
//!
//! Every function that takes an id enters the stream first, also a warm allocation, so this is the
//! hottest path of the crate. For the pool's own streams, which live as long as the pool, it counts
//! nothing. An adopted stream counts its calls, so that retiring it finds none.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUstreamCaptureStatus};
use dmr_core::error::StreamProblem;
use dmr_core::{ResourceError, ResourceResult, StreamId};

use crate::entered_stream::{CaptureLook, capture_status_of};
use crate::event::DriverEvent;
use crate::holds::Holds;
use crate::relaxed::in_relaxed_mode;
use crate::stream_entry::StreamEntry;
use crate::{Device, StreamPool};

/// `CU_STREAM_PER_THREAD`: the last handle that stands for a default stream of CUDA.
pub(crate) const PER_THREAD: usize = 2;

/// The driver's function that says whether a stream is capturing a graph.
const CAPTURE_STATUS: &str = "cuStreamIsCapturing";

/// A stream of a pool that may be used until this is dropped.
///
/// The owner of an adopted stream cannot [retire](StreamPool::retire_stream) it meanwhile. A stream
/// that the pool made lives as long as the pool, so its guard counts nothing.
#[must_use = "the stream may be retired once this is dropped"]
pub struct StreamGuard<'p> {
    pool: &'p StreamPool,
    /// It has a stream, and keeps it as long as this guard lives.
    slot: &'p StreamEntry,
    id: StreamId,
    /// `Some` for an adopted stream.
    holds: Option<&'p Holds>,
}

/// The stream on which a block was allocated.
#[derive(Debug)]
pub enum HomeStream<'p> {
    /// A stream that can be used.
    Live(StreamGuard<'p>),
    /// A stream that its owner has retired: [`Dependencies`](crate::Dependencies) on it are those
    /// on its last event.
    Retired,
}

impl StreamPool {
    /// Begins a call that uses a stream. Makes no driver call and takes no lock.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`DeviceLost`](ResourceError::DeviceLost);
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool, of a returned lease
    /// or of a retired stream.
    #[inline]
    pub fn enter(&self, stream: StreamId) -> ResourceResult<StreamGuard<'_>> {
        self.entered(stream).ok_or_else(|| self.refusal(stream))
    }

    /// Begins a call as [`enter`](Self::enter) does; returns `None` instead of an error.
    #[inline(always)]
    pub(crate) fn entered(&self, stream: StreamId) -> Option<StreamGuard<'_>> {
        if self.device().is_usable() { self.entered_on_any_device(stream) } else { None }
    }

    /// Begins a call as [`enter`](Self::enter) does, also on a device that is lost.
    #[inline(always)]
    pub(crate) fn entered_on_any_device(&self, stream: StreamId) -> Option<StreamGuard<'_>> {
        let id = if stream.is_default() { self.default_stream() } else { stream };
        let slot = self.slot_of(id)?;
        let holds = slot.holds();
        // The guard is made in one place: made in two, it passes through memory (7 ns for each call
        // of the pool).
        let is_entered = match holds {
            Some(holds) => slot.enter_adopted(holds, id),
            None => slot.admits_own(id),
        };
        if is_entered { Some(StreamGuard { pool: self, slot, id, holds }) } else { None }
    }

    /// Begins a call that uses the stream on which a block was allocated, also after its lease was
    /// returned. Makes no driver call and takes no lock.
    ///
    /// If the stream was retired, and another one adopted in its slot since, this is that one: its
    /// work comes after all work of the retired one.
    ///
    /// # Errors
    ///
    /// [`ForkedProcess`](ResourceError::ForkedProcess); [`DeviceLost`](ResourceError::DeviceLost);
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for an id of another pool.
    #[inline]
    pub fn enter_home(&self, home: StreamId) -> ResourceResult<HomeStream<'_>> {
        self.entered_home(home).ok_or_else(|| self.refusal(home))
    }

    /// Begins a call as [`enter_home`](Self::enter_home) does; returns `None` instead of an error.
    #[inline(always)]
    pub(crate) fn entered_home(&self, home: StreamId) -> Option<HomeStream<'_>> {
        let slot = self.slot_of(home).filter(|_| self.device().is_usable())?;
        let holds = slot.holds();
        let is_live = match holds {
            Some(holds) => holds.enter(),
            None if slot.is_own_home(home) => true,
            None => return None,
        };
        Some(match is_live {
            true => HomeStream::Live(StreamGuard { pool: self, slot, id: home, holds }),
            false => HomeStream::Retired,
        })
    }

    /// Returns the slot of a stream of this pool.
    #[inline(always)]
    fn slot_of(&self, id: StreamId) -> Option<&StreamEntry> {
        if id.pool() == Some(self.id()) { self.entry(id.slot()) } else { None }
    }

    /// Returns a guard for the thread that is retiring the stream, which counts as a call already.
    pub(crate) fn guard_of_retirement(&self, id: StreamId) -> ResourceResult<StreamGuard<'_>> {
        let slot = self.entry(id.slot()).ok_or_else(|| self.misuse(id))?;
        Ok(StreamGuard { pool: self, slot, id, holds: None })
    }
}

impl<'p> StreamGuard<'p> {
    /// Returns the id under which the stream may be stored: never [`StreamId::DEFAULT`].
    #[must_use]
    #[inline]
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Returns the slot of the stream in its pool.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> usize {
        self.id.slot()
    }

    #[inline]
    pub(crate) fn entry(&self) -> &'p StreamEntry {
        self.slot
    }

    /// Returns whether the stream is one of CUDA's default streams.
    #[inline]
    pub(crate) fn is_default_of_cuda(&self) -> bool {
        self.cudarc_stream().cu_stream() as usize <= PER_THREAD
    }

    /// Returns the handle of the stream (a `CUstream`), and *lends* it: from here on each call of
    /// the library on this stream looks for a capture, which takes 13 to 19 ns, because a program
    /// that has the handle can begin one.
    #[must_use]
    #[inline]
    pub fn handle(&self) -> *mut c_void {
        self.lent_stream().cu_stream().cast()
    }

    /// Makes the device's context current, and passes the handle of the stream (a `CUstream`) to
    /// `submit`. Does not lend the stream: `submit` neither begins a capture nor keeps the handle.
    ///
    /// # Errors
    ///
    /// As [`Device::bind`]; then `submit` is not called.
    #[inline]
    pub fn with_handle<T>(&self, submit: impl FnOnce(*mut c_void) -> T) -> ResourceResult<T> {
        self.device().bind()?;
        Ok(submit(self.cudarc_stream().cu_stream().cast()))
    }

    /// Returns cudarc's stream, and lends it.
    #[inline]
    pub(crate) fn lent_stream(&self) -> &Arc<CudaStream> {
        self.slot.lend();
        self.cudarc_stream()
    }

    /// Returns cudarc's stream, for the library's own calls.
    #[inline]
    pub(crate) fn cudarc_stream(&self) -> &Arc<CudaStream> {
        // SAFETY: the slot had a stream when this guard was made. The pool keeps its own, and a
        // call or a retirement holds an adopted one as long as the guard lives.
        &unsafe { self.slot.entered() }.stream
    }

    /// Returns the pool of the stream.
    #[must_use]
    #[inline]
    pub fn pool(&self) -> &'p StreamPool {
        self.pool
    }

    /// Makes a driver call on the stream, whose other arguments belong to its device, too: events,
    /// pools, addresses. All of them belong to a context, so the context need not be current. Only
    /// if the call fails is the context checked; if it was not current, it is bound, and the call
    /// is made once more.
    ///
    /// CUDA's default streams belong to the current context: for them it is bound first.
    ///
    /// Does not lend the stream: `call` neither begins a capture on it nor gives the handle away;
    /// [`handle`](Self::handle) is for that.
    ///
    /// # Errors
    ///
    /// The error of the call.
    #[inline]
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn call<T>(
        &self,
        call: impl Fn(sys::CUstream) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        if self.is_default_of_cuda() {
            return self.call_on_default(call);
        }
        call(self.cudarc_stream().cu_stream()).or_else(|error| self.call_again(call, error))
    }

    #[cold]
    #[inline(never)]
    fn call_on_default<T>(
        &self,
        call: impl Fn(sys::CUstream) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        self.device().make_current().map_err(|(_, error)| error)?;
        call(self.cudarc_stream().cu_stream())
    }

    /// Repeats a call that has failed, if the context was not current.
    #[cold]
    #[inline(never)]
    fn call_again<T>(
        &self,
        call: impl Fn(sys::CUstream) -> Result<T, DriverError>,
        error: DriverError,
    ) -> Result<T, DriverError> {
        match self.device().make_current() {
            Ok(true) => call(self.cudarc_stream().cu_stream()),
            _ => Err(error),
        }
    }

    /// Makes a call as [`call`](Self::call) does, also one that captures of other streams forbid
    /// ([`Device::relaxed`]). Makes two more driver calls, of 10 ns each.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    #[inline]
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn call_relaxed<T>(
        &self,
        call: impl Fn(sys::CUstream) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        in_relaxed_mode(|| self.call(call))?
    }

    /// Records an event on the stream. If that captures a graph, the event orders nothing outside
    /// of the graph, and adds no node to it: call [`refuse_capture`](Self::refuse_capture)
    /// afterwards.
    ///
    /// # Errors
    ///
    /// The driver's.
    #[inline]
    #[cfg_attr(not(feature = "cudarc"), doc(hidden))]
    pub fn record_event(&self, event: &DriverEvent) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive, and of the device's context.
        self.call(|on| unsafe { result::event::record(event.handle(), on) })
    }

    /// Records an event as [`record_event`](Self::record_event) does, where that has failed with
    /// this error because the context was not current.
    #[cold]
    pub(crate) fn record_event_again(
        &self,
        event: &DriverEvent,
        error: DriverError,
    ) -> Result<(), DriverError> {
        // SAFETY: as in `record_event`.
        self.call_again(|on| unsafe { result::event::record(event.handle(), on) }, error)
    }

    /// Records an event that covers all work submitted to the stream so far, unless it is done.
    /// Other streams can wait for that work while this one captures a graph then.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver).
    pub fn record_submitted(&self) -> ResourceResult<()> {
        self.pool.progress().event_on(self).map(drop)
    }

    /// Makes the stream wait for an event of its device.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](dmr_core::ResourceError::StreamCapturing) where the stream has begun to
    /// capture a graph since the caller looked: the driver refuses to wait for what is not in the
    /// graph. [`Driver`](dmr_core::ResourceError::Driver).
    #[inline]
    pub fn wait_for_event(&self, event: &DriverEvent) -> ResourceResult<()> {
        self.wait_in_capture(event).or_else(|error| self.refuse_capture().and(Err(error)))
    }

    /// Makes the stream wait, in the graph that it captures or begins to capture with this, for an
    /// event of the same capture.
    ///
    /// # Errors
    ///
    /// [`Driver`](dmr_core::ResourceError::Driver).
    pub fn wait_in_capture(&self, event: &DriverEvent) -> ResourceResult<()> {
        self.wait_for_event_raw(event)
            .map_err(|error| event.device().driver_error("cuStreamWaitEvent", error))
    }

    /// Makes the stream wait for an event of any device.
    #[inline]
    pub(crate) fn wait_for_event_raw(&self, event: &DriverEvent) -> Result<(), DriverError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream are alive. A stream may wait for an event of another context.
        self.call(|on| unsafe { result::stream::wait_event(on, event.handle(), flags) })
    }

    /// Refuses a stream that is capturing a graph, in which work would be left out. If code outside
    /// of the library has had the stream, makes one driver call, which reads a state.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing); [`Driver`](ResourceError::Driver).
    #[inline]
    pub fn refuse_capture(&self) -> ResourceResult<()> {
        if self.slot.is_lent() { self.query_capture() } else { Ok(()) }
    }

    /// Makes the driver call of [`refuse_capture`](Self::refuse_capture) on any stream: it concerns
    /// this stream alone, and finds a sticky error of its device.
    ///
    /// # Errors
    ///
    /// As [`refuse_capture`](Self::refuse_capture).
    #[inline]
    pub fn query_capture(&self) -> ResourceResult<()> {
        match self.capture_status() {
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => Ok(()),
            status => Err(self.capture_error(status)),
        }
    }

    /// Returns the result of [`refuse_capture`](Self::refuse_capture) for a look that was made
    /// without a second call where the context is not current.
    #[cold]
    pub(crate) fn refuse_look(&self, look: CaptureLook) -> ResourceResult<()> {
        // SAFETY: as in `capture_status`.
        let again = |error| self.call_again(|stream| unsafe { capture_status_of(stream) }, error);
        match look.or_else(again) {
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) => Ok(()),
            status => Err(self.capture_error(status)),
        }
    }

    #[cold]
    #[inline(never)]
    fn capture_error(&self, status: Result<CUstreamCaptureStatus, DriverError>) -> ResourceError {
        match status {
            Ok(_) => ResourceError::stream_capturing(self.id),
            Err(error) => self.device().driver_error(CAPTURE_STATUS, error),
        }
    }

    /// Returns whether the stream is capturing a graph.
    ///
    /// # Errors
    ///
    /// [`Driver`](ResourceError::Driver).
    #[inline]
    pub fn is_capturing(&self) -> ResourceResult<bool> {
        let status = self
            .capture_status()
            .map_err(|error| self.device().driver_error(CAPTURE_STATUS, error))?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    #[inline(always)]
    fn capture_status(&self) -> Result<CUstreamCaptureStatus, DriverError> {
        // SAFETY: the stream is alive while there is a guard.
        self.call(|stream| unsafe { capture_status_of(stream) })
    }

    /// Returns the device of the stream.
    #[must_use]
    #[inline]
    pub fn device(&self) -> &'p Device {
        self.pool.device()
    }

    /// Returns the calls and launches that hold the stream, if it is adopted.
    #[inline]
    pub(crate) fn holds(&self) -> Option<&'p Holds> {
        self.holds
    }

    /// Counts a launch that begins on the stream.
    #[inline]
    pub(crate) fn begin_launch(&self) {
        if let Some(holds) = self.holds {
            holds.begin_launch();
        }
    }
}

impl<'p> HomeStream<'p> {
    /// Returns the guard of a stream that is not retired.
    #[must_use]
    #[inline]
    pub fn live(self) -> Option<StreamGuard<'p>> {
        match self {
            Self::Live(guard) => Some(guard),
            Self::Retired => None,
        }
    }

    /// Refuses a stream that is capturing a graph; a retired one captures nothing.
    ///
    /// # Errors
    ///
    /// As [`StreamGuard::refuse_capture`].
    #[inline]
    pub fn refuse_capture(&self) -> ResourceResult<()> {
        match self {
            Self::Live(guard) => guard.refuse_capture(),
            Self::Retired => Ok(()),
        }
    }
}

impl Drop for StreamGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(holds) = self.holds {
            holds.leave();
        }
    }
}

impl fmt::Debug for StreamGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamGuard").field(&self.id).finish()
    }
}

impl StreamPool {
    /// Returns the error for an id that no call can begin with: that of the device, if it cannot be
    /// used.
    #[cold]
    pub(crate) fn refusal(&self, stream: StreamId) -> ResourceError {
        self.device().check().err().unwrap_or_else(|| self.misuse(stream))
    }

    /// Returns the error for an id that names no stream of this pool.
    #[cold]
    pub(crate) fn misuse(&self, stream: StreamId) -> ResourceError {
        let is_ours = stream.is_default() || stream.pool() == Some(self.id());
        let problem = match is_ours {
            true => StreamProblem::ReturnedLease,
            false => self.problem_of_other(stream),
        };
        ResourceError::stream_misuse(stream, problem)
    }
}
