//! R8: a launch waits for the conflicting windows of other streams, up to its timeout.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::counting::{Context, LONG};
use dmr_core::{AllocTag, DeviceBlock, ResourceError};
use dmr_launch::{LaunchError, LaunchRecorder, PrepareError, PreparedLaunch};
use dmr_streams::{DeviceContext, StreamLease};
use dmr_testkit::Rig;

const BYTES: usize = 4096;
const SHORT: Duration = Duration::from_millis(30);

/// A rig with tracked memory, two streams and two blocks.
struct Scene {
    rig: Rig,
    ctx: Context,
    streams: [StreamLease; 2],
    blocks: [DeviceBlock; 2],
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new();
        let ctx = Context::new(&rig);
        let streams = [(); 2].map(|()| rig.stream());
        let allocate = || ctx.resource().allocate(BYTES, streams[0].id(), AllocTag::UNTAGGED);
        let blocks = [(); 2].map(|()| allocate().unwrap());
        Self { rig, ctx, streams, blocks }
    }

    /// A launch on a stream that writes a block.
    fn writes(&mut self, stream: usize, block: usize) -> LaunchRecorder {
        let mut launch = LaunchRecorder::new_strict(&self.streams[stream]);
        launch.write(&mut self.blocks[block]);
        launch
    }

    /// A window on a block.
    fn held(&mut self, stream: usize, block: usize) -> PreparedLaunch {
        self.writes(stream, block).prepare(&self.ctx).unwrap()
    }

    fn assert_clean(self) {
        let Self { rig, ctx, streams, blocks } = self;
        for block in blocks {
            ctx.resource().deallocate(block).unwrap();
        }
        ctx.resource().reap_pending().unwrap();
        drop((ctx, streams));
        rig.assert_clean();
    }
}

fn is_conflict(error: &PrepareError) -> bool {
    matches!(error, PrepareError::Resource { source: ResourceError::WindowConflict { .. }, .. })
}

#[test]
fn without_a_timeout_a_conflicting_launch_is_refused_at_once() {
    let mut scene = Scene::new();
    let held = scene.held(0, 0);
    let refused = scene.writes(1, 0).prepare(&scene.ctx).unwrap_err();
    assert!(is_conflict(&refused), "{refused}");
    held.finish().unwrap();
    scene.assert_clean();
}

#[test]
fn a_launch_with_a_timeout_goes_on_when_the_window_closes() {
    let mut scene = Scene::new();
    for scoped in [false, true] {
        let held = scene.held(0, 0);
        let launch = scene.writes(1, 0).with_timeout(LONG);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|threads| {
            let ctx = &scene.ctx;
            let waiting = threads.spawn(move || {
                if scoped {
                    launch.launch(ctx, |_| Ok::<_, std::fmt::Error>(())).unwrap();
                } else {
                    launch.prepare(ctx).unwrap().finish().unwrap();
                }
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(SHORT).is_err(), "it does not wait for the window");
            held.finish().unwrap();
            receiver.recv_timeout(LONG).unwrap();
            waiting.join().unwrap();
        });
    }
    scene.assert_clean();
}

#[test]
fn once_the_time_is_over_the_error_is_the_conflict_and_no_window_is_open() {
    let mut scene = Scene::new();
    let held = scene.held(0, 0);
    let mut launch = scene.writes(1, 1).with_timeout(SHORT);
    launch.write(&mut scene.blocks[0]);
    let begun = Instant::now();
    let refused = launch.launch(&scene.ctx, |_| Ok::<_, std::fmt::Error>(())).unwrap_err();
    assert!(begun.elapsed() >= SHORT);
    let LaunchError::Prepare(refused) = refused else { panic!("{refused}") };
    assert!(is_conflict(&refused), "{refused}");
    // The launch that was refused has no window on the other block.
    scene.held(0, 1).finish().unwrap();
    held.finish().unwrap();
    scene.assert_clean();
}

#[test]
fn launches_that_wait_for_each_others_blocks_all_go_on() {
    const LAUNCHES: usize = 200;
    let mut scene = Scene::new();
    let uses = [[0, 1], [1, 0]];
    let launches = uses.map(|order| {
        let recorders = (0..LAUNCHES).map(|_| {
            let stream = order[0];
            let mut launch = scene.writes(stream, order[0]).with_timeout(LONG);
            launch.write(&mut scene.blocks[order[1]]);
            launch
        });
        recorders.collect::<Vec<_>>()
    });
    std::thread::scope(|threads| {
        for own in launches {
            let ctx = &scene.ctx;
            threads.spawn(move || {
                for launch in own {
                    let held = launch.prepare(ctx).unwrap();
                    std::thread::yield_now();
                    held.finish().unwrap();
                }
            });
        }
    });
    scene.assert_clean();
}

/// The window of the second launch would be in the way of the others, although that launch does
/// nothing yet.
#[test]
fn a_launch_that_waits_refuses_no_launch_on_the_blocks_that_it_would_use() {
    let mut scene = Scene::new();
    let held = scene.held(0, 0);
    let mut launch = scene.writes(1, 1).with_timeout(LONG);
    launch.write(&mut scene.blocks[0]);
    let others: Vec<_> = (0..20_000).map(|_| scene.writes(0, 1)).collect();
    std::thread::scope(|threads| {
        let ctx = &scene.ctx;
        let waiting = threads.spawn(move || launch.prepare(ctx).unwrap().finish().unwrap());
        // That of the other launch, and the first try.
        ctx.wait_until_prepared(2);
        for other in others {
            other.prepare(ctx).unwrap().finish().unwrap();
        }
        held.finish().unwrap();
        waiting.join().unwrap();
    });
    scene.assert_clean();
}
