//! R8: a launch that waits for a window opens none meanwhile, and returns at once when the device is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dmr_core::{
    AllocTag, BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, UseTokens, UseTracking,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_launch::{LaunchRecorder, PrepareError};
use dmr_streams::{DeviceContext, StreamPool, Tracked};
use dmr_testkit::Rig;

const ILLEGAL_ADDRESS: i32 = 700;

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

/// Counts the calls that prepare uses.
#[derive(Debug)]
struct Counting<R> {
    upstream: R,
    prepared: AtomicUsize,
}

impl<R: DeviceMemoryResource> DeviceMemoryResource for Counting<R> {
    dmr_core::forward!(
        upstream: allocate, deallocate, give_away, try_grow, is_retired, device_ordinal, stream_pool,
        bytes_outstanding, usage, try_reap, reap_pending, trim_to, allow_access, virtual_memory,
    );

    fn use_tracking(&self) -> Option<&dyn UseTracking> {
        Some(self)
    }
}

impl<R: DeviceMemoryResource> Counting<R> {
    fn tracking(&self) -> &dyn UseTracking {
        self.upstream.use_tracking().expect("upstream tracks uses")
    }
}

impl<R: DeviceMemoryResource> UseTracking for Counting<R> {
    fn prepare(&self, uses: &[BlockUse], tokens: &mut UseTokens) -> ResourceResult<()> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        self.tracking().prepare(uses, tokens)
    }

    fn finish(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().finish(tokens)
    }

    fn cancel(&self, tokens: &mut UseTokens) -> ResourceResult<()> {
        self.tracking().cancel(tokens)
    }
}

/// Its window would refuse a launch that need not wait.
#[test]
fn a_launch_that_waits_opens_no_window_meanwhile() {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let direct = DirectCudaResource::new(Arc::clone(&streams));
    let upstream = Tracked::new(direct, Arc::clone(&streams)).unwrap();
    let counting = Arc::new(Counting { upstream, prepared: AtomicUsize::new(0) });
    let ctx = Context { resource: counting.clone(), streams };
    let [a, b] = [rig.stream(), rig.stream()];
    let mut block = ctx.resource.allocate(256, a.id(), AllocTag::UNTAGGED).unwrap();
    let mut held = LaunchRecorder::new_strict(&a);
    held.write(&mut block);
    let held = held.prepare(&ctx).unwrap();
    let mut launch = LaunchRecorder::new_strict(&b).with_timeout(Duration::from_secs(100));
    launch.read(&block);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| launch.prepare(&ctx).unwrap().finish().unwrap());
        // The first try is over by then.
        std::thread::sleep(Duration::from_millis(20));
        let prepared = counting.prepared.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "it does not wait for the window");
        assert_eq!(counting.prepared.load(Ordering::Relaxed), prepared);
        held.finish().unwrap();
        waiting.join().unwrap();
    });
    ctx.resource.deallocate(block).unwrap();
    drop((ctx, counting, a, b));
    rig.assert_clean();
}

#[test]
fn a_launch_does_not_wait_for_a_window_on_a_lost_device() {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let direct = DirectCudaResource::new(Arc::clone(&streams));
    let resource = Arc::new(Tracked::new(direct, Arc::clone(&streams)).unwrap());
    let ctx = Context { resource, streams };
    let [a, b] = [rig.stream(), rig.stream()];
    let mut block = ctx.resource.allocate(256, a.id(), AllocTag::UNTAGGED).unwrap();
    let mut held = LaunchRecorder::new_strict(&a);
    held.write(&mut block);
    let held = held.prepare(&ctx).unwrap();
    let mut launch = LaunchRecorder::new_strict(&b).with_timeout(Duration::from_secs(100));
    launch.read(&block);
    let begun = Instant::now();
    let refused = std::thread::scope(|threads| {
        let waiting = threads.spawn(|| launch.prepare(&ctx).map(drop));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished(), "it does not wait for the window");
        rig.universe().lose_device(0, ILLEGAL_ADDRESS);
        waiting.join().unwrap().unwrap_err()
    });
    assert!(begun.elapsed() < Duration::from_secs(50), "it waits for its timeout");
    let PrepareError::Resource { source, .. } = &refused else { panic!("{refused}") };
    let is_lost = matches!(
        source,
        ResourceError::DeviceLost { .. } | ResourceError::Driver { code: 700, .. }
    );
    assert!(is_lost, "{refused}");
    drop(held);
    ctx.resource.deallocate(block).unwrap();
}
