//! U14: calls that a capture forbids leave the thread's capture mode as it was.

#![allow(unsafe_code, reason = "exchanges the thread's capture mode, as a program may")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::sys::{self, CUstreamCaptureMode};
use dmr_core::ResourceError;
use dmr_testkit::Rig;

const LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Sets the mode of this thread, and returns the one before.
fn exchange(mut mode: CUstreamCaptureMode) -> CUstreamCaptureMode {
    // SAFETY: the driver reads a mode, and writes one.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result().unwrap();
    mode
}

#[test]
fn calls_that_nest_fail_or_panic_restore_the_mode() {
    let rig = Rig::simulated();
    let device = rig.device();
    exchange(LOCAL);
    device.relaxed(|_| device.relaxed(|_| Ok(()))).unwrap();
    assert_eq!(exchange(LOCAL), LOCAL, "they nest");
    let failed = device.relaxed(|_| device.relaxed(|_| Err::<(), _>(ResourceError::zero_size())));
    assert_eq!((failed.is_err(), exchange(LOCAL)), (true, LOCAL), "they fail");
    let panics =
        || device.relaxed(|_| -> Result<(), _> { std::panic::resume_unwind(Box::new(())) });
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(exchange(LOCAL), LOCAL, "they panic");
}
