//! R9: what cannot be ordered on another stream is refused, or waited for, and is an error of the
//! launch.

#![allow(unsafe_code, reason = "submits to an address whose guard was forgotten")]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaStream, DevicePtr, DevicePtrMut, DriverError, result};
use dmr_core::error::StreamProblem;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::{LaunchError, LaunchRecorder, PrepareError, Reads, Writes};
use dmr_sim::{Policy, Universe};
use dmr_streams::{DeviceContext, StreamLease, StreamPool, Tracked};
use dmr_testkit::{Rig, for_each_driver_call};

const BYTES: usize = 1 << 12;

struct Context {
    resource: Arc<dyn DeviceMemoryResource>,
    streams: Arc<StreamPool>,
}

impl Context {
    fn new(rig: &Rig) -> Self {
        let streams = Arc::clone(rig.streams());
        let direct = DirectCudaResource::new(Arc::clone(&streams));
        Self { resource: Arc::new(Tracked::new(direct, Arc::clone(&streams)).unwrap()), streams }
    }

    fn block(&self, home: &StreamLease) -> DeviceBlock {
        self.resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap()
    }
}

impl DeviceContext for Context {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        &self.resource
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.streams
    }
}

/// A machine that works as late as it may, one stream, a stream that no pool has, and a block.
struct Scene<R = Rig> {
    rig: R,
    ctx: Context,
    home: StreamLease,
    other: Arc<CudaStream>,
    block: DeviceBlock,
}

impl Scene<()> {
    fn of(rig: &Rig) -> Self {
        let ctx = Context::new(rig);
        let home = rig.stream();
        let other = rig.device().context().new_stream().unwrap();
        let mut block = ctx.block(&home);
        zero(&ctx, &home, &mut block);
        Self { rig: (), ctx, home, other, block }
    }
}

impl Scene {
    fn new() -> Self {
        let universe = Universe::builder().policy(Policy::Lazy).devices(2).build().unwrap();
        let rig = Rig::in_universe(&universe);
        let Scene { ctx, home, other, block, .. } = Scene::of(&rig);
        Self { rig, ctx, home, other, block }
    }

    /// Writes the block once more, on another stream of the pool: a race if the launch's work is
    /// not ordered.
    fn assert_clean(self) {
        let Self { rig, ctx, home, other, mut block } = self;
        let away = rig.stream();
        zero(&ctx, &away, &mut block);
        ctx.resource.deallocate(block).unwrap();
        ctx.resource.reap_pending().unwrap();
        drop((ctx, home, away, other));
        rig.assert_clean();
    }
}

fn zero(ctx: &Context, stream: &StreamLease, block: &mut DeviceBlock) {
    let launch = LaunchRecorder::new_strict(stream);
    let zero = launch.launch_with(ctx, Writes(block), |on, mut block| on.memset_zeros(&mut block));
    zero.unwrap();
}

#[test]
fn a_guard_that_was_forgotten_is_an_error_and_its_use_is_waited_for() {
    let mut scene = Scene::new();
    let launch = LaunchRecorder::new_strict(&scene.home);
    let launched = launch.launch_with(&scene.ctx, Writes(&mut scene.block), |_, mut block| {
        let (ptr, guard) = block.device_ptr_mut(&scene.other);
        std::mem::forget(guard);
        // SAFETY: the bytes are those of the block.
        unsafe { result::memset_d8_async(ptr, 1, BYTES, scene.other.cu_stream()) }
    });
    let Err(LaunchError::View(error)) = launched else { panic!("{launched:?}") };
    let problem = StreamProblem::Unordered;
    assert!(
        matches!(error, ResourceError::StreamMisuse { problem: p, .. } if p == problem),
        "{error}"
    );
    scene.assert_clean();
}

#[test]
fn the_windows_stay_open_if_a_use_can_be_neither_ordered_nor_waited_for() {
    let mut scene = Scene::new();
    scene.rig.universe().fail_nth("cuCtxSynchronize", 1, 999);
    let launch = LaunchRecorder::new_strict(&scene.home);
    let launched = launch.launch_with(&scene.ctx, Writes(&mut scene.block), |_, mut block| {
        std::mem::forget(block.device_ptr_mut(&scene.other).1);
        Ok::<_, ()>(())
    });
    assert!(matches!(launched, Err(LaunchError::View(_))), "{launched:?}");
    let id = scene.block.id();
    let away = scene.rig.stream();
    let launch = LaunchRecorder::new_strict(&away);
    let read = launch.launch_with(&scene.ctx, Reads(&scene.block), |_, _| Ok::<_, ()>(()));
    let Err(LaunchError::Prepare(PrepareError::Resource { source, .. })) = read else {
        panic!("{read:?}")
    };
    assert!(matches!(source, ResourceError::WindowConflict { .. }), "{source}");
    // The memory is leaked and not freed.
    scene.ctx.resource.deallocate(scene.block).unwrap();
    assert_eq!(scene.ctx.resource.reap_pending(), Ok(0));
    assert!(scene.ctx.resource.is_retired(id));
}

#[test]
fn a_stream_that_captures_gets_no_address() {
    let mut scene = Scene::new();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    for captured in [Arc::clone(&scene.other), Arc::clone(scene.home.stream())] {
        let launch = LaunchRecorder::new_strict(&scene.home);
        let launched = launch.launch_with(&scene.ctx, Writes(&mut scene.block), |_, mut block| {
            captured.begin_capture(mode).unwrap();
            assert_eq!(block.device_ptr_mut(&captured).0, 0);
            let _ = captured.end_capture(
                CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH,
            );
            Ok::<_, ()>(())
        });
        let Err(LaunchError::View(error)) = launched else { panic!("{launched:?}") };
        assert!(matches!(error, ResourceError::StreamCapturing { .. }), "{error}");
    }
    scene.assert_clean();
}

#[test]
fn a_stream_of_another_context_gets_no_address() {
    let mut scene = Scene::new();
    let context = CudaContext::new(scene.rig.universe().ordinal(1)).unwrap();
    let stream = context.new_stream().unwrap();
    let launch = LaunchRecorder::new_strict(&scene.home);
    let launched = launch.launch_with(&scene.ctx, Writes(&mut scene.block), |_, mut block| {
        assert_eq!(block.device_ptr_mut(&stream).0, 0);
        Ok::<_, ()>(())
    });
    let Err(LaunchError::View(error)) = launched else { panic!("{launched:?}") };
    let problem = StreamProblem::OtherContext;
    assert!(
        matches!(error, ResourceError::StreamMisuse { problem: p, .. } if p == problem),
        "{error}"
    );
    scene.rig.device().bind().unwrap();
    drop((stream, context));
    scene.assert_clean();
}

#[test]
fn an_error_that_cudarc_has_kept_is_neither_lost_nor_in_the_way() {
    let mut scene = Scene::new();
    let context = Arc::clone(scene.rig.device().context());
    let kept = DriverError(CUresult::CUDA_ERROR_NOT_FOUND);
    let launch = LaunchRecorder::new_strict(&scene.home);
    launch
        .launch_with(&scene.ctx, Writes(&mut scene.block), |_, mut block| {
            context.record_err::<()>(Err(kept));
            let (ptr, _guard) = block.device_ptr_mut(&scene.other);
            // SAFETY: the bytes are those of the block.
            unsafe { result::memset_d8_async(ptr, 1, BYTES, scene.other.cu_stream()) }
        })
        .unwrap();
    assert_eq!(context.check_err(), Err(kept));
    drop(context);
    scene.assert_clean();
}

#[test]
fn without_event_tracking_the_other_stream_is_synchronised() {
    let mut scene = Scene::new();
    let context = Arc::clone(scene.rig.device().context());
    // SAFETY: the test has no slices of cudarc.
    unsafe { context.disable_event_tracking() };
    let launch = LaunchRecorder::new_strict(&scene.home);
    scene.rig.universe().reset_calls();
    launch
        .launch_with(&scene.ctx, Writes(&mut scene.block), |_, mut block| {
            scene.other.memset_zeros(&mut block)
        })
        .unwrap();
    assert_eq!(scene.rig.universe().calls().count("cuStreamSynchronize"), 1);
    // SAFETY: as above.
    unsafe { context.enable_event_tracking() };
    drop(context);
    scene.assert_clean();
}

#[test]
fn a_launch_on_its_own_stream_makes_one_call_more_for_each_use_of_a_view() {
    let mut scene = Scene::new();
    let calls_of = |uses: usize, scene: &mut Scene| {
        let launch = LaunchRecorder::new_strict(&scene.home);
        scene.rig.universe().reset_calls();
        launch
            .launch_with(&scene.ctx, Writes(&mut scene.block), |stream, mut block| {
                (0..uses).for_each(|_| drop(block.device_ptr_mut(stream)));
                Ok::<_, ()>(())
            })
            .unwrap();
        let calls = scene.rig.universe().calls();
        (calls.total(), calls.count("cuStreamIsCapturing"))
    };
    let (all, looks) = calls_of(0, &mut scene);
    let (more, more_looks) = calls_of(5, &mut scene);
    assert_eq!((more - all, more_looks - looks), (5, 5));
    scene.assert_clean();
}

#[test]
fn no_driver_call_that_fails_leaves_a_use_unordered() {
    let failed = for_each_driver_call(999, Scene::of, |rig, scene| {
        let Scene { ctx, home, other, mut block, .. } = scene;
        let context = Arc::clone(rig.device().context());
        let away = rig.streams().acquire().or_else(|_| rig.streams().acquire()).unwrap();
        let launch = LaunchRecorder::new_strict(&home);
        let _ = launch.launch_with(&ctx, Writes(&mut block), |stream, mut block| {
            let (ptr, guard) = block.device_ptr_mut(&other);
            if ptr != 0 {
                // SAFETY: the bytes are those of the block.
                let _ = unsafe { result::memset_d8_async(ptr, 1, BYTES, other.cu_stream()) };
            }
            drop(guard);
            let _ = block.as_view().lend(|block| drop(block.device_ptr(stream)));
            Ok::<_, ()>(())
        });
        let read = || {
            let launch = LaunchRecorder::new_strict(&away);
            launch.launch_with(&ctx, Reads(&block), |stream, block| stream.clone_dtoh(&block))
        };
        let _ = read().or_else(|_| read());
        let _ = context.check_err();
        ctx.resource.deallocate(block).or_else(|it| ctx.resource.deallocate(it.block)).unwrap();
        let _ = ctx.resource.reap_pending().or_else(|_| ctx.resource.reap_pending());
        drop((ctx, home, away, other, context));
        let races = rig.universe().reports();
        assert!(races.is_empty(), "{races:?}");
    });
    assert!(failed >= 10, "{failed} calls were failed");
}
