//! U14: the first stream of a context, with which cudarc begins to order by events, ends no
//! capture, and no work is left out of that order.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use std::sync::Arc;

use cudarc::driver::CudaContext;
use cudarc::driver::result::stream::{self, StreamKind};
use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_core::{ResourceError, ResourceResult};
use dmr_sim::{Policy, Universe};
use dmr_streams::{Device, StreamPool, StreamPoolConfig};

const LEN: usize = 1 << 12;

fn lazy() -> Universe {
    Universe::builder().policy(Policy::Lazy).build().unwrap()
}

/// The outcome of work that another thread did during a capture.
struct Outcome<R> {
    returned: R,
    is_capture_valid: bool,
}

/// Runs `work` on another thread while a new stream captures in global mode.
fn while_capturing<R: Send>(kind: StreamKind, work: impl FnOnce() -> R + Send) -> Outcome<R> {
    const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let on = stream::create(kind).unwrap();
    // SAFETY: the stream is alive.
    unsafe { stream::begin_capture(on, GLOBAL) }.unwrap();
    let returned = std::thread::scope(|scope| scope.spawn(work).join()).unwrap();
    // SAFETY: as above.
    let captured = unsafe { stream::end_capture(on) };
    // SAFETY: as above, and destroyed once.
    unsafe { stream::destroy(on) }.unwrap();
    Outcome { returned, is_capture_valid: captured.is_ok() }
}

fn pool_of(device: Device) -> ResourceResult<Arc<StreamPool>> {
    StreamPool::new(device, StreamPoolConfig::new())
}

#[test]
fn the_first_pool_of_a_device_ends_no_capture() {
    let universe = lazy();
    let others = CudaContext::new(universe.ordinal(0)).unwrap();
    for kind in [StreamKind::NonBlocking, StreamKind::Default] {
        let made = while_capturing(kind, || {
            let pool = pool_of(Device::open(universe.ordinal(0)).unwrap()).unwrap();
            drop(pool.acquire().unwrap());
            pool
        });
        assert!(made.is_capture_valid);
        assert!(made.returned.device().context().is_in_multi_stream_mode());
    }
    drop(others);
    assert!(universe.finish().is_clean());
}

#[test]
fn work_of_the_program_on_cudas_default_stream_comes_before_the_streams_of_the_pool() {
    let universe = lazy();
    let theirs = CudaContext::new(universe.ordinal(0)).unwrap();
    let default = theirs.default_stream();
    // cudarc records no events of this.
    let mut slice = default.alloc_zeros::<u8>(LEN).unwrap();
    let device = Device::from_context(Arc::clone(&theirs)).unwrap();
    let made = while_capturing(StreamKind::NonBlocking, || pool_of(device));
    assert!(made.is_capture_valid);
    let pool = made.returned.unwrap();
    let home = pool.acquire().unwrap();
    home.stream().memset_zeros(&mut slice).unwrap();
    drop((slice, home, pool, default, theirs));
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn where_that_work_cannot_be_waited_for_the_pool_is_refused() {
    let universe = lazy();
    let theirs = CudaContext::new(universe.ordinal(0)).unwrap();
    let device = Device::from_context(Arc::clone(&theirs)).unwrap();
    let made = while_capturing(StreamKind::Default, || pool_of(device.clone()));
    let refused = made.returned.unwrap_err();
    assert!(matches!(refused, ResourceError::StreamCapturing { .. }), "{refused}");
    assert!(made.is_capture_valid);
    assert!(!theirs.is_in_multi_stream_mode(), "the next attempt waits");
    drop(pool_of(device).unwrap());
    drop(theirs);
    assert!(universe.finish().is_clean());
}

#[test]
fn no_driver_call_that_fails_leaves_work_out_of_the_order() {
    for failing in 1.. {
        let universe = lazy();
        let theirs = CudaContext::new(universe.ordinal(0)).unwrap();
        let mut slice = theirs.default_stream().alloc_zeros::<u8>(LEN).unwrap();
        let device = Device::from_context(Arc::clone(&theirs)).unwrap();
        let before = universe.calls().total();
        universe.fail_call_number(failing, 999);
        let pool = pool_of(device.clone()).or_else(|_| pool_of(device.clone()));
        let calls = universe.calls().total() - before;
        universe.clear_faults();
        let pool = pool.expect("only one driver call fails");
        pool.acquire().unwrap().stream().memset_zeros(&mut slice).unwrap();
        drop((slice, pool, device, theirs));
        let races = universe.reports();
        assert!(races.is_empty(), "call {failing}: {races:?}");
        if calls < failing {
            assert!(failing > 8, "{failing}");
            return;
        }
    }
}
