//! U14: on a stream that captures a graph every call is `StreamCapturing`, and changes nothing.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use std::sync::Arc;

use cudarc::driver::{result, sys};
use dmr_core::{
    Access, AllocTag, DeviceMemoryResource, ResourceError, ResourceResult, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

fn begin(stream: &StreamLease) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::begin_capture(stream.stream().cu_stream(), mode) }.unwrap();
}

fn end(stream: &StreamLease) {
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::end_capture(stream.stream().cu_stream()) }.unwrap();
}

fn refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::StreamCapturing { .. }))
}

#[test]
fn an_allocation_during_which_another_thread_begins_a_capture_is_refused() {
    let rig = Rig::simulated();
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let home = rig.stream();
    let before = resource.usage();
    let hold = rig.universe().hold_nth("cuMemAllocFromPoolAsync", 1);
    std::thread::scope(|threads| {
        let allocation = threads.spawn(|| resource.allocate(1000, home.id(), AllocTag::UNTAGGED));
        hold.wait_until_held();
        begin(&home);
        hold.release();
        assert!(refused(allocation.join().unwrap()));
    });
    assert_eq!(resource.usage(), before);
    end(&home);
    let after = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    resource.deallocate(after).unwrap();
    drop((resource, home));
    rig.assert_clean();
}

#[test]
fn a_capturing_stream_refuses_everything_and_its_capture_stays_valid() {
    let rig = Rig::simulated();
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let [home, other] = [rig.stream(), rig.stream()];
    let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    let token = resource.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
    resource.finish_uses(token).unwrap();
    let before = resource.usage();

    begin(&home);
    assert!(refused(resource.allocate(10, home.id(), AllocTag::UNTAGGED)));
    assert!(refused(resource.prepare_block_use(block.id(), home.id(), Access::Read)));
    assert!(refused(resource.record_block_use(&block, home.id())));
    let back = resource.deallocate(block).unwrap_err();
    assert!(matches!(back.error, ResourceError::StreamCapturing { .. }), "{back}");
    assert_eq!(resource.usage(), before);
    // Other streams go on.
    let elsewhere = resource.allocate(10, other.id(), AllocTag::UNTAGGED).unwrap();
    resource.deallocate(elsewhere).unwrap();
    end(&home);

    resource.deallocate(back.block).unwrap();
    drop((resource, home, other));
    rig.assert_clean();
}
