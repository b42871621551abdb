//! G1: a capture ends with its closure, however that ends, and calls of the library do not end it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use dmr_core::{AllocTag, ResourceError};
use dmr_graphs::{CaptureError, CaptureMode, Graph};
use dmr_launch::LaunchRecorder;
use dmr_testkit::Rig;

use crate::scene::{BYTES, Scene, capture, copy, fill};

fn failing() -> DriverError {
    DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[test]
fn work_that_fails_or_panics_leaves_no_capture() {
    let mut scene = Scene::new(Rig::new);
    let failed = capture(&scene.ctx, &scene.b, |capture| {
        capture.read(&scene.x);
        copy(capture.stream(), &scene.x, &mut scene.y)?;
        Err(failing())
    });
    assert!(matches!(failed, Err(CaptureError::Work(error)) if error == failing()));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        capture::<DriverError>(&scene.ctx, &scene.b, |capture| {
            fill(capture.stream(), &mut scene.y, 1)?;
            capture.fork(&scene.a).unwrap();
            panic!("of the work");
        })
    }));
    assert!(panicked.is_err());
    // Both streams can be used again.
    let graph = scene.copy();
    scene.fill(7);
    graph.launch(&scene.b).unwrap();
    scene.check(7);
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_call_of_the_library_is_refused_and_the_capture_stays_valid() {
    let mut scene = Scene::new(Rig::new);
    let Scene { ctx, a, b, x, y, .. } = &mut scene;
    let graph = capture(ctx, b, |capture| {
        capture.read(x);
        capture.write(y);
        copy(capture.stream(), x, y)?;
        let capturing =
            |error: &ResourceError| matches!(error, ResourceError::StreamCapturing { .. });
        let allocated = ctx.resource.allocate(BYTES, b.id(), AllocTag::UNTAGGED);
        assert!(allocated.is_err_and(|error| capturing(&error)));
        let launched = LaunchRecorder::new_strict(&*b).launch(ctx, |_| Ok::<_, ()>(()));
        assert!(launched.is_ok(), "a launch without uses asks for nothing");
        let mut recorder = LaunchRecorder::new_strict(&*b);
        recorder.read(x);
        assert!(recorder.launch(ctx, |_| Ok::<_, ()>(())).is_err());
        // SAFETY: nothing is captured.
        let nested =
            unsafe { Graph::capture(ctx, &*b, CaptureMode::default(), |_| Ok::<_, ()>(())) };
        assert!(matches!(nested, Err(CaptureError::Begin(error)) if capturing(&error)));
        // On other streams everything works.
        let other = ctx.block(a);
        ctx.resource.deallocate(other).unwrap();
        ctx.resource.reap_pending().unwrap();
        Ok::<_, DriverError>(())
    });
    let graph = graph.unwrap();
    scene.fill(3);
    graph.launch(&scene.a).unwrap();
    scene.check(3);
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_graph_is_not_launched_into_a_capture() {
    let mut scene = Scene::new(Rig::new);
    let empty = capture(&scene.ctx, &scene.b, |_| Ok::<_, DriverError>(())).unwrap();
    let copies = scene.copy();
    let outer = capture(&scene.ctx, &scene.b, |_| {
        for graph in [&empty, &copies] {
            let error = graph.launch(&scene.b).unwrap_err().to_string();
            assert!(error.contains("captur"), "{error}");
        }
        Ok::<_, DriverError>(())
    });
    outer.unwrap().launch(&scene.b).unwrap();
    drop((empty, copies));
    scene.assert_clean();
}

#[test]
fn a_capture_that_the_closure_has_ended_is_an_error() {
    let scene = Scene::new(Rig::new);
    let ended = capture(&scene.ctx, &scene.b, |capture| {
        // SAFETY: the stream is alive.
        let graph =
            unsafe { cudarc::driver::result::stream::end_capture(capture.stream().cu_stream()) }?;
        // SAFETY: the graph is alive.
        unsafe { cudarc::driver::result::graph::destroy(graph) }
    });
    assert!(matches!(ended, Err(CaptureError::End(_))), "{ended:?}");
    let graph = capture(&scene.ctx, &scene.b, |_| Ok::<_, DriverError>(())).unwrap();
    graph.launch(&scene.b).unwrap();
    drop(graph);
    scene.assert_clean();
}

#[test]
fn a_fork_is_joined_by_the_call_or_at_the_end() {
    let mut scene = Scene::new(Rig::new);
    let third = scene.rig.stream();
    let Scene { ctx, a, b, x, y, .. } = &mut scene;
    let mut z = ctx.block(a);
    let graph = capture(ctx, b, |capture| {
        for block in [&mut *x, &mut *y, &mut z] {
            capture.write(block);
        }
        fill(capture.stream(), x, 5)?;
        let one = capture.fork(&*a).unwrap();
        copy(one.stream(), x, y)?;
        let two = capture.fork(&third).unwrap();
        copy(two.stream(), x, &mut z)?;
        capture.join(one).unwrap();
        // After the copy to it. The other fork is joined at the end.
        fill(capture.stream(), y, 6)
    });
    let graph = graph.unwrap();
    assert_eq!(graph.recorded_count(), 3);
    graph.launch(&scene.b).unwrap();
    graph.launch(&scene.a).unwrap();
    scene.check(0x0606_0606);
    scene.ctx.resource.deallocate(z).unwrap();
    drop((graph, third));
    scene.assert_clean();
}
