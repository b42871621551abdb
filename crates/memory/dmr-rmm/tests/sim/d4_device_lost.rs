//! D4: on a lost device allocations fail, blocks are deallocated, and no driver call is made.

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_rmm::RmmKind;
use dmr_testkit::Rig;

use crate::support::{small, tracked};

const ILLEGAL_ADDRESS: i32 = 700;

#[test]
fn a_lost_device_is_reported_whatever_rmm_makes_of_it() {
    for kind in RmmKind::ALL {
        let rig = Rig::simulated();
        let resource = tracked(rig.streams(), small(kind));
        let stream = rig.stream();
        // More than a pool has left, so that RMM calls the driver.
        let allocate = || resource.allocate(3 << 20, stream.id(), AllocTag::UNTAGGED);
        let block = allocate().unwrap();
        rig.universe().lose_device(0, ILLEGAL_ADDRESS);
        for _ in 0..2 {
            let error = allocate().unwrap_err();
            let is_it = matches!(error, ResourceError::DeviceLost { code: ILLEGAL_ADDRESS, .. });
            assert!(is_it, "{kind}: {error}");
        }
        rig.universe().reset_calls();
        resource.deallocate(block).unwrap();
        assert_eq!(resource.reap_pending().unwrap(), 0, "{kind}");
        assert_eq!(resource.trim_to(0).unwrap(), 0, "{kind}");
        assert_eq!(resource.bytes_outstanding(), 0, "{kind}");
        drop(resource);
        assert_eq!(rig.universe().calls().total(), 0, "{kind}: {:?}", rig.universe().calls());
    }
}

/// RMM's pool reports a device that is lost during its call as a shortage.
#[test]
fn a_device_that_is_lost_during_a_call_of_rmm_is_reported() {
    for kind in [RmmKind::Cuda, RmmKind::Pool, RmmKind::Binning] {
        let rig = Rig::simulated();
        let resource = tracked(rig.streams(), small(kind));
        let stream = rig.stream();
        let hold = rig.universe().hold_nth("cuMemAlloc_v2", 1);
        std::thread::scope(|threads| {
            let allocate = || resource.allocate(3 << 20, stream.id(), AllocTag::UNTAGGED);
            let allocation = threads.spawn(allocate);
            hold.wait_until_held();
            rig.universe().lose_device(0, ILLEGAL_ADDRESS);
            hold.release();
            let error = allocation.join().unwrap().unwrap_err();
            assert!(matches!(error, ResourceError::DeviceLost { .. }), "{kind}: {error}");
        });
    }
}
