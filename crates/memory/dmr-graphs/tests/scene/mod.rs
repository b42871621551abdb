//! A rig with a pool, two streams and two blocks, and the work of the tests' graphs.

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::{CudaStream, DriverError, result};
use dmr_core::sync::lock;
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_graphs::{Capture, CaptureError, CaptureMode, Graph};
use dmr_launch::LaunchRecorder;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::{DeviceContext, StreamGuard, StreamLease, StreamPool};
use dmr_testkit::Rig;

/// Held by each test: on a GPU they share a context, and a test that synchronises it would end the
/// captures of the others.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test runs.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    lock(&ALONE)
}

pub(crate) const BYTES: usize = 1 << 16;

pub(crate) struct Context {
    pub(crate) resource: Arc<dyn DeviceMemoryResource>,
    pub(crate) streams: Arc<StreamPool>,
}

impl Context {
    pub(crate) fn new(rig: &Rig) -> Self {
        Self::with(rig, PoolConfig::default())
    }

    pub(crate) fn with(rig: &Rig, config: PoolConfig) -> Self {
        let streams = Arc::clone(rig.streams());
        let pages = VirtualCudaResource::new(Arc::clone(&streams), VirtualConfig::new()).unwrap();
        let pool = PoolResource::new(pages, Arc::clone(&streams), config).unwrap();
        Self { resource: Arc::new(pool), streams }
    }

    pub(crate) fn block(&self, home: &StreamLease) -> DeviceBlock {
        self.resource.allocate(BYTES, home.id(), AllocTag::new("graph")).unwrap()
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

/// Fields are dropped in this order: the rig last.
pub(crate) struct Scene {
    pub(crate) ctx: Context,
    pub(crate) a: StreamLease,
    pub(crate) b: StreamLease,
    pub(crate) x: DeviceBlock,
    pub(crate) y: DeviceBlock,
    pub(crate) rig: Rig,
    alone: MutexGuard<'static, ()>,
}

impl Scene {
    /// Makes a scene on the rig that `make` returns, once no other test runs.
    pub(crate) fn new(make: impl FnOnce() -> Rig) -> Self {
        Self::with(make, PoolConfig::default())
    }

    /// As [`new`](Self::new), with this pool.
    pub(crate) fn with(make: impl FnOnce() -> Rig, config: PoolConfig) -> Self {
        let alone = alone();
        let rig = make();
        let ctx = Context::with(&rig, config);
        let a = rig.stream();
        let b = rig.stream();
        let x = ctx.block(&a);
        let y = ctx.block(&a);
        Self { ctx, a, b, x, y, rig, alone }
    }

    /// Captures a copy of `x` to `y` on stream `b`.
    pub(crate) fn copy(&mut self) -> Graph {
        let Self { ctx, b, x, y, .. } = self;
        capture(ctx, b, |capture| {
            capture.read_column(AllocTag::new("from"), x);
            capture.write(y);
            copy(capture.stream(), x, y)
        })
        .unwrap()
    }

    /// Fills `x` with a pattern, in a launch on stream `a`, slowly.
    pub(crate) fn fill(&mut self, pattern: u32) {
        let mut launch = LaunchRecorder::new_strict(&self.a);
        launch.write(&mut self.x);
        let Self { ctx, a, x, rig, .. } = self;
        let filled = launch.launch(ctx, |_| {
            rig.delay(&*a);
            rig.ops().fill_pattern(x, 0..BYTES, pattern, a.id())
        });
        filled.unwrap();
    }

    /// Checks `y`, in a launch on stream `a`.
    pub(crate) fn check(&self, pattern: u32) {
        let mut launch = LaunchRecorder::new_strict(&self.a);
        launch.read(&self.y);
        let on = self.a.id();
        let check =
            |_: &StreamGuard<'_>| self.rig.ops().check_pattern(&self.y, 0..BYTES, pattern, on, 0);
        launch.launch(&self.ctx, check).unwrap();
    }

    pub(crate) fn assert_clean(self) {
        let Self { ctx, a, b, x, y, rig, alone } = self;
        for block in [x, y] {
            ctx.resource.deallocate(block).unwrap();
        }
        ctx.resource.reap_pending().unwrap();
        assert_eq!(ctx.resource.bytes_outstanding(), 0);
        drop((ctx, a, b));
        rig.assert_clean();
        drop(alone);
    }
}

/// Captures work that uses what it records.
pub(crate) fn capture<E>(
    ctx: &Context,
    stream: &StreamLease,
    work: impl FnOnce(&mut Capture<'_>) -> Result<(), E>,
) -> Result<Graph, CaptureError<E>> {
    // SAFETY: the tests' work uses the blocks that it records.
    unsafe { Graph::capture(ctx, stream, CaptureMode::default(), work) }
}

/// Enqueues a copy.
pub(crate) fn copy(
    on: &CudaStream,
    from: &DeviceBlock,
    to: &mut DeviceBlock,
) -> Result<(), DriverError> {
    copy_bytes(on, from.ptr(), to.ptr())
}

/// Enqueues a fill.
pub(crate) fn fill(on: &CudaStream, block: &mut DeviceBlock, byte: u8) -> Result<(), DriverError> {
    fill_bytes(on, block.ptr(), byte)
}

/// Enqueues a copy between addresses.
pub(crate) fn copy_bytes(on: &CudaStream, from: u64, to: u64) -> Result<(), DriverError> {
    // SAFETY: the tests pass addresses of as many bytes.
    unsafe { result::memcpy_dtod_async(to, from, BYTES, on.cu_stream()) }
}

/// Enqueues a fill at an address.
pub(crate) fn fill_bytes(on: &CudaStream, to: u64, byte: u8) -> Result<(), DriverError> {
    // SAFETY: as above.
    unsafe { result::memset_d8_async(to, byte, BYTES, on.cu_stream()) }
}
