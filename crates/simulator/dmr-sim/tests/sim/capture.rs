//! Stream capture: the calls that a capturing stream accepts and refuses.
#![allow(unsafe_code)] // the driver is called directly

use crate::support::gpu::{self, Driver, code, fill, free, kinds, machine, malloc, record, wait};
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus};

use CUstreamCaptureStatus::{
    CU_STREAM_CAPTURE_STATUS_ACTIVE as ACTIVE, CU_STREAM_CAPTURE_STATUS_NONE as NONE,
};

const CAPTURED_EVENT: Option<i32> = Some(CUresult::CUDA_ERROR_CAPTURED_EVENT as i32);
const UNSUPPORTED: Option<i32> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as i32);

fn begin(stream: CUstream) {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is live.
    unsafe { result::stream::begin_capture(stream, mode) }.expect("cuStreamBeginCapture");
}

fn end(stream: CUstream) -> Driver<sys::CUgraph> {
    // SAFETY: the stream is live.
    unsafe { result::stream::end_capture(stream) }
}

fn status(stream: CUstream) -> CUstreamCaptureStatus {
    // SAFETY: the stream is live.
    unsafe { result::stream::is_capturing(stream) }.expect("cuStreamIsCapturing")
}

fn query_code(event: sys::CUevent) -> Option<i32> {
    // SAFETY: the event is live.
    code(unsafe { result::event::query(event) })
}

#[test]
fn a_stream_says_whether_it_is_capturing() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    assert_eq!(status(a), NONE);
    begin(a);
    assert_eq!(status(a), ACTIVE);
    assert_eq!(status(b), NONE);
    end(a).unwrap();
    assert_eq!(status(a), NONE);
}

#[test]
fn captured_work_does_not_run() {
    let (universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    fill(block, 1, 64, a).unwrap();
    gpu::sync(a).unwrap();
    begin(a);
    fill(block, 2, 64, a).unwrap();
    end(a).unwrap();
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(block, 64).unwrap(), [1; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn an_event_recorded_in_a_capture_cannot_be_queried() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let event = gpu::event();
    begin(a);
    record(event, a).unwrap();
    assert_eq!(query_code(event), CAPTURED_EVENT);
}

#[test]
fn memory_is_neither_allocated_nor_freed_during_a_capture() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let block = malloc(64).unwrap();
    begin(a);
    assert_eq!(code(malloc(64)), UNSUPPORTED);
    let _ = end(a);
    begin(a);
    assert_eq!(code(free(block)), UNSUPPORTED);
    let _ = end(a);
    free(block).unwrap();
}

#[test]
fn a_capturing_stream_cannot_be_waited_for() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    begin(a);
    assert_eq!(code(gpu::sync(a)), UNSUPPORTED);
    assert!(end(a).is_err(), "the attempt has spoilt the capture");
    assert_eq!(status(a), NONE);
    gpu::sync(a).unwrap();
}

#[test]
fn a_stream_that_waits_for_a_captured_event_is_captured_too() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    begin(a);
    record(event, a).unwrap();
    wait(b, event).unwrap();
    assert_eq!(status(b), ACTIVE);
    record(event, b).unwrap();
    wait(a, event).unwrap();
    end(a).unwrap();
    assert_eq!(status(b), NONE);
}

#[test]
fn the_legacy_stream_cannot_capture() {
    let (_universe, _gpu) = machine();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the legacy stream always lives.
    let returned = unsafe { result::stream::begin_capture(gpu::LEGACY, mode) };
    assert_eq!(code(returned), UNSUPPORTED);
}

#[test]
fn a_capture_begins_and_ends_once() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    assert!(end(a).is_err());
    begin(a);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is live.
    assert!(unsafe { result::stream::begin_capture(a, mode) }.is_err());
    let _ = end(a);
    assert!(end(a).is_err());
}

fn exchange(mode: i32) -> (i32, i32) {
    let mut mode = mode;
    // SAFETY: the mode is valid for reading and writing; the driver refuses a number that is no
    // mode.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) };
    (code as i32, mode)
}

#[test]
fn a_thread_without_a_context_exchanges_its_mode() {
    std::thread::spawn(|| {
        let _universe = dmr_sim::Universe::new().expect("the simulator installs");
        assert!(dmr_sim::is_capture_mode_global());
        assert_eq!(exchange(2), (0, 0));
        assert!(!dmr_sim::is_capture_mode_global());
        assert_eq!(exchange(0), (0, 2));
        assert!(dmr_sim::is_capture_mode_global());
    })
    .join()
    .unwrap();
}

#[test]
fn a_number_that_is_no_mode_is_refused_and_changes_nothing() {
    let (_universe, _gpu) = machine();
    assert_eq!(exchange(3), (1, 3));
    assert_eq!(exchange(-1), (1, -1));
    // SAFETY: the driver refuses a null pointer.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode(std::ptr::null_mut()) };
    assert_eq!(code as i32, 1);
    assert!(dmr_sim::is_capture_mode_global());
}

#[test]
fn a_thread_in_thread_local_mode_obeys_its_own_captures_only() {
    let (_universe, gpu) = machine();
    let a = gpu::stream();
    begin(a);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            gpu.bind();
            exchange(1);
            free(malloc(64).unwrap()).unwrap();
        });
        other.join().unwrap();
    });
    exchange(1);
    assert_eq!(code(malloc(64)), UNSUPPORTED);
    assert!(end(a).is_err());
}

#[test]
fn an_exchange_is_counted_and_can_be_made_to_fail() {
    let (universe, _gpu) = machine();
    universe.fail_nth("cuThreadExchangeStreamCaptureMode", 1, 999);
    assert_eq!(exchange(2), (999, 2));
    assert!(dmr_sim::is_capture_mode_global());
    assert_eq!(universe.calls().count("cuThreadExchangeStreamCaptureMode"), 1);
}

#[test]
fn an_event_of_a_capture_that_has_ended_cannot_be_waited_for() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    begin(a);
    record(event, a).unwrap();
    end(a).unwrap();
    assert_eq!(code(wait(b, event)), CAPTURED_EVENT);
    assert_eq!(status(b), NONE);
}

#[test]
fn a_stream_joins_a_capture_as_it_is() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    let b = gpu::stream();
    let event = gpu::event();
    begin(a);
    record(event, a).unwrap();
    assert_eq!(code(malloc(64)), UNSUPPORTED);
    wait(b, event).unwrap();
    assert_eq!(status(b), CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    assert!(end(a).is_err());
    assert_eq!(status(b), NONE);
}

#[test]
fn a_module_is_loaded_during_a_capture_which_stays_valid() {
    let (_universe, _gpu) = machine();
    let a = gpu::stream();
    begin(a);
    let text = std::ffi::CString::new(gpu::ptx("k", &["u64"])).unwrap();
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is a C string; the out-parameter is a live local.
    unsafe { sys::cuModuleLoadData(&mut module, text.as_ptr().cast()) }.result().unwrap();
    assert_eq!(status(a), ACTIVE);
    end(a).unwrap();
}
