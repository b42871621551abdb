//! D1: one runtime per ordinal per process, built once under any race, retried after a failure.

#![cfg(feature = "direct")]

use std::sync::Barrier;

use dmr::{DeviceRuntime, MAX_DEVICE_ORDINALS, RuntimeError};
use dmr_sim::Universe;

const UNKNOWN: i32 = 999;

/// Never ends: its runtimes do not either, and its ordinals must not become another universe's.
fn universe() -> &'static Universe {
    Box::leak(Box::new(Universe::new().unwrap()))
}

#[test]
fn threads_that_race_for_a_runtime_build_it_once() {
    const THREADS: usize = 32;
    let universe = universe();
    let ordinal = universe.ordinal(0);
    let start = Barrier::new(THREADS);
    let runtimes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    DeviceRuntime::try_get(ordinal).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(runtimes.iter().all(|runtime| std::ptr::eq(*runtime, runtimes[0])));
    let calls = universe.calls();
    assert_eq!(calls.count("cuDevicePrimaryCtxRetain"), 1);
    assert_eq!(calls.count("cuStreamCreateWithPriority"), 1);
}

#[test]
fn a_runtime_that_was_built_is_returned_without_a_driver_call() {
    let universe = universe();
    let first = DeviceRuntime::try_get(universe.ordinal(0)).unwrap();
    universe.reset_calls();
    assert!(std::ptr::eq(DeviceRuntime::try_get(universe.ordinal(0)).unwrap(), first));
    assert_eq!(universe.calls().total(), 0);
}

#[test]
fn each_device_has_a_runtime_of_its_own() {
    let universe = universe();
    let [a, b] = [0, 1].map(|device| DeviceRuntime::try_get(universe.ordinal(device)).unwrap());
    assert!(!std::ptr::eq(a, b));
    assert_eq!((a.ordinal(), b.ordinal()), (universe.ordinal(0), universe.ordinal(1)));
    assert_eq!(a.resource().stream_pool(), a.streams().id());
}

#[test]
fn after_a_failed_build_the_next_call_succeeds() {
    let universe = universe();
    let ordinal = universe.ordinal(0);
    for call in ["cuDevicePrimaryCtxRetain", "cuStreamCreateWithPriority"] {
        universe.fail_nth(call, 1, UNKNOWN);
        let error = DeviceRuntime::try_get(ordinal).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_UNKNOWN (999)"), "{error}");
    }
    let runtime = DeviceRuntime::try_get(ordinal).unwrap();
    assert_eq!(runtime.ordinal(), ordinal);
}

#[test]
fn ordinals_beyond_the_table_are_refused_with_the_way_round() {
    for ordinal in [MAX_DEVICE_ORDINALS, usize::MAX] {
        let error = DeviceRuntime::try_get(ordinal).unwrap_err();
        assert!(matches!(error, RuntimeError::OrdinalBeyondLimit { .. }), "{error}");
        assert!(error.to_string().contains("DeviceRuntime::builder"), "{error}");
    }
}
