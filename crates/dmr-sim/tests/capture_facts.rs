//! Facts about stream capture that the simulator models. Each test checks one on the driver that this process uses,
//! simulated or not.
//!
//! On a GPU each test needs a process of its own, or one thread for all: a capture in one is in the way of the others.
#![allow(unsafe_code)] // the driver is called directly

mod support;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode as Mode};
use dmr_sim::{Driver, Universe};
use support::gpu::{self, Gpu, code, fill};

const UNSUPPORTED: Option<i32> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as i32);
const ISOLATION: Option<i32> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION as i32);
const CAPTURED_EVENT: Option<i32> = Some(CUresult::CUDA_ERROR_CAPTURED_EVENT as i32);

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// The first device of the driver that this process uses.
fn device() -> (Option<Universe>, Gpu) {
    match dmr_sim::select().expect("a driver") {
        Driver::Cuda => (None, Gpu::on(0)),
        Driver::Simulated(_) => {
            let universe = Universe::new().expect("the simulator installs");
            let gpu = Gpu::new(&universe);
            (Some(universe), gpu)
        }
    }
}

fn begin(stream: CUstream, mode: Mode) {
    // SAFETY: the stream is live.
    unsafe { result::stream::begin_capture(stream, mode) }.expect("cuStreamBeginCapture");
}

/// Ends the capture, and returns whether it was valid.
fn end(stream: CUstream) -> bool {
    // SAFETY: the stream is live.
    unsafe { result::stream::end_capture(stream) }.is_ok()
}

/// Sets the calling thread's capture mode, and returns the one before.
fn exchange(mode: Mode) -> Mode {
    let mut mode = mode;
    // SAFETY: the mode is valid for reading and writing.
    let code = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    code.result().expect("cuThreadExchangeStreamCaptureMode");
    mode
}

/// A stream that is not the capturing one, an event recorded on it, and a block.
struct Outside {
    stream: CUstream,
    event: sys::CUevent,
    block: u64,
}

impl Outside {
    fn new() -> Self {
        let (stream, event) = (gpu::stream(), gpu::event());
        gpu::record(event, stream).unwrap();
        gpu::sync(stream).unwrap();
        Self { stream, event, block: gpu::malloc(64).unwrap() }
    }

    /// Makes one of the calls that a capture forbids, and returns its code.
    fn make(&self, call: &str) -> Option<i32> {
        match call {
            // SAFETY: the event is live.
            "cuEventQuery" => code(unsafe { result::event::query(self.event) }),
            // SAFETY: the stream is live.
            "cuStreamQuery" => code(unsafe { sys::cuStreamQuery(self.stream).result() }),
            "cuStreamSynchronize" => code(gpu::sync(self.stream)),
            "cuMemAlloc" => code(gpu::malloc(64)),
            "cuMemFree" => code(gpu::free(self.block)),
            _ => unreachable!("{call}"),
        }
    }
}

/// Calls that a capture forbids. The last one frees the block.
const FORBIDDEN: [&str; 5] =
    ["cuEventQuery", "cuStreamQuery", "cuStreamSynchronize", "cuMemAlloc", "cuMemFree"];

/// Runs `work` in another thread, with the device's context.
fn in_another_thread<R: Send>(gpu: &Gpu, work: impl FnOnce() -> R + Send) -> R {
    let work = || {
        gpu.bind();
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().expect("the thread ends"))
}

struct Shared<T>(T);
// SAFETY: handles may be used by any thread: the driver locks what is behind them.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

#[test]
fn a_thread_starts_in_global_mode_and_has_the_mode_that_it_exchanged_last() {
    let (_universe, gpu) = device();
    assert_eq!(exchange(RELAXED), GLOBAL);
    assert_eq!(exchange(THREAD_LOCAL), RELAXED);
    assert_eq!(in_another_thread(&gpu, || exchange(GLOBAL)), GLOBAL);
    assert_eq!(exchange(GLOBAL), THREAD_LOCAL);
}

#[test]
fn calls_are_forbidden_to_the_thread_that_captures_in_global_mode() {
    let (_universe, _gpu) = device();
    let (outside, a) = (Outside::new(), gpu::stream());
    for call in FORBIDDEN {
        begin(a, GLOBAL);
        assert_eq!(outside.make(call), UNSUPPORTED, "{call}");
        assert!(!end(a), "{call}");
    }
}

#[test]
fn a_relaxed_thread_makes_the_forbidden_calls_during_its_own_capture() {
    let (_universe, _gpu) = device();
    let (outside, a) = (Outside::new(), gpu::stream());
    begin(a, GLOBAL);
    let before = exchange(RELAXED);
    FORBIDDEN.iter().for_each(|call| assert_eq!(outside.make(call), None, "{call}"));
    exchange(before);
    assert!(end(a), "the capture is valid");
}

#[test]
fn a_relaxed_thread_makes_the_forbidden_calls_during_the_capture_of_another() {
    let (_universe, gpu) = device();
    let (outside, a) = (Shared(Outside::new()), gpu::stream());
    begin(a, GLOBAL);
    in_another_thread(&gpu, || {
        let outside = &outside;
        exchange(RELAXED);
        FORBIDDEN.iter().for_each(|call| assert_eq!(outside.0.make(call), None, "{call}"));
    });
    assert!(end(a), "the capture is valid");
}

#[test]
fn a_mode_that_was_restored_forbids_again() {
    let (_universe, _gpu) = device();
    let (outside, a) = (Outside::new(), gpu::stream());
    begin(a, GLOBAL);
    exchange(RELAXED);
    exchange(GLOBAL);
    assert_eq!(code(gpu::sync(outside.stream)), UNSUPPORTED);
    assert!(!end(a));
}

#[test]
fn a_relaxed_thread_may_not_wait_for_the_capturing_stream_itself() {
    let (_universe, _gpu) = device();
    let (a, event) = (gpu::stream(), gpu::event());
    begin(a, GLOBAL);
    gpu::record(event, a).unwrap();
    let before = exchange(RELAXED);
    // SAFETY: the event is live.
    assert_eq!(code(unsafe { result::event::query(event) }), CAPTURED_EVENT);
    exchange(before);
    assert!(!end(a));
}

#[test]
fn a_record_on_a_capturing_stream_leaves_the_capture_valid() {
    let (_universe, _gpu) = device();
    let (a, event) = (gpu::stream(), gpu::event());
    begin(a, GLOBAL);
    gpu::record(event, a).unwrap();
    assert!(end(a));
    gpu::record(event, a).unwrap();
    gpu::sync_event(event).unwrap();
}

#[test]
fn a_capturing_stream_that_waits_for_an_outside_event_ends_its_capture() {
    let (_universe, _gpu) = device();
    let (outside, a) = (Outside::new(), gpu::stream());
    begin(a, GLOBAL);
    assert_eq!(code(gpu::wait(a, outside.event)), ISOLATION);
    assert!(!end(a), "the wait has invalidated the capture");
    fill(outside.block, 1, 64, a).unwrap();
    gpu::sync(a).unwrap();
}
