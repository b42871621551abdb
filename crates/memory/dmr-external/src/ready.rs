//! The work of a producer that comes before the uses of the memory that it has made.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUevent_wait_flags};
use dmr_core::error::StreamProblem;
use dmr_core::{ResourceError, ResourceResult, StreamId};
use dmr_streams::event::DriverEvent;
use dmr_streams::{Device, StreamGuard};

/// The work after which memory of another owner may be used.
///
/// The handles are those of the driver; streams and events of the CUDA runtime are the same. They
/// are used in the call that they are passed to, and not afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ready {
    /// It is done: the producer has waited for it.
    Done,
    /// The work so far on this stream (a `CUstream`). A null handle and `CU_STREAM_LEGACY` are
    /// CUDA's legacy default stream, `CU_STREAM_PER_THREAD` is that of the calling thread.
    Stream(*mut c_void),
    /// The work behind which this event (a `CUevent`) was recorded last. A null handle is
    /// [`Done`](Self::Done).
    Event(*mut c_void),
}

/// The largest handle that stands for a default stream.
const PER_THREAD: usize = 2;

impl Ready {
    /// Makes the next work on `home` come after this.
    ///
    /// # Errors
    ///
    /// [`StreamMisuse`](ResourceError::StreamMisuse) for a stream of another context;
    /// [`StreamCapturing`](ResourceError::StreamCapturing) if either stream captures a graph, and
    /// for an event that was recorded in a capture; [`Driver`](ResourceError::Driver).
    ///
    /// # Safety
    ///
    /// The handle is null or that of a stream or event that is not destroyed during the call.
    pub(crate) unsafe fn before(self, home: &StreamGuard<'_>) -> ResourceResult<()> {
        home.device().bind()?;
        home.refuse_capture()?;
        match self {
            Self::Done => Ok(()),
            Self::Event(event) if event.is_null() => Ok(()),
            // SAFETY: the caller's obligation.
            Self::Event(event) => unsafe { wait_for_event(event, home) },
            // SAFETY: the caller's obligation.
            Self::Stream(stream) => unsafe { wait_for_stream(stream, home) },
        }
    }
}

/// # Safety
///
/// As [`Ready::before`].
unsafe fn wait_for_event(event: *mut c_void, home: &StreamGuard<'_>) -> ResourceResult<()> {
    let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
    // SAFETY: the caller's obligation; the stream is entered.
    let wait = |on| unsafe { sys::cuStreamWaitEvent(on, event.cast(), flags) }.result();
    home.call(wait).map_err(|error| {
        let capturing = ResourceError::stream_capturing(home.id());
        match error.0 {
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | sys::CUresult::CUDA_ERROR_CAPTURED_EVENT => capturing,
            _ => home.device().driver_error("cuStreamWaitEvent", error),
        }
    })?;
    // A capture may have begun meanwhile.
    home.refuse_capture()
}

/// # Safety
///
/// As [`Ready::before`].
unsafe fn wait_for_stream(stream: *mut c_void, home: &StreamGuard<'_>) -> ResourceResult<()> {
    let device = home.device();
    // SAFETY: the caller's obligation.
    unsafe { refuse_other_context(stream, device) }?;
    let is_home = |on: sys::CUstream| Ok(std::ptr::eq(on.cast(), stream));
    if home.call(is_home).unwrap_or(false) {
        return Ok(());
    }
    // SAFETY: the stream outlives the call. Dropping the wrapper makes no driver call.
    let stream = unsafe { device.context().wrap_borrowed_stream(stream.cast()) };
    device.refuse_capture_of(&stream)?;
    let event = DriverEvent::new(device)?;
    event.record_on_other(&stream)?;
    // A capture may have begun meanwhile.
    device.refuse_capture_of(&stream)?;
    home.wait_for_event(&event)
}

/// # Safety
///
/// As [`Ready::before`].
unsafe fn refuse_other_context(stream: *mut c_void, device: &Device) -> ResourceResult<()> {
    // A default stream is that of the current context.
    if stream as usize <= PER_THREAD {
        return Ok(());
    }
    let mut context = std::ptr::null_mut();
    // SAFETY: the caller's obligation; the driver writes one handle.
    unsafe { sys::cuStreamGetCtx(stream.cast(), &mut context) }
        .result()
        .map_err(|error| device.driver_error("cuStreamGetCtx", error))?;
    match context == device.context().cu_ctx() {
        true => Ok(()),
        false => Err(ResourceError::stream_misuse(StreamId::UNISSUED, StreamProblem::OtherContext)),
    }
}
