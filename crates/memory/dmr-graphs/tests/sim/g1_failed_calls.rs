//! G1, G2, G4: whichever driver call fails, no capture is left and no memory, and the next graph
//! works.

use std::sync::Arc;

use cudarc::driver::DriverError;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_launch::LaunchRecorder;
use dmr_testkit::{Rig, for_each_driver_call};

use crate::scene::{BYTES, Context, Scene, capture, copy, copy_bytes, fill, fill_bytes};

const UNKNOWN: i32 = 999;

#[test]
fn a_call_that_fails_in_a_capture_or_a_launch_leaves_everything_usable() {
    let calls = for_each_driver_call(
        UNKNOWN,
        |rig| {
            let ctx = Context::new(rig);
            let [a, b] = [rig.stream(), rig.stream()];
            let mut x = ctx.block(&a);
            let mut launch = LaunchRecorder::new_strict(&a);
            launch.write(&mut x);
            launch.launch(&ctx, |on| fill(on, &mut x, 1)).unwrap();
            let y = ctx.block(&a);
            (ctx, a, b, [x, y])
        },
        |rig, (ctx, a, b, [x, mut y])| {
            for _ in 0..2 {
                let graph = capture(&ctx, &b, |capture| {
                    capture.read(&x);
                    capture.write(&mut y);
                    let fork = capture.fork(&a).map_err(|error| error.to_string())?;
                    let between = capture.allocate_on(&fork, BYTES);
                    let between = between.map_err(|error| error.to_string())?;
                    copy_bytes(fork.stream(), x.ptr(), between.device_ptr())
                        .and_then(|()| copy_bytes(fork.stream(), between.device_ptr(), y.ptr()))
                        .map_err(|error: DriverError| error.to_string())
                });
                if let Ok(graph) = graph {
                    let _ = graph.launch(&b);
                    let _ = graph.launch(&a);
                }
            }
            rig.universe().clear_faults();
            let last = capture(&ctx, &b, |capture| {
                capture.read(&x);
                capture.write(&mut y);
                copy(capture.stream(), &x, &mut y)
            });
            last.unwrap().launch(&a).unwrap();
            for block in [x, y] {
                ctx.resource.deallocate(block).unwrap();
            }
            ctx.resource.reap_pending().unwrap();
            assert_eq!(ctx.resource.bytes_outstanding(), 0);
            rig.verdict().unwrap();
        },
    );
    assert!(calls > 20, "{calls} calls");
}

/// The free of a slab makes driver calls, and no later call could free it.
#[test]
fn a_call_that_fails_loses_no_memory_of_a_graph() {
    let calls = for_each_driver_call(
        UNKNOWN,
        |rig| {
            let streams = Arc::clone(rig.streams());
            let resource = AsyncCudaResource::new(Arc::clone(&streams), AsyncConfig::new());
            (Context { resource: Arc::new(resource.unwrap()), streams }, rig.stream())
        },
        |rig, (ctx, stream)| {
            let graph = capture(&ctx, &stream, |capture| {
                let memory = capture.allocate(BYTES).map_err(|error| error.to_string())?;
                fill_bytes(capture.stream(), memory.device_ptr(), 1)
                    .map_err(|error| error.to_string())
            });
            if let Ok(graph) = graph {
                let _ = graph.launch(&stream);
            }
            rig.universe().clear_faults();
            ctx.resource.reap_pending().unwrap();
            assert_eq!(ctx.resource.bytes_outstanding(), 0);
            rig.verdict().unwrap();
        },
    );
    assert!(calls > 20, "{calls} calls");
}

/// The stream is joined: nothing was captured on it since.
#[test]
fn a_stream_whose_second_fork_has_failed_can_be_forked_to_again() {
    for call in ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"] {
        let scene = Scene::new(Rig::simulated);
        let graph = capture(&scene.ctx, &scene.b, |capture| {
            let fork = capture.fork(&scene.a)?;
            capture.join(fork)?;
            scene.rig.universe().fail_nth(call, 1, UNKNOWN);
            assert!(capture.fork(&scene.a).is_err(), "{call}");
            let fork = capture.fork(&scene.a)?;
            capture.join(fork)
        });
        assert!(graph.is_ok(), "{call}: {graph:?}");
        drop(graph);
        scene.assert_clean();
    }
}
