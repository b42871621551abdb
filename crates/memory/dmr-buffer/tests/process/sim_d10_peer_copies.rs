//! D10 on the simulator: a copy between devices makes no call too few and none too many, and no
//! failure leaves it unprotected.

#![allow(unsafe_code)] // captures are the driver's

use crate::context::Context;
use cudarc::driver::result;
use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_buffer::{BufferError, DeviceBuffer};
use dmr_core::{Access, BlockUse, ResourceError};
use dmr_sim::{CallCounts, Policy, ReportKind, Universe};
use dmr_streams::{DeviceContext, LaunchTokens, StreamLease};
use dmr_testkit::{Rig, for_each_driver_call_of_two};

const LEN: usize = 4096;
const WAIT: &str = "cuStreamWaitEvent";
const RECORD: &str = "cuEventRecord";

/// Contexts and streams of two devices. The copy names `a` and `b`.
struct Scene {
    here: Context,
    there: Context,
    a: StreamLease,
    a2: StreamLease,
    b: StreamLease,
    b2: StreamLease,
}

impl Scene {
    fn new(rigs: &[Rig; 2]) -> Self {
        let [a, a2] = [0, 1].map(|_| rigs[0].stream());
        let [b, b2] = [0, 1].map(|_| rigs[1].stream());
        let here = Context::tracked(&rigs[0]);
        let there = Context::tracked(&rigs[1]);
        Self { here, there, a, a2, b, b2 }
    }

    fn buffers(&self) -> [DeviceBuffer<u8>; 2] {
        let source = DeviceBuffer::zeroed(&self.here, &self.a, LEN).unwrap();
        let target = DeviceBuffer::zeroed(&self.there, &self.b, LEN).unwrap();
        [source, target]
    }

    fn assert_empty(self) {
        self.here.assert_empty();
        self.there.assert_empty();
    }
}

fn lazy() -> Universe {
    Universe::builder().policy(Policy::Lazy).build().unwrap()
}

/// Fails a call and the next one: a call on a stream is repeated if its context was not current.
fn fail_twice(universe: &Universe, call: &str, n: u64, code: i32) {
    universe.fail_nth(call, n, code);
    universe.fail_nth(call, n + 1, code);
}

/// Another stream writes the source, the copy, another stream overwrites the source, another one
/// reads the target. Returns the calls of that, and whether a race was found.
fn play(swallow: Option<(&str, u64)>) -> (CallCounts, bool) {
    let universe = lazy();
    let rigs = Rig::pair_in(&universe);
    let scene = Scene::new(&rigs);
    let [mut source, mut target] = scene.buffers();
    source.fill_bytes(1, &scene.a2).unwrap();
    for rig in &rigs {
        rig.device().synchronize().unwrap();
    }
    universe.reset_calls();
    if let Some((call, n)) = swallow {
        universe.swallow_nth(call, n);
    }
    source.fill_bytes(1, &scene.a2).unwrap();
    target.copy_from_peer(&source, &scene.a, &scene.b).unwrap();
    source.fill_bytes(2, &scene.a2).unwrap();
    let read = target.to_host(&scene.b2).unwrap();
    let calls = universe.calls();
    universe.clear_faults();
    let raced = universe.reports().iter().any(|report| report.kind.is_race());
    assert!(raced || read == [1; LEN]);
    (calls, raced)
}

#[test]
fn each_wait_of_a_copy_is_needed() {
    let (calls, raced) = play(None);
    assert!(!raced);
    // `a` for the producer, `b` for `a`, `a` for the copy, `a2` for `a`, `b2` for the copy.
    assert_eq!(calls.count(WAIT), 5);
    for n in 1..=calls.count(WAIT) {
        assert!(play(Some((WAIT, n))).1, "wait {n} is not needed");
    }
    // One for each of: the producer, `a` before the copy, the write of the target, `b` behind the
    // copy, the read of the source, the consumer, the last writer.
    assert_eq!(calls.count(RECORD), 7);
    let needed: Vec<u64> =
        (1..=calls.count(RECORD)).filter(|&n| play(Some((RECORD, n))).1).collect();
    assert_eq!(needed, [1, 2, 3, 4, 5]);
}

/// The call again, if it failed: at most two calls fail.
fn insist<T>(mut call: impl FnMut() -> Result<T, BufferError>) -> T {
    call().or_else(|_| call()).or_else(|_| call()).expect("the third time nothing fails")
}

/// Copies, uses both buffers on other streams and frees them, while a driver call fails. Nothing is
/// lost.
fn survive(rigs: &[Rig; 2], (scene, [mut source, mut target]): (Scene, [DeviceBuffer<u8>; 2])) {
    let universe = rigs[0].universe();
    insist(|| source.fill_bytes(1, &scene.a2));
    insist(|| target.copy_from_peer(&source, &scene.a, &scene.b));
    // No window is open, and the copy is waited for.
    insist(|| source.fill_bytes(2, &scene.a2));
    assert_eq!(insist(|| target.to_host(&scene.b2)), [1; LEN]);
    drop((source, target));
    let failures = dmr_buffer::failures::take_drop_failures();
    failures.into_iter().for_each(|failure| failure.retry().unwrap());
    for resource in [scene.here.resource(), scene.there.resource()] {
        resource.reap_pending().or_else(|_| resource.reap_pending()).unwrap();
    }
    universe.clear_faults();
    scene.assert_empty();
    let verdict = universe.finish();
    // The rigs are alive.
    assert!(verdict.reports.iter().all(|it| it.kind == ReportKind::Leak), "{verdict}");
}

fn scene_with_buffers(rigs: &[Rig; 2]) -> (Scene, [DeviceBuffer<u8>; 2]) {
    let scene = Scene::new(rigs);
    let buffers = scene.buffers();
    (scene, buffers)
}

#[test]
fn no_driver_call_that_fails_leaves_a_copy_unprotected_or_a_window_open() {
    let _alone = crate::ALONE.lock();
    let failed = for_each_driver_call_of_two(999, scene_with_buffers, survive);
    assert!(failed >= 40, "{failed} calls were failed");
}

#[test]
fn no_step_of_a_copy_that_fails_twice_leaves_it_unprotected_or_a_window_open() {
    let _alone = crate::ALONE.lock();
    let calls = play(None).0;
    let steps = [WAIT, RECORD, "cuMemcpyPeerAsync", "cuEventCreate"];
    for (call, n) in
        steps.into_iter().flat_map(|call| (1..=calls.count(call)).map(move |n| (call, n)))
    {
        let rigs = Rig::pair_in(&lazy());
        let prepared = scene_with_buffers(&rigs);
        fail_twice(rigs[0].universe(), call, n, 999);
        survive(&rigs, prepared);
    }
}

/// A freed source is not allocated again while the copy may read it.
#[test]
fn a_copy_that_neither_an_event_nor_the_host_can_wait_for_keeps_its_source() {
    let universe = lazy();
    let rigs = Rig::pair_in(&universe);
    let scene = Scene::new(&rigs);
    let [mut source, mut target] = scene.buffers();
    source.fill_bytes(1, &scene.a).unwrap();
    // The first wait is that of `b`, the second that of `a`.
    fail_twice(&universe, WAIT, 2, 999);
    fail_twice(&universe, "cuStreamSynchronize", 1, 999);
    let refused = target.copy_from_peer(&source, &scene.a, &scene.b).unwrap_err();
    assert!(refused.to_string().contains("cuStreamWaitEvent"), "{refused}");
    // Another stream is refused.
    let refused = source.fill_bytes(2, &scene.a2).unwrap_err();
    let is_conflict =
        matches!(refused, BufferError::Resource(ResourceError::WindowConflict { .. }));
    assert!(is_conflict, "{refused}");
    drop(source);
    scene.here.resource().reap_pending().unwrap();
    assert_eq!(scene.here.resource().usage().retired, LEN as u64, "it is never freed");
    assert_eq!(target.to_host(&scene.b2).unwrap(), [1; LEN]);
    assert!(universe.reports().is_empty(), "{:?}", universe.reports());
}

#[test]
fn a_copy_whose_event_fails_waits_for_the_worker_instead() {
    let universe = lazy();
    let rigs = Rig::pair_in(&universe);
    let scene = Scene::new(&rigs);
    let [mut source, mut target] = scene.buffers();
    source.fill_bytes(1, &scene.a).unwrap();
    fail_twice(&universe, WAIT, 2, 999);
    target.copy_from_peer(&source, &scene.a, &scene.b).unwrap();
    source.fill_bytes(2, &scene.a2).unwrap();
    assert_eq!(target.to_host(&scene.b2).unwrap(), [1; LEN]);
    drop((source, target));
    scene.assert_empty();
    Rig::assert_all_clean(rigs);
}

#[test]
fn a_capturing_stream_of_either_device_is_refused_and_its_capture_goes_on() {
    let rigs = Rig::simulated_pair();
    let scene = Scene::new(&rigs);
    let [source, mut target] = scene.buffers();
    for capturing in [&scene.a, &scene.b] {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let handle = capturing.stream().cu_stream();
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(handle, mode) }.unwrap();
        let refused = target.copy_from_peer(&source, &scene.a, &scene.b).unwrap_err();
        let BufferError::Resource(ResourceError::StreamCapturing { stream, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(stream, capturing.id());
        // SAFETY: as above.
        unsafe { result::stream::end_capture(handle) }.expect("the capture is valid");
    }
    target.copy_from_peer(&source, &scene.a, &scene.b).unwrap();
    drop((source, target));
    scene.assert_empty();
    Rig::assert_all_clean(rigs);
}

#[test]
fn when_one_device_is_lost_only_that_one_is_and_the_other_goes_on() {
    const ILLEGAL_ADDRESS: i32 = 700;
    for lost in 0..2 {
        let rigs = Rig::simulated_pair();
        let universe = rigs[0].universe();
        let scene = Scene::new(&rigs);
        let [source, mut target] = scene.buffers();
        target.copy_from_peer(&source, &scene.a, &scene.b).unwrap();
        universe.lose_device(lost, ILLEGAL_ADDRESS);
        let refused = target.copy_from_peer(&source, &scene.a, &scene.b).unwrap_err();
        let BufferError::Resource(ResourceError::DeviceLost { device_ordinal, .. }) = refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!(device_ordinal, rigs[lost].ordinal());
        assert_eq!([0, 1].map(|rig: usize| rigs[rig].device().is_lost()), [lost == 0, lost == 1]);
        // No window is left on the other device.
        match lost {
            0 => target.fill_bytes(1, &scene.b2).unwrap(),
            _ => source.to_host(&scene.a2).map(drop).unwrap(),
        }
        drop((source, target));
        scene.assert_empty();
    }
}

#[test]
fn a_device_that_is_lost_under_a_copy_ends_the_copy_and_closes_its_windows() {
    let universe = lazy();
    let rigs = Rig::pair_in(&universe);
    let scene = Scene::new(&rigs);
    let [source, mut target] = scene.buffers();
    // The device of the target is lost when the source's stream is to wait for the copy.
    universe.fail_nth(RECORD, 3, 700);
    let refused = target.copy_from_peer(&source, &scene.a, &scene.b).unwrap_err();
    assert!(
        matches!(refused, BufferError::Resource(ResourceError::DeviceLost { .. })),
        "{refused}"
    );
    assert!(!rigs[0].device().is_lost() && rigs[1].device().is_lost());
    assert!(source.to_host(&scene.a2).is_ok(), "no window is left");
    drop((source, target));
    scene.assert_empty();
    // The simulated device has not ended its work, as a lost one has.
    let kinds: Vec<_> = universe.reports().iter().map(|report| report.kind).collect();
    assert_eq!(kinds, [ReportKind::FreeBeforeUse]);
}

/// Windows on the memory of a peer, as a launch opens them: all or none.
#[test]
fn a_window_that_the_worker_cannot_wait_for_is_closed_again() {
    let rigs = Rig::simulated_pair();
    let scene = Scene::new(&rigs);
    let [source, target] = scene.buffers();
    let [home, worker] = [(&rigs[0], &scene.a), (&rigs[1], &scene.b)]
        .map(|(rig, lease)| rig.streams().enter(lease.id()).unwrap());
    let uses = [BlockUse::new(source.block().unwrap().id(), Access::Read)];
    let mut tokens = LaunchTokens::new(home.id());
    fail_twice(rigs[0].universe(), WAIT, 1, 999);
    tokens.prepare_for(&worker, &home, scene.here.resource(), &uses).unwrap_err();
    assert!(tokens.is_empty());
    tokens.prepare_for(&worker, &home, scene.here.resource(), &uses).unwrap();
    assert_eq!(tokens.len(), 1);
    tokens.finish_for(&worker, &home, scene.here.resource()).unwrap();
    assert!(tokens.is_empty());
    drop((home, worker, source, target));
    scene.assert_empty();
    Rig::assert_all_clean(rigs);
}
