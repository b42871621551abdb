//! On real streams: a launch waits for what it must, and is waited for, whatever becomes of it.

use std::fmt::Error;
use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::{LaunchError, LaunchRecorder};
use dmr_streams::{DeviceContext, StreamGuard, StreamLease, StreamPool, Tracked};
use dmr_testkit::Rig;

const BYTES: usize = 1 << 16;

struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// A rig with tracked memory, two streams and one block of the first.
struct Scene {
    rig: Rig,
    ctx: Context,
    a: StreamLease,
    b: StreamLease,
    block: DeviceBlock,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new();
        let streams = Arc::clone(rig.streams());
        let direct = DirectCudaResource::new(Arc::clone(&streams));
        let resource = Arc::new(Tracked::new(direct, Arc::clone(&streams)).unwrap());
        let a = rig.stream();
        let b = rig.stream();
        let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
        Self { ctx: Context { resource, streams }, rig, a, b, block }
    }

    /// Fills the block in a launch on this stream, slowly.
    fn fill(&mut self, stream: StreamId, pattern: u32) {
        let mut launch = LaunchRecorder::new_strict(stream);
        launch.write(&mut self.block);
        launch.launch(&self.ctx, |_| self.enqueue_fill(stream, pattern)).unwrap();
    }

    fn enqueue_fill(&self, stream: StreamId, pattern: u32) -> Result<(), Error> {
        self.rig.delay(stream);
        let filled = self.rig.ops().fill_pattern(&self.block, 0..BYTES, pattern, stream);
        filled.map_err(|_| Error)
    }

    /// Checks the block in a launch on this stream, slowly.
    fn check(&self, stream: StreamId, pattern: u32) {
        let mut launch = LaunchRecorder::new_strict(stream);
        launch.read(&self.block);
        let enqueue = |_: &StreamGuard<'_>| {
            self.rig.delay(stream);
            self.rig.ops().check_pattern(&self.block, 0..BYTES, pattern, stream, 0)
        };
        launch.launch(&self.ctx, enqueue).unwrap();
    }

    fn assert_clean(self) {
        let Self { rig, ctx, a, b, block } = self;
        ctx.resource.deallocate(block).unwrap();
        ctx.resource.reap_pending().unwrap();
        drop((ctx, a, b));
        rig.assert_clean();
    }
}

#[test]
fn reads_and_writes_of_two_streams_take_turns() {
    let mut scene = Scene::new();
    let a = scene.a.id();
    let b = scene.b.id();
    scene.fill(a, 1);
    scene.check(b, 1);
    scene.check(a, 1);
    scene.fill(b, 2);
    scene.fill(a, 3);
    scene.check(b, 3);
    scene.assert_clean();
}

#[test]
fn work_of_a_closure_that_failed_is_waited_for() {
    let mut scene = Scene::new();
    let a = scene.a.id();
    let b = scene.b.id();
    let mut launch = LaunchRecorder::new_strict(a);
    launch.write(&mut scene.block);
    let result = launch.launch(&scene.ctx, |_| {
        scene.enqueue_fill(a, 4)?;
        Err::<(), _>(Error)
    });
    assert!(matches!(result, Err(LaunchError::Enqueue { finish: None, .. })), "{result:?}");
    scene.check(b, 4);
    scene.assert_clean();
}

#[test]
fn work_of_a_launch_that_was_dropped_is_waited_for() {
    let mut scene = Scene::new();
    let a = scene.a.id();
    let b = scene.b.id();
    let mut launch = LaunchRecorder::new_strict(a);
    launch.write(&mut scene.block);
    let launch = launch.prepare(&scene.ctx).unwrap();
    scene.enqueue_fill(a, 5).unwrap();
    drop(launch);
    scene.check(b, 5);
    scene.assert_clean();
}

#[test]
fn a_block_deallocated_between_prepare_and_commit_is_freed_after_the_work() {
    let scene = Scene::new();
    let b = scene.b.id();
    let Scene { rig, ctx, block, .. } = &scene;
    rig.ops().fill_pattern(block, 0..BYTES, 6, scene.a.id()).unwrap();
    let other = ctx.resource.allocate(BYTES, b, AllocTag::UNTAGGED).unwrap();
    let mut launch = LaunchRecorder::new_strict(b);
    launch.read(&other);
    let launch = launch.prepare(ctx).unwrap();
    rig.delay(b);
    rig.ops().fill_pattern(&other, 0..BYTES, 7, b).unwrap();
    ctx.resource.deallocate(other).unwrap();
    assert_eq!(ctx.resource.usage().retired, BYTES as u64);
    launch.finish().unwrap();
    ctx.resource.reap_pending().unwrap();
    assert_eq!(ctx.resource.usage().retired, 0);
    scene.assert_clean();
}
