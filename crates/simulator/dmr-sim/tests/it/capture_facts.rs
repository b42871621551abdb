//! Facts about stream capture that the simulator models. Each test checks one on the driver that
//! this process uses, simulated or not.
//!
//! On a GPU each test needs a process of its own, or one thread for all: a capture in one affects
//! the others.
#![allow(unsafe_code)] // the driver is called directly

use std::ffi::c_void;

use crate::support::gpu::{self, Gpu, code, device, fill};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUresult, CUstream, CUstreamCaptureMode as Mode};

const UNSUPPORTED: Option<i32> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED as i32);
const ISOLATION: Option<i32> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION as i32);
const IMPLICIT: Option<i32> = Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT as i32);
const CAPTURED_EVENT: Option<i32> = Some(CUresult::CUDA_ERROR_CAPTURED_EVENT as i32);

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

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

/// A stream that is not the capturing one, an event recorded on it, and memory of each kind.
struct Outside {
    stream: CUstream,
    event: sys::CUevent,
    block: u64,
    pool: sys::CUmemoryPool,
    pooled: u64,
    pinned: *mut c_void,
    pageable: Vec<u8>,
}

impl Outside {
    fn new() -> Self {
        let stream = gpu::stream();
        let event = gpu::event();
        gpu::record(event, stream).unwrap();
        let block = gpu::malloc(64).unwrap();
        let mut device = 0;
        let mut pool = std::ptr::null_mut();
        // SAFETY: the device is written.
        unsafe { sys::cuCtxGetDevice(&raw mut device) }.result().unwrap();
        // SAFETY: the device exists; the pool is written.
        unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, device) }.result().unwrap();
        let pooled = allocate_from(pool, stream).unwrap();
        let pinned = host_alloc().unwrap();
        gpu::sync(stream).unwrap();
        let pageable = vec![0; 2 << 20];
        Self { stream, event, block, pool, pooled, pinned, pageable }
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
            // SAFETY: the event is live.
            "cuEventSynchronize" => code(unsafe { result::event::synchronize(self.event) }),
            "cuMemAllocFromPoolAsync" => code(allocate_from(self.pool, self.stream)),
            // SAFETY: the memory is live, and nothing uses it.
            "cuMemFreeAsync" => code(unsafe { result::free_async(self.pooled, self.stream) }),
            // SAFETY: the pool is live.
            "cuMemPoolTrimTo" => code(unsafe { result::mem_pool::trim_to(self.pool, 0) }),
            "cuMemPoolGetAttribute" => code(self.reserved()),
            "cuMemHostAlloc" => code(host_alloc()),
            // SAFETY: the memory is live, and nothing uses it.
            "cuMemFreeHost" => code(unsafe { result::free_host(self.pinned) }),
            "cuMemHostRegister" => code(self.register()),
            _ => unreachable!("{call}"),
        }
    }

    fn reserved(&self) -> Result<(), DriverError> {
        let mut bytes = 0_u64;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the pool is live; the attribute's type is a 64-bit integer.
        unsafe { result::mem_pool::get_attribute(self.pool, attribute, (&raw mut bytes).cast()) }
    }

    /// Registers the pageable memory, and unregisters it again.
    fn register(&self) -> Result<(), DriverError> {
        let start = self.pageable.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the memory is live.
        unsafe { sys::cuMemHostRegister_v2(start, self.pageable.len(), 0) }.result()?;
        // SAFETY: just registered.
        unsafe { sys::cuMemHostUnregister(start) }.result()
    }

    /// Makes one of the calls that no capture forbids, on streams that do not capture.
    fn make_allowed(&self, call: &str) {
        match call {
            "cuEventCreate" => drop(gpu::event()),
            "cuEventRecord" => gpu::record(self.event, self.stream).unwrap(),
            "cuStreamCreate" => drop(gpu::stream()),
            "cuStreamWaitEvent" => gpu::wait(gpu::stream(), self.event).unwrap(),
            "cuMemsetD8Async" => fill(self.block, 1, 64, self.stream).unwrap(),
            "cuMemGetInfo" => drop(result::mem_get_info().unwrap()),
            _ => unreachable!("{call}"),
        }
    }
}

fn allocate_from(pool: sys::CUmemoryPool, stream: CUstream) -> Result<u64, DriverError> {
    let mut at = 0;
    // SAFETY: pool and stream are live; the address is written.
    unsafe { sys::cuMemAllocFromPoolAsync(&raw mut at, 64, pool, stream) }.result()?;
    Ok(at)
}

fn host_alloc() -> Result<*mut c_void, DriverError> {
    // SAFETY: memory that is not used.
    unsafe { result::malloc_host(4096, 0) }
}

/// Calls that no capture forbids.
const ALLOWED: [&str; 6] = [
    "cuEventCreate",
    "cuEventRecord",
    "cuStreamCreate",
    "cuStreamWaitEvent",
    "cuMemsetD8Async",
    "cuMemGetInfo",
];

/// Calls that a capture forbids, each made once.
const FORBIDDEN: [&str; 13] = [
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemPoolTrimTo",
    "cuMemPoolGetAttribute",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
];

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
    let outside = Outside::new();
    let a = gpu::stream();
    for call in FORBIDDEN {
        begin(a, GLOBAL);
        assert_eq!(outside.make(call), UNSUPPORTED, "{call}");
        assert!(!end(a), "{call}");
    }
}

#[test]
fn a_relaxed_thread_makes_the_forbidden_calls_during_its_own_capture() {
    let (_universe, _gpu) = device();
    let outside = Outside::new();
    let a = gpu::stream();
    begin(a, GLOBAL);
    let before = exchange(RELAXED);
    FORBIDDEN.iter().for_each(|call| assert_eq!(outside.make(call), None, "{call}"));
    exchange(before);
    assert!(end(a), "the capture is valid");
}

#[test]
fn a_relaxed_thread_makes_the_forbidden_calls_during_the_capture_of_another() {
    let (_universe, gpu) = device();
    let outside = Shared(Outside::new());
    let a = gpu::stream();
    begin(a, GLOBAL);
    in_another_thread(&gpu, || {
        let outside = &outside;
        exchange(RELAXED);
        FORBIDDEN.iter().for_each(|call| assert_eq!(outside.0.make(call), None, "{call}"));
    });
    assert!(end(a), "the capture is valid");
}

#[test]
fn a_capture_in_global_mode_forbids_the_calls_to_other_threads_and_one_in_local_mode_does_not() {
    let (_universe, gpu) = device();
    let outside = Shared(Outside::new());
    let a = gpu::stream();
    let in_another = |call: &'static str| {
        let outside = &outside;
        in_another_thread(&gpu, move || {
            let outside = outside;
            outside.0.make(call)
        })
    };
    for call in FORBIDDEN {
        begin(a, GLOBAL);
        assert_eq!(in_another(call), UNSUPPORTED, "{call}");
        assert!(!end(a), "{call}");
    }
    for call in FORBIDDEN {
        begin(a, THREAD_LOCAL);
        assert_eq!(in_another(call), None, "{call}");
        assert!(end(a), "{call}");
    }
}

#[test]
fn no_capture_forbids_work_on_other_streams_nor_events_and_streams() {
    let (_universe, gpu) = device();
    let outside = Shared(Outside::new());
    let a = gpu::stream();
    begin(a, GLOBAL);
    ALLOWED.iter().for_each(|call| outside.0.make_allowed(call));
    in_another_thread(&gpu, || {
        let outside = &outside;
        ALLOWED.iter().for_each(|call| outside.0.make_allowed(call));
    });
    assert!(end(a), "the capture is valid");
}

#[test]
fn waiting_for_the_context_ends_every_capture_whatever_the_modes() {
    let (_universe, gpu) = device();
    let a = gpu::stream();
    let wait = || code(result::ctx::synchronize());
    for of_capture in [GLOBAL, THREAD_LOCAL] {
        for of_thread in [GLOBAL, RELAXED] {
            begin(a, of_capture);
            let before = exchange(of_thread);
            assert_eq!(wait(), UNSUPPORTED);
            exchange(before);
            assert!(!end(a));
        }
        begin(a, of_capture);
        assert_eq!(in_another_thread(&gpu, wait), UNSUPPORTED);
        assert!(!end(a));
    }
    assert_eq!(wait(), None);
}

#[test]
fn a_mode_that_was_restored_forbids_again() {
    let (_universe, _gpu) = device();
    let outside = Outside::new();
    let a = gpu::stream();
    begin(a, GLOBAL);
    exchange(RELAXED);
    exchange(GLOBAL);
    assert_eq!(code(gpu::sync(outside.stream)), UNSUPPORTED);
    assert!(!end(a));
}

#[test]
fn a_relaxed_thread_may_not_wait_for_the_capturing_stream_itself() {
    let (_universe, _gpu) = device();
    let a = gpu::stream();
    let event = gpu::event();
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
    let a = gpu::stream();
    let event = gpu::event();
    begin(a, GLOBAL);
    gpu::record(event, a).unwrap();
    assert!(end(a));
    gpu::record(event, a).unwrap();
    gpu::sync_event(event).unwrap();
}

#[test]
fn a_capturing_stream_that_waits_for_an_outside_event_ends_its_capture() {
    let (_universe, _gpu) = device();
    let outside = Outside::new();
    let a = gpu::stream();
    begin(a, GLOBAL);
    assert_eq!(code(gpu::wait(a, outside.event)), ISOLATION);
    assert!(!end(a), "the wait has invalidated the capture");
    fill(outside.block, 1, 64, a).unwrap();
    gpu::sync(a).unwrap();
}

#[test]
fn whether_the_default_stream_captures_is_refused_while_a_blocking_stream_does() {
    let (_universe, _gpu) = device();
    let blocking = gpu::blocking_stream();
    let legacy = std::ptr::null_mut();
    // SAFETY: the null handle is CUDA's default stream.
    let is_capturing = || unsafe { result::stream::is_capturing(legacy) }.map(drop);
    begin(blocking, GLOBAL);
    assert_eq!(code(is_capturing()), IMPLICIT);
    assert!(end(blocking), "the capture stays valid");
    let other = gpu::stream();
    begin(other, GLOBAL);
    is_capturing().unwrap();
    assert!(end(other));
}
