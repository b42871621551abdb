//! R9: inside a launch, cudarc's copies take views of its memory, on any stream.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceSlice, DriverError};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::{
    LaunchError, LaunchRecorder, LaunchView, PrepareError, Reads, ReadsAndWrites, Writes,
};
use dmr_streams::{DeviceContext, StreamGuard, StreamLease, StreamPool, Tracked};
use dmr_testkit::Rig;

const BYTES: usize = 1 << 12;

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

/// A rig with tracked memory, two streams, and two blocks whose home is the first.
struct Scene {
    rig: Rig,
    ctx: Context,
    home: StreamLease,
    away: StreamLease,
    x: DeviceBlock,
    y: DeviceBlock,
}

impl Scene {
    fn new() -> Self {
        let rig = Rig::new();
        let streams = Arc::clone(rig.streams());
        let direct = DirectCudaResource::new(Arc::clone(&streams));
        let resource = Arc::new(Tracked::new(direct, Arc::clone(&streams)).unwrap());
        let home = rig.stream();
        let away = rig.stream();
        let block = || resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
        let x = block();
        let y = block();
        Self { ctx: Context { resource, streams }, rig, home, away, x, y }
    }

    /// Fills `x` on the home stream, slowly, in a launch.
    fn produce(&mut self, pattern: u32) {
        let mut launch = LaunchRecorder::new_strict(&self.home);
        launch.write(&mut self.x);
        let enqueue = |_: &StreamGuard<'_>| {
            self.rig.delay(&self.home);
            self.rig.ops().fill_pattern(&self.x, 0..BYTES, pattern, self.home.id())
        };
        launch.launch(&self.ctx, enqueue).unwrap();
    }

    /// Checks that `y` has the pattern, in a launch on the home stream.
    fn check(&self, pattern: u32) {
        let mut launch = LaunchRecorder::new_strict(&self.home);
        launch.read(&self.y);
        let check = |_: &StreamGuard<'_>| {
            self.rig.ops().check_pattern(&self.y, 0..BYTES, pattern, self.home.id(), 0)
        };
        launch.launch(&self.ctx, check).unwrap();
    }

    fn assert_clean(self) {
        let Self { rig, ctx, home, away, x, y } = self;
        for block in [x, y] {
            ctx.resource.deallocate(block).unwrap();
        }
        ctx.resource.reap_pending().unwrap();
        drop((ctx, home, away));
        rig.assert_clean();
    }
}

#[test]
fn a_copy_of_cudarc_waits_for_the_producer_and_is_waited_for() {
    let mut scene = Scene::new();
    scene.produce(1);
    let launch = LaunchRecorder::new_strict(&scene.away);
    launch
        .launch_with(&scene.ctx, (Reads(&scene.x), Writes(&mut scene.y)), |stream, (x, mut y)| {
            scene.rig.delay(&scene.away);
            assert_eq!((DeviceSlice::len(&x), x.num_bytes(), x.stream()), (BYTES, BYTES, stream));
            stream.memcpy_dtod(&x, &mut y)
        })
        .unwrap();
    scene.produce(2);
    scene.check(1);
    scene.assert_clean();
}

#[test]
fn views_come_in_the_shape_of_what_was_declared() {
    let mut scene = Scene::new();
    scene.produce(0x0505_0505);
    let launch = LaunchRecorder::new_strict(&scene.away);
    let memory =
        ([Reads(&scene.x)], (vec![ReadsAndWrites(&mut scene.y)], None::<Reads<'_, DeviceBlock>>));
    launch
        .launch_with(&scene.ctx, memory, |stream, ([x], (mut ys, none))| {
            assert!(none.is_none());
            stream.memcpy_dtod(&x, &mut ys[0])?;
            stream.memset_zeros(&mut ys[0])?;
            stream.memcpy_dtod(&x, &mut ys[0])?;
            let host = stream.clone_dtoh(&ys[0].as_view())?;
            stream.synchronize()?;
            assert_eq!(host, [5; BYTES]);
            Ok::<_, DriverError>(())
        })
        .unwrap();
    scene.check(0x0505_0505);
    scene.assert_clean();
}

/// A stream of the program's own, which no pool has.
fn foreign(scene: &Scene) -> Arc<CudaStream> {
    scene.rig.device().context().new_stream().unwrap()
}

#[test]
fn a_use_on_another_stream_waits_for_the_launch_and_is_waited_for() {
    let mut scene = Scene::new();
    let others = [
        foreign(&scene),
        Arc::clone(scene.home.stream()),
        scene.rig.device().context().default_stream(),
    ];
    for (pattern, other) in (1..).zip(&others) {
        scene.produce(pattern);
        let launch = LaunchRecorder::new_strict(&scene.away);
        launch
            .launch_with(&scene.ctx, (Reads(&scene.x), Writes(&mut scene.y)), |_, (x, mut y)| {
                scene.rig.delay(&scene.away);
                other.memcpy_dtod(&x, &mut y)
            })
            .unwrap();
        scene.check(pattern);
    }
    drop(others);
    scene.assert_clean();
}

#[test]
fn work_after_a_use_on_another_stream_comes_after_it() {
    let mut scene = Scene::new();
    let first = foreign(&scene);
    let second = foreign(&scene);
    scene.produce(3);
    let launch = LaunchRecorder::new_strict(&scene.away);
    launch
        .launch_with(
            &scene.ctx,
            (ReadsAndWrites(&mut scene.x), Writes(&mut scene.y)),
            |stream, (mut x, mut y)| {
                first.memcpy_dtod(&x, &mut y)?;
                second.memset_zeros(&mut x)?;
                stream.memcpy_dtod(&y, &mut x)?;
                first.memset_zeros(&mut y)?;
                stream.memcpy_dtod(&x, &mut y)
            },
        )
        .unwrap();
    scene.check(3);
    drop((first, second));
    scene.assert_clean();
}

#[test]
fn a_stream_that_is_destroyed_inside_of_the_launch_is_waited_for() {
    let mut scene = Scene::new();
    scene.produce(4);
    let context = Arc::clone(scene.rig.device().context());
    let launch = LaunchRecorder::new_strict(&scene.away);
    launch
        .launch_with(&scene.ctx, (Reads(&scene.x), Writes(&mut scene.y)), |_, (x, mut y)| {
            context.new_stream()?.memcpy_dtod(&x, &mut y)
        })
        .unwrap();
    drop(context);
    scene.check(4);
    scene.assert_clean();
}

#[test]
fn a_closure_that_fails_or_panics_leaves_no_use_on_another_stream_unordered() {
    let mut scene = Scene::new();
    let other = foreign(&scene);
    for (pattern, panics) in [(5, false), (6, true)] {
        scene.produce(pattern);
        let launch = LaunchRecorder::new_strict(&scene.away);
        let memory = (Reads(&scene.x), Writes(&mut scene.y));
        let launched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            launch.launch_with(&scene.ctx, memory, |_, (x, mut y)| {
                other.memcpy_dtod(&x, &mut y).unwrap();
                assert!(!panics, "as the test asks for");
                Err::<(), _>("failed")
            })
        }));
        assert_eq!(launched.is_err(), panics);
        if let Ok(outcome) = launched {
            let error = outcome.unwrap_err();
            assert!(matches!(error, LaunchError::Enqueue { error: "failed", finish: None, .. }));
        }
        scene.check(pattern);
    }
    drop(other);
    scene.assert_clean();
}

#[test]
fn lent_slices_are_ordered_like_views() {
    let mut scene = Scene::new();
    let other = foreign(&scene);
    scene.produce(7);
    let launch = LaunchRecorder::new_strict(&scene.away);
    launch
        .launch_with(&scene.ctx, (Reads(&scene.x), Writes(&mut scene.y)), |stream, (x, mut y)| {
            scene.rig.delay(&scene.away);
            let copied = x.lend(|x| y.lend_mut(|mut y| other.memcpy_dtod(x, &mut y)));
            copied.unwrap().unwrap().unwrap();
            let copy = x.lend(Clone::clone).unwrap();
            stream.memcpy_dtod(&copy, &mut y)
        })
        .unwrap();
    scene.check(7);
    drop(other);
    scene.assert_clean();
}

#[test]
fn a_slice_is_lent_and_not_freed_when_its_user_panics() {
    let mut scene = Scene::new();
    scene.produce(8);
    let launch = LaunchRecorder::new_strict(&scene.away);
    let launched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let panics = |_: &_, x: LaunchView<'_, u8>| x.lend(|_| panic!("as the test asks for"));
        launch.launch_with(&scene.ctx, Reads(&scene.x), panics).is_ok()
    }));
    assert!(launched.is_err());
    scene.assert_clean();
}

#[test]
fn memory_that_cannot_be_tracked_is_refused_in_either_mode() {
    let rig = Rig::new();
    let streams = Arc::clone(rig.streams());
    let resource = Arc::new(DirectCudaResource::new(Arc::clone(&streams)));
    let ctx = Context { resource, streams };
    let home = rig.stream();
    let block = ctx.resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    let other = StreamPool::new(rig.device().clone(), Default::default()).unwrap();
    let recorders: [fn(StreamId) -> LaunchRecorder; 2] = [
        |stream| LaunchRecorder::new_strict(stream),
        |stream| LaunchRecorder::new_permissive(stream),
    ];
    for recorder in recorders {
        let refused = |ctx: &Context, stream: StreamId| {
            let launched = recorder(stream).launch_with(ctx, Reads(&block), |_, _| Ok::<_, ()>(()));
            launched.unwrap_err()
        };
        let untracked = refused(&ctx, home.id());
        assert!(matches!(
            untracked,
            LaunchError::Prepare(PrepareError::Untracked {
                source: ResourceError::StreamMisuse { .. },
                ..
            })
        ));
        let elsewhere =
            Context { resource: Arc::clone(&ctx.resource), streams: Arc::clone(&other) };
        let error = refused(&elsewhere, other.default_stream());
        assert!(matches!(error, LaunchError::Prepare(PrepareError::OtherPool { .. })));
    }
    ctx.resource.deallocate(block).unwrap();
    ctx.resource.reap_pending().unwrap();
    drop((ctx, home, other));
    rig.assert_clean();
}
