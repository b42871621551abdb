//! G2: what a graph keeps outlives its last replay, also where no event can be recorded behind it.

use std::sync::Arc;

use cudarc::driver::DriverError;
use dmr_graphs::{CaptureMode, Graph};
use dmr_testkit::{HeldStream, Rig};

use crate::scene::{Scene, capture, fill};

const UNKNOWN: i32 = 999;

/// Captures a fill of `y`, keeps a value, and launches once: the next launch on `b` records events
/// for the replay only.
fn keeping(scene: &mut Scene, value: &Arc<()>) -> Graph {
    let Scene { ctx, b, y, .. } = scene;
    let graph = capture(ctx, b, |capture| {
        capture.keep(Arc::clone(value));
        capture.write(y);
        fill(capture.stream(), y, 1)
    });
    let graph = graph.unwrap();
    graph.launch(&*b).unwrap();
    graph
}

#[test]
fn a_value_is_leaked_if_a_replay_can_neither_be_recorded_nor_waited_for() {
    let mut scene = Scene::new(Rig::simulated);
    let value = Arc::new(());
    let graph = keeping(&mut scene, &value);
    let held = HeldStream::hold(scene.rig.streams(), &scene.b);
    let universe = scene.rig.universe();
    universe.fail_nth("cuEventRecord", 1, UNKNOWN);
    universe.fail_nth("cuStreamSynchronize", 1, UNKNOWN);
    graph.launch(&scene.b).unwrap();
    universe.clear_faults();
    drop(graph);
    assert_eq!(Arc::strong_count(&value), 2, "the replay has not run");
    drop(held);
    scene.check(0x0101_0101);
    scene.assert_clean();
}

#[test]
fn a_replay_that_cannot_be_recorded_ends_no_capture_of_another_stream() {
    let mut scene = Scene::new(Rig::simulated);
    let value = Arc::new(());
    let graph = keeping(&mut scene, &value);
    let Scene { ctx, a, b, rig, .. } = &scene;
    let work = |_: &mut dmr_graphs::Capture<'_>| {
        rig.universe().fail_nth("cuEventRecord", 1, UNKNOWN);
        graph.launch(b).unwrap();
        Ok::<_, DriverError>(())
    };
    // SAFETY: nothing is captured.
    let other = unsafe { Graph::capture(ctx, a, CaptureMode::Global, work) };
    assert!(other.is_ok(), "{other:?}");
    drop((other, graph));
    assert_eq!(Arc::strong_count(&value), 1);
    scene.assert_clean();
}
