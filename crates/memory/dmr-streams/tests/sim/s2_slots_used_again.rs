//! S2, U14: adopting a stream into the slot of a retired one, with failures, captures and other
//! threads.

#![allow(unsafe_code, reason = "adopts raw streams, which is unsafe")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstreamCaptureMode;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    ResourceResult, StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamLease, StreamPoolConfig, Tracked};
use dmr_testkit::rig::RigConfig;
use dmr_testkit::{HeldStream, Rig};

const BYTES: usize = 1 << 16;
const TAG: AllocTag = AllocTag::UNTAGGED;
/// `CUDA_ERROR_INVALID_VALUE`, which is not sticky.
const INVALID_VALUE: i32 = 1;

fn rig(max_adopted: usize) -> Rig {
    let streams = StreamPoolConfig::new().with_max_adopted(max_adopted);
    Rig::with(RigConfig { streams, simulated: true, ..RigConfig::default() })
}

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn adopt(rig: &Rig, stream: &CudaStream) -> ResourceResult<StreamLease> {
    // SAFETY: the tests keep the stream until its lease is retired.
    unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }
}

fn launch(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    block: &DeviceBlock,
    access: Access,
    on: StreamId,
) {
    let tokens = match resource.prepare_uses(&[BlockUse::new(block.id(), access)], on) {
        // Another thread has a window on it.
        Err(ResourceError::WindowConflict { .. }) => return,
        prepared => prepared.unwrap(),
    };
    if access.writes() {
        rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
    } else {
        rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
    }
    resource.finish_uses(tokens).unwrap();
}

/// Retires a stream whose work on `block` is not done before the result is released.
fn retire_with_work(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    block: &DeviceBlock,
) -> HeldStream {
    let stream = rig.device().context().new_stream().unwrap();
    let adopted = rig.streams().adopt(stream).unwrap();
    let held = HeldStream::hold(rig.streams(), &adopted);
    launch(rig, resource, block, Access::Write, adopted.id());
    rig.streams().retire_stream(&adopted).unwrap();
    held
}

#[test]
fn a_stream_that_cannot_be_ordered_after_the_retired_one_is_not_adopted_and_can_be_later() {
    for call in ["cuEventQuery", "cuStreamIsCapturing", "cuStreamWaitEvent"] {
        let rig = rig(1);
        let resource = tracked(&rig);
        let block = resource.allocate(BYTES, StreamId::DEFAULT, TAG).unwrap();
        let held = retire_with_work(&rig, &resource, &block);
        let next = rig.device().context().new_stream().unwrap();
        rig.universe().fail_nth(call, 1, INVALID_VALUE);
        let error = adopt(&rig, &next).unwrap_err();
        assert!(matches!(error, ResourceError::Driver { .. }), "{call}: {error}");
        let adopted = adopt(&rig, &next).unwrap();
        drop(held);
        launch(&rig, &resource, &block, Access::Read, adopted.id());
        resource.deallocate(block).unwrap();
        rig.streams().retire_stream(&adopted).unwrap();
        drop((resource, adopted, next));
        rig.assert_clean();
    }
}

#[test]
fn a_capturing_stream_is_refused_while_it_would_have_to_wait_and_its_capture_goes_on() {
    let rig = rig(1);
    let resource = tracked(&rig);
    let block = resource.allocate(BYTES, StreamId::DEFAULT, TAG).unwrap();
    let held = retire_with_work(&rig, &resource, &block);
    let next = rig.device().context().new_stream().unwrap();
    next.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    let refused = adopt(&rig, &next).unwrap_err();
    assert!(matches!(refused, ResourceError::StreamCapturing { .. }), "{refused}");
    drop(held);
    // The retired stream's work is done, so there is nothing to wait for.
    let adopted = adopt(&rig, &next).unwrap();
    // SAFETY: the capture was begun above.
    let graph = unsafe { cudarc::driver::result::stream::end_capture(next.cu_stream()) };
    assert!(graph.is_ok(), "the capture is valid");
    launch(&rig, &resource, &block, Access::Read, adopted.id());
    resource.deallocate(block).unwrap();
    // SAFETY: the graph was made above, and this is its only destruction.
    unsafe { cudarc::driver::result::graph::destroy(graph.unwrap()) }.unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop((resource, adopted, next));
    rig.assert_clean();
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Other threads wait for the work of streams that are retired meanwhile, and whose slot is used
/// again.
#[test]
fn threads_find_the_last_work_of_a_slot_while_its_streams_change() {
    let rig = rig(1);
    let resource = tracked(&rig);
    let is_over = AtomicBool::new(false);
    let blocks: Vec<_> =
        (0..3).map(|_| resource.allocate(BYTES, StreamId::DEFAULT, TAG).unwrap()).collect();
    std::thread::scope(|scope| {
        // Also if this panics.
        let ended = SetOnDrop(&is_over);
        for block in &blocks {
            let rig = &rig;
            let resource = &resource;
            let is_over = &is_over;
            let lease = rig.stream();
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    launch(rig, resource, block, Access::Write, lease.id());
                    std::thread::yield_now();
                }
            });
        }
        for _ in 0..300 {
            let stream = rig.device().context().new_stream().unwrap();
            let adopted = adopt(&rig, &stream).unwrap();
            for block in &blocks {
                rig.delay(adopted.id());
                launch(&rig, &resource, block, Access::Write, adopted.id());
            }
            rig.streams().retire_stream(&adopted).unwrap();
        }
        drop(ended);
    });
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    drop(resource);
    rig.assert_clean();
}
