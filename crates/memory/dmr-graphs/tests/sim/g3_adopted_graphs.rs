//! G3: a graph of cudarc is destroyed with its owner, on whichever thread.

use std::thread;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr_graphs::Graph;
use dmr_launch::Footprint;
use dmr_testkit::Rig;

use crate::scene::{Scene, fill};

/// cudarc makes no context current to destroy a graph, and keeps the error for the next call of the
/// context.
#[test]
fn a_graph_of_cudarc_is_destroyed_on_a_thread_without_a_context() {
    let mut scene = Scene::new(Rig::simulated);
    let Scene { ctx, b, y, .. } = &mut scene;
    let stream = b.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    fill(stream, y, 1).unwrap();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    let mut footprint = Footprint::new();
    footprint.write(y);
    // SAFETY: the graph fills the declared block.
    let graph = unsafe { Graph::adopt(ctx, graph, footprint) };
    graph.launch(&*b).unwrap();
    thread::scope(|scope| scope.spawn(move || drop(graph)).join().unwrap());
    let calls = scene.rig.universe().calls();
    assert_eq!(calls.count("cuGraphExecDestroy"), 1);
    assert_eq!(calls.count("cuGraphDestroy"), 1);
    assert_eq!(scene.rig.device().context().check_err(), Ok(()));
    scene.check(0x0101_0101);
    scene.assert_clean();
}
