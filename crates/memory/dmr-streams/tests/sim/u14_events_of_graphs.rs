//! U14, U13: an event that a graph has captured stands for no use, even if the capture has ended
//! before the event is queried.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use std::sync::Arc;

use cudarc::driver::{result, sys};
use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, DeviceOps, UseTrackingExt};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 4096;

#[test]
fn a_use_whose_event_went_into_a_graph_that_has_ended_is_waited_for_all_the_same() {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let home = rig.stream();
    let other = rig.stream();
    let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    let write = [BlockUse::new(block.id(), Access::Write)];
    let tokens = resource.prepare_uses(&write, home.id()).unwrap();
    rig.delay(home.id());
    rig.ops().fill_pattern(&block, 0..BYTES, 7, home.id()).unwrap();
    let handle = home.stream().cu_stream();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::begin_capture(handle, mode) }.unwrap();
    std::thread::scope(|scope| {
        let hold = rig.universe().hold_after_nth("cuEventRecord", 1);
        let finished = scope.spawn(|| resource.finish_uses(tokens));
        hold.wait_until_held();
        // SAFETY: as above.
        unsafe { result::stream::end_capture(handle) }.unwrap();
        hold.release();
        // It cannot be seen any more that there was a capture.
        finished.join().unwrap().unwrap();
    });
    // One call may fail, and finds out.
    let tokens = resource
        .prepare_uses(&write, other.id())
        .or_else(|_| resource.prepare_uses(&write, other.id()))
        .unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 8, other.id()).unwrap();
    resource.finish_uses(tokens).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
    drop((resource, home, other));
    rig.assert_clean();
}
