//! D10 on the simulator: a launch on memory of another device opens all windows or none, and closes
//! them all.

#![cfg(all(feature = "async", feature = "direct", feature = "pool", feature = "nvrtc"))]
#![allow(unsafe_code, reason = "kernel launches")]

use crate::peers::{CopyWords, runtime};
use dmr::cudarc::driver::DriverError;
use dmr::dmr_launch::{LaunchError, PrepareError};
use dmr::prelude::*;
use dmr_sim::{Policy, ReportKind, Universe};
use dmr_testkit::{Rig, for_each_driver_call_of_two};

const WORDS: u32 = 1024;
const LEN: usize = WORDS as usize;
const WAIT: &str = "cuStreamWaitEvent";

struct Scene {
    here: DeviceRuntime,
    there: DeviceRuntime,
    kernel: CopyWords,
    a: StreamLease,
    b: StreamLease,
    b2: StreamLease,
    mine: DeviceBuffer<u32>,
    theirs: DeviceBuffer<u32>,
}

impl Scene {
    fn new(rigs: &[Rig; 2]) -> Self {
        let [here, there] = [0, 1].map(|rig: usize| runtime(&rigs[rig], Backend::DirectTracked));
        here.enable_peer_access(&there).unwrap();
        let kernel = CopyWords::load(&rigs[0]);
        let a = rigs[0].stream();
        let b = rigs[1].stream();
        let b2 = rigs[1].stream();
        let mine = DeviceBuffer::zeroed(&here, &a, LEN).unwrap();
        let theirs = DeviceBuffer::zeroed(&there, &b2, LEN).unwrap();
        for rig in rigs {
            rig.device().synchronize().unwrap();
        }
        Self { here, there, kernel, a, b, b2, mine, theirs }
    }

    fn launch(&mut self) -> Result<(), LaunchError<DriverError>> {
        let mut launch = LaunchRecorder::new_strict(&self.a);
        let to = launch.write(&mut self.mine);
        let from = launch.read_peer(&self.theirs, &self.there, &self.b);
        launch.launch(&self.here, |_| {
            // SAFETY: both buffers have that many words, and the device has access.
            unsafe { self.kernel.try_launch(&self.a, to.device_ptr(), from.device_ptr(), WORDS) }
        })
    }

    fn assert_empty(self) {
        let Self { here, there, mine, theirs, .. } = self;
        drop((mine, theirs));
        for runtime in [here, there] {
            runtime.resource().reap_pending().unwrap();
            assert_eq!(runtime.resource().bytes_outstanding(), 0);
        }
    }
}

fn lazy() -> Universe {
    Universe::builder().policy(Policy::Lazy).build().unwrap()
}

/// The producer of the peer, the launch, and the peer's next writer. Returns the waits, and whether
/// a race was found.
fn play(swallow: Option<u64>) -> (u64, bool) {
    let universe = lazy();
    let rigs = Rig::pair_in(&universe);
    let mut scene = Scene::new(&rigs);
    universe.reset_calls();
    swallow.into_iter().for_each(|n| universe.swallow_nth(WAIT, n));
    scene.theirs.fill(1, &scene.b2).unwrap();
    scene.launch().unwrap();
    scene.theirs.fill(2, &scene.b2).unwrap();
    let waits = universe.calls().count(WAIT);
    universe.clear_faults();
    (waits, universe.reports().iter().any(|report| report.kind.is_race()))
}

#[test]
fn each_wait_of_a_launch_on_a_peers_memory_is_needed() {
    let (waits, raced) = play(None);
    // `b` for the producer, `a` for `b`, `b` for the launch, `b2` for `b`.
    assert_eq!((waits, raced), (4, false));
    for n in 1..=waits {
        assert!(play(Some(n)).1, "wait {n} is not needed");
    }
}

#[test]
fn no_driver_call_that_fails_leaves_a_launch_unprotected_or_a_window_open() {
    let failed = for_each_driver_call_of_two(999, Scene::new, |rigs, mut scene| {
        let universe = rigs[0].universe();
        let fill = |scene: &mut Scene, value| {
            let mut fill = || scene.theirs.fill(value, &scene.b2);
            fill().or_else(|_| fill()).unwrap();
        };
        fill(&mut scene, 1);
        scene.launch().or_else(|_| scene.launch()).unwrap();
        fill(&mut scene, 2);
        let read = scene.mine.to_host(&scene.a).or_else(|_| scene.mine.to_host(&scene.a)).unwrap();
        assert_eq!(read, [1; LEN]);
        universe.clear_faults();
        scene.assert_empty();
        let verdict = universe.finish();
        // The rigs are alive.
        assert!(verdict.reports.iter().all(|it| it.kind == ReportKind::Leak), "{verdict}");
    });
    assert!(failed >= 20, "{failed} calls were failed");
}

#[test]
fn a_launch_that_is_refused_or_cancelled_or_dropped_leaves_no_window_on_either_device() {
    let rigs = Rig::simulated_pair();
    let mut scene = Scene::new(&rigs);
    // The first wait that can fail is that of the launch for the stream of the peer.
    for n in [1, 2] {
        rigs[0].universe().fail_nth(WAIT, n, 999);
    }
    let refused = scene.launch().unwrap_err();
    assert!(matches!(refused, LaunchError::Prepare(PrepareError::Resource { .. })), "{refused}");
    rigs[0].universe().clear_faults();
    for cancels in [true, false] {
        scene.theirs.fill(1, &scene.b2).unwrap();
        scene.mine.fill(1, &rigs[0].stream()).unwrap();
        let mut launch = LaunchRecorder::new_strict(&scene.a);
        launch.write(&mut scene.mine);
        launch.read_write_peer(&mut scene.theirs, &scene.there, &scene.b);
        let prepared = launch.prepare(&scene.here).unwrap();
        scene.theirs.fill(1, &scene.b2).unwrap_err();
        scene.mine.fill(1, &rigs[0].stream()).unwrap_err();
        if cancels {
            prepared.cancel().unwrap();
        } else {
            let before = dmr::dmr_launch::unfinished_launches();
            drop(prepared);
            assert_eq!(dmr::dmr_launch::unfinished_launches(), before + 1);
        }
    }
    scene.theirs.fill(1, &scene.b2).unwrap();
    scene.assert_empty();
}

#[test]
fn a_launch_without_the_peers_call_is_refused_by_name() {
    let rigs = Rig::simulated_pair();
    let scene = Scene::new(&rigs);
    let mut launch = LaunchRecorder::new_strict(&scene.a);
    launch.read(&scene.theirs);
    let refused = launch.prepare(&scene.here).unwrap_err().to_string();
    let [first, second] = [0, 1].map(|rig: usize| rigs[rig].ordinal());
    let block = scene.theirs.block().unwrap().generation();
    assert_eq!(
        refused,
        format!(
            "launch on {} of device {first} refused: block {block} is memory of device {second}: copy it with \
             `copy_from_peer`, declare it with `read_peer` or `write_peer`, or launch on a stream of its own pool",
            scene.a.id()
        )
    );
    // The other way round: the memory is not of the owner that is named.
    let mut launch = LaunchRecorder::new_strict(&scene.a);
    launch.read_peer(&scene.mine, &scene.there, &scene.b);
    let refused = launch.prepare(&scene.here).unwrap_err().to_string();
    let expected = format!("of device {second} cannot use block");
    assert!(refused.contains(&expected), "{refused}");
    scene.assert_empty();
}

#[test]
fn memory_of_a_peer_without_tracking_is_refused_or_skipped() {
    let rigs = Rig::simulated_pair();
    let scene = Scene::new(&rigs);
    let bare = runtime(&rigs[1], Backend::Direct);
    let theirs = DeviceBuffer::<u8>::zeroed(&bare, &scene.b, 4).unwrap();
    let mut launch = LaunchRecorder::new_strict(&scene.a);
    launch.read_peer(&theirs, &bare, &scene.b);
    let refused = launch.prepare(&scene.here).unwrap_err();
    assert!(matches!(refused, PrepareError::Untracked { .. }), "{refused}");
    let mut launch = LaunchRecorder::new_permissive(&scene.a);
    launch.read_peer(&theirs, &bare, &scene.b);
    let prepared = launch.prepare(&scene.here).unwrap();
    assert_eq!((prepared.recorded_count(), prepared.skipped_count()), (0, 1));
    prepared.finish().unwrap();
    drop(theirs);
    scene.assert_empty();
}

#[test]
fn when_the_launchs_device_is_lost_the_windows_of_the_peer_are_closed() {
    let rigs = Rig::simulated_pair();
    let mut scene = Scene::new(&rigs);
    let mut launch = LaunchRecorder::new_strict(&scene.a);
    launch.read_peer(&scene.theirs, &scene.there, &scene.b);
    let prepared = launch.prepare(&scene.here).unwrap();
    rigs[0].universe().lose_device(0, 700);
    assert!(rigs[0].device().memory_info().is_err());
    let refused = prepared.finish().unwrap_err();
    assert!(matches!(refused, ResourceError::DeviceLost { .. }), "{refused}");
    assert!(!rigs[1].device().is_lost());
    scene.theirs.fill(1, &scene.b2).unwrap();
}
