//! D4: after a sticky driver error the device is lost for good.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, DeviceMemoryResource, ResourceError, StreamId, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

const ILLEGAL_ADDRESS: i32 = 700;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn is_lost<T: std::fmt::Debug>(result: Result<T, ResourceError>, by: &str) {
    match result {
        Err(ResourceError::DeviceLost { call, code, .. }) => {
            assert_eq!((call, code), (by, ILLEGAL_ADDRESS));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn allocate_fails_deallocate_succeeds_and_no_call_is_issued_again() {
    for call in ["cuMemAllocFromPoolAsync", "cuMemFreeAsync"] {
        let rig = Rig::simulated();
        let resource = resource(&rig);
        let [home, other] = [rig.stream(), rig.stream()];
        let allocate = || resource.allocate(100, home.id(), AllocTag::UNTAGGED);
        let [a, b, c] = [(); 3].map(|()| allocate().unwrap());
        let token = resource.prepare_block_use(a.id(), other.id(), Access::Write).unwrap();
        let stale = b.id();
        resource.deallocate(a).unwrap();
        rig.universe().fail_nth(call, 1, ILLEGAL_ADDRESS);
        if call == "cuMemFreeAsync" {
            // The call that finds out takes the block all the same.
            resource.deallocate(c).unwrap();
        } else {
            is_lost(allocate(), call);
            resource.deallocate(c).unwrap();
        }
        rig.universe().clear_faults();
        rig.universe().reset_calls();
        for _ in 0..2 {
            is_lost(allocate(), call);
            is_lost(resource.prepare_block_use(stale, other.id(), Access::Read), call);
        }
        resource.deallocate(b).unwrap();
        assert_eq!((resource.usage().live, resource.usage().retired), (0, 100));
        // A window that was open is closed, or its block reaped: nothing stays accounted for.
        is_lost(resource.finish_uses(token), call);
        resource.reap_pending().unwrap();
        assert_eq!(resource.bytes_outstanding(), 0);
        assert_eq!(rig.universe().calls().total(), 0, "{:?}", rig.universe().calls());
        assert!(rig.device().is_lost());
        drop(resource);
    }
}

#[test]
fn an_error_that_refuses_one_call_loses_no_device() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    for code in [1, 2, 201, 701, 704, 705, 708, 711, 712, 713, 720, 801, 999] {
        rig.universe().fail_nth("cuMemAllocFromPoolAsync", 1, code);
        // Out of memory is tried again.
        rig.universe().fail_nth("cuMemAllocFromPoolAsync", 2, code);
        assert!(resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).is_err());
        rig.universe().clear_faults();
        assert!(!rig.device().is_lost(), "{code}");
    }
    let block = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    resource.deallocate(block).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn every_sticky_error_ends_the_device() {
    for code in [214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719] {
        let rig = Rig::simulated();
        let resource = resource(&rig);
        rig.universe().fail_nth("cuMemAllocFromPoolAsync", 1, code);
        let error = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
        assert!(matches!(error, ResourceError::DeviceLost { .. }), "{code}: {error}");
        assert_eq!(resource.allocate(1, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err(), error);
    }
}
