//! G3: a graph that is captured again uses the memory that was recorded then; a graph of cudarc is
//! ordered by the footprint that is declared for it.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use dmr_core::DeviceOps;
use dmr_graphs::{CaptureMode, Graph};
use dmr_launch::Footprint;
use dmr_testkit::Rig;

use crate::scene::{BYTES, Scene, copy, fill};

#[test]
fn an_updated_graph_uses_other_memory_from_then_on() {
    let mut scene = Scene::new(Rig::new);
    let mut graph = scene.copy();
    scene.fill(1);
    graph.launch(&scene.b).unwrap();
    // The same node with another source, then another graph.
    for (pattern, fills) in [(2, false), (0x0303_0303, true)] {
        let Scene { ctx, a, b, x, y, rig, .. } = &mut scene;
        let mut other = ctx.block(a);
        rig.ops().fill_pattern(&other, 0..BYTES, 2, a.id()).unwrap();
        let work = |capture: &mut dmr_graphs::Capture<'_>| {
            capture.read_write(&mut other);
            capture.write(y);
            if fills {
                fill(capture.stream(), &mut other, 3)?;
            }
            copy(capture.stream(), &other, y)
        };
        // SAFETY: the work uses what it records.
        unsafe { graph.update(&*b, CaptureMode::ThreadLocal, work) }.unwrap();
        ctx.resource.deallocate(std::mem::replace(x, ctx.block(a))).unwrap();
        graph.launch(&*b).unwrap();
        ctx.resource.deallocate(other).unwrap();
        scene.check(pattern);
        assert!(graph.launch(&scene.b).is_err(), "the block that it has read is gone");
    }
    drop(graph);
    scene.assert_clean();
}

#[test]
fn an_update_that_fails_leaves_the_graph_as_it_was() {
    let mut scene = Scene::new(Rig::new);
    let mut graph = scene.copy();
    let failed = |_: &mut dmr_graphs::Capture<'_>| Err("no work");
    // SAFETY: nothing is captured.
    let updated = unsafe { graph.update(&scene.b, CaptureMode::Relaxed, failed) };
    assert!(updated.is_err());
    scene.fill(6);
    graph.launch(&scene.b).unwrap();
    scene.check(6);
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_graph_of_cudarc_is_ordered_by_its_footprint() {
    let mut scene = Scene::new(Rig::new);
    let Scene { ctx, b, x, y, .. } = &mut scene;
    let stream = b.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    copy(stream, x, y).unwrap();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    let mut footprint = Footprint::new();
    footprint.read(&*x);
    footprint.write(y);
    // SAFETY: the graph copies between the declared blocks.
    let graph = unsafe { Graph::adopt(ctx, graph, footprint) };
    for pattern in 1..=3 {
        scene.fill(pattern);
        graph.launch(&scene.b).unwrap();
        scene.check(pattern);
    }
    drop(graph);
    scene.assert_clean();
}
