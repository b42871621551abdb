//! Binding a device's context is one call where it is current, on any mix of threads and devices;
//! and a call whose stream says which context it means binds it only if that was missing.

#![allow(unsafe_code, reason = "calls the driver")]

use cudarc::driver::result;
use dmr_core::StreamId;
use dmr_streams::Device;
use dmr_testkit::Rig;

#[test]
fn binding_a_context_that_is_current_queries_it_and_does_no_more() {
    let rig = Rig::simulated();
    rig.device().bind().unwrap();
    rig.universe().reset_calls();
    rig.device().bind().unwrap();
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuCtxGetCurrent"), calls.total()), (1, 1));
}

#[test]
fn two_devices_alternate_on_one_thread() {
    let rig = Rig::simulated();
    let other = Device::open(rig.universe().ordinal(1)).unwrap();
    for _ in 0..3 {
        rig.device().bind().unwrap();
        other.bind().unwrap();
        assert!(!other.same_context(rig.device()));
    }
}

const INVALID_CONTEXT: i32 = 201;

/// Calls of these functions that `StreamGuard::call` makes on a thread that has no context, or has
/// it.
fn calls_on(rig: &Rig, stream: StreamId, is_bound: bool, fails: bool) -> (bool, [u64; 3]) {
    let name = "cuStreamSynchronize";
    std::thread::scope(|scope| {
        let called = scope.spawn(|| {
            if is_bound {
                rig.device().bind().unwrap();
            }
            rig.universe().reset_calls();
            if fails {
                rig.universe().fail_nth(name, 1, INVALID_CONTEXT);
            }
            // SAFETY: alive while there is a guard.
            let call = |stream| unsafe { result::stream::synchronize(stream) };
            let result = rig.streams().enter(stream).unwrap().call(call);
            let calls = rig.universe().calls();
            (result.is_ok(), [name, "cuCtxGetCurrent", "cuCtxSetCurrent"].map(|c| calls.count(c)))
        });
        called.join().unwrap()
    })
}

#[test]
fn a_call_on_a_stream_binds_the_context_only_where_that_was_missing() {
    let rig = Rig::simulated();
    let lease = rig.stream();
    let stream = lease.id();
    assert_eq!(calls_on(&rig, stream, true, false), (true, [1, 0, 0]));
    assert_eq!(calls_on(&rig, stream, false, false), (true, [1, 0, 0]));
    // It failed for want of the context: it is made again. (That there is none, the driver says
    // without a device.)
    assert_eq!(calls_on(&rig, stream, false, true), (true, [2, 0, 1]));
    // It failed for another reason.
    assert_eq!(calls_on(&rig, stream, true, true), (false, [1, 1, 0]));
}

#[test]
fn a_call_on_the_legacy_stream_binds_the_context_first() {
    let rig = Rig::simulated();
    let legacy = rig.streams().adopt_legacy().unwrap();
    assert_eq!(calls_on(&rig, legacy.id(), false, false), (true, [1, 0, 1]));
    assert_eq!(calls_on(&rig, legacy.id(), true, false), (true, [1, 1, 0]));
}

#[test]
fn a_lost_device_whose_context_is_current_is_not_the_error_of_another() {
    let rig = Rig::simulated();
    let other = Device::open(rig.universe().ordinal(1)).unwrap();
    rig.device().bind().unwrap();
    rig.universe().lose_device(0, 700);
    other.bind().unwrap();
    rig.device().bind().unwrap_err();
    assert!(rig.device().is_lost() && !other.is_lost());
}
