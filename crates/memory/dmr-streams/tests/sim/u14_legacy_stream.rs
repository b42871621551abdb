//! U14: while a blocking stream captures, no call records an event on CUDA's legacy stream, which
//! would end that capture.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use cudarc::driver::result::stream::{self, StreamKind};
use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_core::ResourceResult;
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

/// Makes a call while a blocking stream captures in each mode. The pool has adopted the legacy
/// stream.
fn while_a_blocking_stream_captures<R>(
    call: impl Fn(&Rig, &StreamLease) -> ResourceResult<R>,
) -> Vec<ResourceResult<R>> {
    let modes = [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ];
    let made = modes.map(|mode| {
        let rig = Rig::simulated();
        let legacy = rig.streams().adopt_legacy().unwrap();
        let on = stream::create(StreamKind::Default).unwrap();
        // SAFETY: the stream is alive.
        unsafe { stream::begin_capture(on, mode) }.unwrap();
        let returned = call(&rig, &legacy);
        // SAFETY: as above.
        let graph = unsafe { stream::end_capture(on) };
        // SAFETY: as above, and destroyed once.
        unsafe { stream::destroy(on) }.unwrap();
        // SAFETY: the graph is alive.
        unsafe { cudarc::driver::result::graph::destroy(graph.expect("a valid capture")) }.unwrap();
        call(&rig, &legacy).unwrap();
        drop(legacy);
        rig.assert_clean();
        returned
    });
    made.into()
}

#[test]
fn a_wait_for_all_streams_skips_the_legacy_stream() {
    let waited = while_a_blocking_stream_captures(|rig, _| rig.streams().synchronize_all());
    assert_eq!(waited, [Ok(false), Ok(false), Ok(false)]);
}

#[test]
fn the_legacy_stream_is_not_retired() {
    let retired =
        while_a_blocking_stream_captures(|rig, legacy| rig.streams().retire_stream(legacy));
    assert!(retired.iter().all(Result::is_err), "{retired:?}");
}
