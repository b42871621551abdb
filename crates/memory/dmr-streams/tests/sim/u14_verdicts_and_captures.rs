//! U14: fetching the verdicts of checks ends no capture that begins meanwhile.

#![allow(unsafe_code, reason = "captures begin and end in the driver")]

use cudarc::driver::{result, sys};
use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn a_capture_that_begins_while_verdicts_are_fetched_goes_on() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(std::sync::Arc::clone(rig.streams()));
    let stream = rig.stream();
    let block = resource.allocate(4096, stream.id(), AllocTag::UNTAGGED).unwrap();
    rig.ops().fill_pattern(&block, 0..4096, 7, stream.id()).unwrap();
    rig.ops().check_pattern(&block, 0..4096, 7, stream.id(), 1).unwrap();
    let handle = stream.stream().cu_stream();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    std::thread::scope(|scope| {
        let hold = rig.universe().hold_after_nth("cuStreamIsCapturing", 1);
        let fetched = scope.spawn(|| rig.ops().collect());
        hold.wait_until_held();
        // SAFETY: the lease keeps the stream alive.
        unsafe { result::stream::begin_capture(handle, mode) }.unwrap();
        hold.release();
        assert_eq!(fetched.join().unwrap().unwrap(), []);
    });
    // SAFETY: as above.
    unsafe { result::stream::end_capture(handle) }.unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
}
