//! U14: on a stream that captures a graph every call is refused, and the capture stays valid while
//! RMM calls the driver for other streams.

use cudarc::driver::{result, sys};
use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, ResourceResult};
use dmr_rmm::RmmKind;
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

use crate::support::{small, tracked};

fn begin(stream: &StreamLease) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::begin_capture(stream.stream().cu_stream(), mode) }.unwrap();
}

fn end(stream: &StreamLease) {
    // SAFETY: the lease keeps the stream alive.
    unsafe { result::stream::end_capture(stream.stream().cu_stream()) }.unwrap();
}

fn is_refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::StreamCapturing { .. }))
}

#[test]
fn a_capturing_stream_refuses_everything_and_its_capture_stays_valid() {
    for kind in RmmKind::ALL {
        let rig = Rig::simulated();
        let resource = tracked(rig.streams(), small(kind));
        let [home, other] = [rig.stream(), rig.stream()];
        let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
        let before = resource.usage();

        begin(&home);
        assert!(is_refused(resource.allocate(10, home.id(), AllocTag::UNTAGGED)), "{kind}");
        let back = resource.deallocate(block).unwrap_err();
        assert!(matches!(back.error, ResourceError::StreamCapturing { .. }), "{kind}: {back}");
        assert_eq!(resource.usage(), before, "{kind}");
        // Small, and more than a pool has.
        for bytes in [10, 3 << 20] {
            let elsewhere = resource.allocate(bytes, other.id(), AllocTag::UNTAGGED).unwrap();
            resource.deallocate(elsewhere).unwrap();
        }
        end(&home);

        resource.deallocate(back.block).unwrap();
        drop((resource, home, other));
        rig.assert_clean();
    }
}

#[test]
fn an_allocation_during_which_another_thread_begins_a_capture_is_refused() {
    let rig = Rig::simulated();
    let resource = tracked(rig.streams(), small(RmmKind::Cuda));
    let home = rig.stream();
    let before = resource.usage().live;
    let hold = rig.universe().hold_nth("cuMemAlloc_v2", 1);
    std::thread::scope(|threads| {
        let allocation = threads.spawn(|| resource.allocate(1000, home.id(), AllocTag::UNTAGGED));
        hold.wait_until_held();
        begin(&home);
        hold.release();
        assert!(is_refused(allocation.join().unwrap()));
    });
    assert_eq!(resource.usage().live, before);
    end(&home);
    let after = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    resource.deallocate(after).unwrap();
}
