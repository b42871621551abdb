//! The work of one launch on streams other than its own: after what the launch depends on, before
//! its end.

use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUevent_flags, CUevent_wait_flags};
use cudarc::driver::{CudaEvent, CudaStream, SyncOnDrop};
use dmr_core::append_list::AppendList;
use dmr_core::error::StreamProblem;
use dmr_core::sync::lock;
use dmr_core::{ResourceError, ResourceResult, StreamId};

use dmr_streams::event::DriverEvent;
use dmr_streams::{Device, StreamGuard, library};

/// The streams other than its own on which a launch's memory is used, between prepare and finish.
///
/// Libraries such as cuBLAS submit to a stream of theirs. [`use_on`](Self::use_on) makes that
/// stream wait for all work of the launch's stream, and returns the guard that records the use
/// there. The launch's stream waits for it before the next use, and at the latest in
/// [`end`](Self::end). A launch that uses only its own stream makes one driver call for each use,
/// which looks for a graph capture.
///
/// Calls that cannot return an error keep it for [`end`](Self::end).
pub struct OtherStreams<'l> {
    launch: &'l StreamGuard<'l>,
    /// The first error.
    error: Mutex<Option<ResourceError>>,
    has_error: AtomicBool,
    /// One event for each use on another stream.
    uses: AppendList<UseOnOther>,
    /// Set once another stream was used.
    any: AtomicBool,
    /// Set once a use is known not to be ordered.
    any_unordered: AtomicBool,
    /// Set once a guard synchronises its stream: cudarc's error state tells whether that failed.
    synchronises: AtomicBool,
    /// The error that cudarc had kept before. With it, cudarc would record no event.
    kept_by_cudarc: Mutex<Option<DriverError>>,
}

/// The outcome of [`OtherStreams::end`].
#[derive(Debug)]
#[must_use = "memory must not be freed while unprotected work may use it"]
pub struct EndOfUses {
    /// The first error of a use.
    pub outcome: ResourceResult<()>,
    /// `true` if the launch's stream comes after all the uses. If not, windows must stay open.
    pub is_protected: bool,
}

impl<'l> OtherStreams<'l> {
    /// Makes a list of no uses, for a launch on this stream.
    #[must_use]
    pub fn new(launch: &'l StreamGuard<'l>) -> Self {
        Self {
            launch,
            error: Mutex::default(),
            has_error: AtomicBool::new(false),
            uses: AppendList::default(),
            any: AtomicBool::new(false),
            any_unordered: AtomicBool::new(false),
            synchronises: AtomicBool::new(false),
            kept_by_cudarc: Mutex::default(),
        }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &'l Device {
        self.launch.device()
    }

    /// Returns the launch's stream.
    #[must_use]
    pub fn launch_stream(&self) -> &'l Arc<CudaStream> {
        self.launch.stream()
    }

    /// Orders the next work on `stream` after the launch's dependencies and after all work that the
    /// launch has submitted. Drop the guard once the work is submitted.
    ///
    /// Returns `None` if the use is refused, and keeps the error: `stream` captures a graph or
    /// belongs to another context, or it could not be made to wait.
    pub fn use_on<'a>(&'a self, stream: &'a CudaStream) -> Option<SyncOnDrop<'a>> {
        let is_own = stream.cu_stream() == self.launch_stream().cu_stream();
        let ordered = if is_own && self.is_same_context(stream) {
            self.use_on_own().map(|()| SyncOnDrop::Record(None))
        } else {
            self.use_on_other(stream)
        };
        ordered.map_err(|error| self.keep(error)).ok()
    }

    /// Orders the next work on the launch's own stream after the uses on other streams that were
    /// submitted.
    ///
    /// # Errors
    ///
    /// [`StreamCapturing`](ResourceError::StreamCapturing): a graph is not part of the launch;
    /// [`Driver`](ResourceError::Driver).
    pub fn use_on_own(&self) -> ResourceResult<()> {
        self.launch.refuse_capture()?;
        self.join()
    }

    /// Keeps an error for [`end`](Self::end), unless there is one.
    pub fn keep(&self, error: ResourceError) {
        lock(&self.error).get_or_insert(error);
        self.has_error.store(true, Ordering::Relaxed);
    }

    /// Keeps the error of a use that is not ordered before the launch's next work.
    /// [`end`](Self::end) synchronises the device.
    pub fn keep_unordered(&self, error: ResourceError) {
        self.any_unordered.store(true, Ordering::Relaxed);
        self.keep(error);
    }

    /// Takes an error out of cudarc's state, so that cudarc's next calls, which would return it, do
    /// their work. The error is put back in [`end`](Self::end).
    pub fn set_cudarc_error_aside(&self) {
        self.any.store(true, Ordering::Relaxed);
        if let Err(error) = self.launch_stream().context().check_err() {
            lock(&self.kept_by_cudarc).get_or_insert(error);
        }
    }

    /// Returns the error that cudarc has kept since
    /// [`set_cudarc_error_aside`](Self::set_cudarc_error_aside): that of `call`, or one of another
    /// thread.
    ///
    /// # Errors
    ///
    /// That error.
    pub fn take_cudarc_error(&self, call: &'static str) -> ResourceResult<()> {
        self.launch_stream().context().check_err().map_err(|error| {
            lock(&self.kept_by_cudarc).get_or_insert(error);
            self.launch.device().driver_error(call, error)
        })
    }

    /// Makes the launch's stream come after all uses on other streams. A use behind which no event
    /// was recorded is an error, and the device is synchronised, which ends captures of any stream
    /// of the context.
    ///
    /// The program's errors that cudarc keeps are put back.
    #[inline]
    pub fn end(&self) -> EndOfUses {
        let is_protected = !self.any.load(Ordering::Relaxed) || self.order_all();
        let error = match self.has_error.load(Ordering::Relaxed) {
            true => lock(&self.error).take(),
            false => None,
        };
        EndOfUses { outcome: error.map_or(Ok(()), Err), is_protected }
    }

    /// Makes the launch's stream come after all uses on other streams, and returns whether it does.
    #[cold]
    fn order_all(&self) -> bool {
        // Without a use that is not joined there is no call of the launch's stream, which may
        // capture by now.
        let joined = if self.all_joined() { Ok(()) } else { self.use_on_own() };
        let in_order = joined.and_then(|()| self.refuse_unrecorded());
        let all_ordered = in_order.is_ok() && !self.any_unordered.load(Ordering::Relaxed);
        if let Err(error) = in_order {
            self.keep(error);
        }
        let is_protected = all_ordered || self.launch.device().synchronize().is_ok();
        if let Some(error) = lock(&self.kept_by_cudarc).take() {
            self.launch_stream().context().record_err::<()>(Err(error));
        }
        is_protected
    }

    fn all_joined(&self) -> bool {
        self.uses.iter().all(|used| used.is_joined.load(Ordering::Relaxed))
    }

    fn use_on_other<'a>(&'a self, stream: &'a CudaStream) -> ResourceResult<SyncOnDrop<'a>> {
        let device = self.launch.device();
        if !self.is_same_context(stream) {
            return Err(unissued(StreamProblem::OtherContext));
        }
        device.bind()?;
        device.refuse_capture_of(stream)?;
        self.use_on_own()?;
        self.set_cudarc_error_aside();
        self.make_wait(stream)?;
        let context = self.launch_stream().context();
        // The streams of the pool keep cudarc in this mode while the launch runs. Another object of
        // cudarc for the same context may leave it.
        let records =
            Arc::ptr_eq(stream.context(), context) && context.is_managing_stream_synchronization();
        // An event with timing, because the driver tells whether such an event was recorded.
        let event = records.then(|| context.new_event(Some(CUevent_flags::CU_EVENT_DEFAULT)));
        let Some(Ok(event)) = event else {
            self.synchronises.store(true, Ordering::Relaxed);
            return Ok(SyncOnDrop::Sync(Some(stream)));
        };
        let used = UseOnOther { event, is_joined: AtomicBool::new(false) };
        let used = self.uses.push_unless(used, |_| false);
        Ok(SyncOnDrop::Record(Some((&used.event, stream))))
    }

    /// Makes another stream wait for all work that was submitted to the launch's.
    fn make_wait(&self, stream: &CudaStream) -> ResourceResult<()> {
        let device = self.launch.device();
        let event = DriverEvent::new(device)?;
        self.launch
            .record_event(&event)
            .map_err(|error| self.launch.device().driver_error("cuEventRecord", error))?;
        // A capture may have begun since the caller looked. Its event would draw `stream` into it.
        self.launch.refuse_capture()?;
        event.make_other_wait(stream)
    }

    /// Makes the launch's stream wait for the uses behind which an event was recorded.
    fn join(&self) -> ResourceResult<()> {
        for used in self.uses.iter().filter(|used| !used.is_joined.load(Ordering::Relaxed)) {
            if !self.is_recorded(&used.event)? {
                // Its guard is still there.
                continue;
            }
            let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            let event = used.event.cu_event();
            // SAFETY: event and stream are alive, and of one context.
            let wait = |on| unsafe { result::stream::wait_event(on, event, flags) };
            self.launch
                .call(wait)
                .map_err(|error| self.launch.device().driver_error("cuStreamWaitEvent", error))?;
            used.is_joined.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns an error if a guard was forgotten, or failed to record its event or to synchronise.
    fn refuse_unrecorded(&self) -> ResourceResult<()> {
        let all_recorded = self.all_joined();
        if all_recorded && !self.synchronises.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.take_cudarc_error("cuEventRecord")?;
        if all_recorded { Ok(()) } else { Err(unissued(StreamProblem::Unordered)) }
    }

    /// Returns whether an event with timing was recorded.
    fn is_recorded(&self, event: &CudaEvent) -> ResourceResult<bool> {
        type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> c_int;
        static ELAPSED_TIME: OnceLock<Option<ElapsedTime>> = OnceLock::new();
        // Not through cudarc, whose bindings name a function that older drivers lack.
        let elapsed_time = ELAPSED_TIME.get_or_init(|| {
            // SAFETY: the type is the function's in the driver's header, for both names.
            unsafe {
                library::optional("cuEventElapsedTime")
                    .or_else(|| library::optional("cuEventElapsedTime_v2"))
            }
        });
        let Some(elapsed_time) = elapsed_time else { return Ok(false) };
        self.launch.device().relaxed(|_| {
            let mut ms = 0.0;
            let event = event.cu_event();
            // SAFETY: the event is alive; the driver writes one number.
            let code = unsafe { elapsed_time(&mut ms, event, event) };
            // The driver's result for an event that was never recorded.
            Ok(code != sys::CUresult::CUDA_ERROR_INVALID_HANDLE as c_int)
        })
    }

    fn is_same_context(&self, stream: &CudaStream) -> bool {
        stream.context().cu_ctx() == self.launch_stream().context().cu_ctx()
    }
}

impl fmt::Debug for OtherStreams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherStreams")
            .field("launch", self.launch)
            .field("uses", &self.uses.iter().count())
            .finish_non_exhaustive()
    }
}

/// One use on another stream.
struct UseOnOther {
    /// Recorded on the other stream behind the use, by cudarc.
    event: CudaEvent,
    /// Set once the launch's stream waits for the event.
    is_joined: AtomicBool,
}

/// Returns the error for a stream that has no id here.
fn unissued(problem: StreamProblem) -> ResourceError {
    ResourceError::stream_misuse(StreamId::UNISSUED, problem)
}
