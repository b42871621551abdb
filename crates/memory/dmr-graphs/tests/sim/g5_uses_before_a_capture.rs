//! G5: what was submitted to a stream before it captures can be waited for meanwhile.

use std::thread;

use cudarc::driver::DriverError;
use dmr_launch::LaunchRecorder;
use dmr_testkit::Rig;

use crate::scene::{Context, Scene, alone, capture, fill};

/// A thread is about to record an event on a stream that then begins to capture: it takes the event
/// that the capture has recorded.
#[test]
fn a_use_that_needs_an_event_of_the_stream_is_made_although_the_capture_begins_first() {
    let scene = Scene::new(Rig::simulated);
    let mut of_b = scene.ctx.block(&scene.b);
    let _lent = scene.b.stream().clone();
    let launched = thread::scope(|scope| {
        let hold = scene.rig.universe().hold_nth("cuEventRecord", 1);
        let mut launch = LaunchRecorder::new_strict(&scene.a);
        launch.write(&mut of_b);
        let ctx = &scene.ctx;
        let of_b = &mut of_b;
        let launches = scope.spawn(move || {
            ctx.streams.device().bind().unwrap();
            launch.launch(ctx, |on| fill(on, of_b, 1))
        });
        hold.wait_until_held();
        let mut launched = None;
        let mut launches = Some(launches);
        let held = |_: &mut dmr_graphs::Capture<'_>| {
            hold.release();
            launched = launches.take().map(|launches| launches.join().unwrap());
            Ok::<_, DriverError>(())
        };
        capture(ctx, &scene.b, held).unwrap();
        launched.unwrap()
    });
    launched.unwrap();
    scene.ctx.resource.deallocate(of_b).unwrap();
    scene.assert_clean();
}

/// A thread is about to record the first event, on the only stream, which then begins to capture.
#[test]
fn the_second_stream_is_made_although_the_first_one_begins_to_capture() {
    let _alone = alone();
    let rig = Rig::simulated();
    let ctx = Context::new(&rig);
    let first = rig.stream();
    let mut block = ctx.block(&first);
    let mut launch = LaunchRecorder::new_strict(&first);
    launch.write(&mut block);
    launch.launch(&ctx, |on| fill(on, &mut block, 1)).unwrap();
    let _lent = first.stream().clone();
    let second = thread::scope(|scope| {
        let hold = rig.universe().hold_nth("cuEventRecord", 1);
        let mut acquires = Some(scope.spawn(|| ctx.streams.acquire()));
        hold.wait_until_held();
        let mut acquired = None;
        let held = |_: &mut dmr_graphs::Capture<'_>| {
            hold.release();
            acquired = acquires.take().map(|acquires| acquires.join().unwrap());
            Ok::<_, DriverError>(())
        };
        capture(&ctx, &first, held).unwrap();
        acquired.unwrap().unwrap()
    });
    let mut launch = LaunchRecorder::new_strict(&second);
    launch.write(&mut block);
    launch.launch(&ctx, |on| fill(on, &mut block, 2)).unwrap();
    ctx.resource.deallocate(block).unwrap();
    ctx.resource.reap_pending().unwrap();
    drop((ctx, first, second));
    rig.assert_clean();
}
