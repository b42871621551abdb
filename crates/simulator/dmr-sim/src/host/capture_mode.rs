//! Each thread's mode for captures: which captures forbid it unsafe calls.

use std::cell::Cell;
use std::ffi::c_int;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: a capture forbids unsafe calls to every thread; a thread in
/// this mode obeys the captures of all threads. `THREAD_LOCAL`, 1: a capture forbids them to the
/// capturing thread; a thread in this mode obeys its own captures.
pub(crate) const GLOBAL: c_int = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: a capture forbids nothing on other streams; a thread in this
/// mode obeys no capture.
pub(crate) const RELAXED: c_int = 2;

thread_local! {
    pub(crate) static MODE_OF_THREAD: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Returns whether the calling thread is in the capture mode that it started in, `GLOBAL`.
///
/// For tests of code that exchanges the mode by `cuThreadExchangeStreamCaptureMode` and must
/// restore it.
#[must_use]
pub fn is_capture_mode_global() -> bool {
    MODE_OF_THREAD.get() == GLOBAL
}

/// Puts the calling thread back into the capture mode that it started in.
///
/// For tests that continue after a device was lost: then `cuThreadExchangeStreamCaptureMode` fails,
/// too, and the mode is not restored.
pub fn reset_capture_mode() {
    MODE_OF_THREAD.set(GLOBAL);
}
