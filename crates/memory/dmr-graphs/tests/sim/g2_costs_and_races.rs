//! G2: what a replay costs in driver calls, and that its waits are needed.

use cudarc::driver::result;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr_launch::LaunchRecorder;
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;

use crate::scene::{Scene, capture, copy, fill};

fn lazy() -> Scene {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    Scene::new(|| Rig::in_universe(&universe))
}

#[test]
fn a_replay_is_one_launch_and_one_event_whatever_the_number_of_nodes_and_blocks() {
    let scene = lazy();
    let mut blocks: Vec<_> = (0..8).map(|_| scene.ctx.block(&scene.a)).collect();
    for block in &mut blocks {
        let mut launch = LaunchRecorder::new_strict(&scene.a);
        launch.write(block);
        launch.launch(&scene.ctx, |on| fill(on, block, 1)).unwrap();
    }
    let graph = capture(&scene.ctx, &scene.b, |capture| {
        for block in &mut blocks {
            capture.write(block);
            for _ in 0..16 {
                fill(capture.stream(), block, 2)?;
            }
        }
        Ok::<_, cudarc::driver::DriverError>(())
    });
    let graph = graph.unwrap();
    let calls = scene.rig.universe().calls();
    graph.launch(&scene.b).unwrap();
    let now = scene.rig.universe().calls();
    let made = |name: &str| now.count(name) - calls.count(name);
    assert_eq!(made("cuGraphLaunch"), 1);
    assert_eq!(made("cuStreamWaitEvent"), 1, "all blocks were written on one stream");
    assert!(made("cuEventRecord") <= 2, "one for its own end, one of the other stream at most");
    for block in blocks {
        scene.ctx.resource.deallocate(block).unwrap();
    }
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_replay_is_in_order_when_all_work_is_as_late_as_it_may_be() {
    let mut scene = lazy();
    let graph = scene.copy();
    for pattern in 1..=3 {
        scene.fill(pattern);
        graph.launch(&scene.b).unwrap();
        scene.check(pattern);
    }
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_replay_without_its_waits_is_a_race() {
    let mut scene = lazy();
    let stream = scene.b.stream().clone();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    copy(&stream, &scene.x, &mut scene.y).unwrap();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    scene.fill(1);
    // SAFETY: the graph is alive. Nothing orders it: that is the fault.
    unsafe { result::graph::launch(graph.cu_graph_exec(), stream.cu_stream()) }.unwrap();
    scene.rig.device().synchronize().unwrap();
    let verdict = scene.rig.verdict().unwrap_err();
    assert!(verdict.contains("read-after-write race"), "{verdict}");
}

#[test]
fn an_access_that_was_not_recorded_is_a_finding_of_the_launch() {
    let mut scene = lazy();
    let graph = capture(&scene.ctx, &scene.b, |capture| {
        capture.write(&mut scene.y);
        copy(capture.stream(), &scene.x, &mut scene.y)
    });
    graph.unwrap().launch(&scene.b).unwrap();
    scene.rig.device().synchronize().unwrap();
    let verdict = scene.rig.verdict().unwrap_err();
    assert!(verdict.contains("graph"), "{verdict}");
}
