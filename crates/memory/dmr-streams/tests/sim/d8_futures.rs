//! D8, simulated: what a future does when a call fails, when the device is lost, and which events
//! it records.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_core::{ResourceError, StreamId};
use dmr_sim::{Policy, Universe};
use dmr_streams::{StreamPool, StreamPoolConfig};
use dmr_testkit::{CountedWakes, HeldStream, Rig, RigConfig, block_on};

const ILLEGAL_ADDRESS: i32 = 700;

fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_machine_that_works_as_late_as_it_may_works_for_a_future() {
    for policy in [Policy::Lazy, Policy::Random, Policy::Eager] {
        let rig = Rig::in_universe(&Universe::builder().policy(policy).build().unwrap());
        let stream = rig.stream();
        for _ in 0..10 {
            rig.delay(&stream);
            block_on(rig.streams().completed(&stream)).unwrap();
        }
        drop(stream);
        rig.assert_clean();
    }
}

#[test]
fn a_pool_of_one_stream_records_one_event_and_creates_no_second_stream() {
    let streams = StreamPoolConfig::new().with_max_streams(1);
    let rig = Rig::with(RigConfig { streams, simulated: true, ..RigConfig::default() });
    rig.universe().reset_calls();
    for _ in 0..10 {
        block_on(rig.streams().completed(StreamId::DEFAULT)).unwrap();
    }
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuEventRecord"), 10);
    assert_eq!(calls.count("cuEventCreate"), 1, "the event is recorded again");
    let creates = calls.iter().find(|(call, _)| call.contains("StreamCreate"));
    assert_eq!((creates, calls.count("cuStreamWaitEvent")), (None, 0));
    rig.assert_clean();
}

#[test]
fn on_a_stream_that_captures_it_is_an_error_and_the_capture_goes_on() {
    let rig = Rig::simulated();
    let [stream, other] = [rig.stream(), rig.stream()];
    let held = HeldStream::hold(rig.streams(), &other);
    let waiting = rig.streams().completed(&other);
    // In this mode a query of any thread would end the capture.
    stream.stream().begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    let outcome = block_on(rig.streams().completed(&stream));
    assert!(matches!(outcome, Err(ResourceError::StreamCapturing { .. })), "{outcome:?}");
    held.release();
    block_on(waiting).unwrap();
    let status = stream.stream().capture_status().unwrap();
    assert_eq!(status, cudarc::driver::sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    let flags = cudarc::driver::sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let _ = stream.stream().end_capture(flags);
    drop((held, stream, other));
    rig.assert_clean();
}

#[test]
fn a_lost_device_ends_every_wait() {
    let rig = Rig::simulated();
    let streams: Vec<_> = (0..4).map(|_| rig.stream()).collect();
    let held: Vec<_> =
        streams.iter().map(|stream| HeldStream::hold(rig.streams(), stream)).collect();
    let wakes = Arc::new(CountedWakes::default());
    let mut waits: Vec<_> = (0..100).map(|at| rig.streams().completed(&streams[at % 4])).collect();
    for wait in &mut waits {
        assert!(wakes.poll(wait).is_pending());
    }
    // Found by no call of the program.
    rig.universe().lose_device(0, ILLEGAL_ADDRESS);
    wait_until("not all are woken", || wakes.count() == 100);
    for mut wait in waits {
        let outcome = wakes.poll(&mut wait);
        let is_lost = matches!(outcome, Poll::Ready(Err(ResourceError::DeviceLost { .. })));
        assert!(is_lost, "{outcome:?}");
    }
    let outcome = block_on(rig.streams().completed(&streams[0]));
    assert!(matches!(outcome, Err(ResourceError::DeviceLost { .. })), "{outcome:?}");
    std::mem::forget(held);
}

#[test]
fn a_call_that_fails_is_the_error_of_one_future() {
    for call in ["cuStreamIsCapturing", "cuEventCreate", "cuEventRecord", "cuEventQuery"] {
        let rig = Rig::simulated();
        let stream = rig.stream();
        let _lent = stream.stream().clone();
        rig.universe().fail_nth(call, 1, 999);
        let outcome = block_on(rig.streams().completed(&stream));
        assert!(
            matches!(outcome, Err(ResourceError::Driver { code: 999, .. })),
            "{call}: {outcome:?}"
        );
        block_on(rig.streams().completed(&stream)).unwrap();
        drop(stream);
        rig.assert_clean();
    }
}

#[test]
fn it_ends_when_its_stream_was_retired_and_destroyed() {
    let rig = Rig::simulated();
    let foreign = rig.device().context().new_stream().unwrap();
    let adopted = rig.streams().adopt(Arc::clone(&foreign)).unwrap();
    rig.delay(&adopted);
    let completed = rig.streams().completed(&adopted);
    let id = adopted.id();
    rig.streams().retire_stream(&adopted).unwrap();
    drop((adopted, foreign));
    assert_eq!(block_on(completed), Ok(()));
    let outcome = block_on(rig.streams().completed(id));
    assert!(matches!(outcome, Err(ResourceError::StreamMisuse { .. })), "{outcome:?}");
    rig.assert_clean();
}

#[test]
fn futures_of_two_devices_do_not_wait_for_each_other() {
    let universe = Universe::builder().devices(2).build().unwrap();
    let pool = |device| {
        let device = dmr_streams::Device::open(universe.ordinal(device)).unwrap();
        StreamPool::new(device, StreamPoolConfig::new()).unwrap()
    };
    let [one, two] = [pool(0), pool(1)];
    let [a, b] = [one.acquire().unwrap(), two.acquire().unwrap()];
    let held = HeldStream::hold(&one, &a);
    let mut waiting = one.completed(&a);
    for _ in 0..10 {
        block_on(two.completed(&b)).unwrap();
    }
    let wakes = Arc::new(CountedWakes::default());
    assert!(wakes.poll(&mut waiting).is_pending());
    // What is lost with one device is not with the other.
    universe.lose_device(1, ILLEGAL_ADDRESS);
    assert!(matches!(block_on(two.completed(&b)), Err(ResourceError::DeviceLost { .. })));
    held.release();
    assert_eq!(block_on(waiting), Ok(()));
    drop((held, a));
}
