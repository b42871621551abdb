//! T4, T7: a driver call that fails changes nothing, loses nothing, and can be repeated.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn a_failed_free_keeps_its_block_and_frees_the_others() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let blocks: Vec<_> = [100, 200, 300]
        .map(|bytes| resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap())
        .into();
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    rig.universe().fail_nth("cuMemFree_v2", 2, 999);
    let error = resource.try_reap().unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuMemFree", code: 999, .. }), "{error}");
    let usage = resource.usage();
    assert_eq!((usage.retired, usage.reserved, usage.total_freed), (200, 200, 400));
    assert_eq!(resource.reap_pending().unwrap(), 200);
    assert_eq!(resource.usage().outstanding(), 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_free_that_fails_at_the_start_of_an_allocation_does_not_fail_it() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let first = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    resource.deallocate(first).unwrap();
    rig.universe().fail_nth("cuMemFree_v2", 1, 999);
    let second = resource.allocate(50, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    assert_eq!((resource.usage().live, resource.usage().retired), (50, 100));
    resource.deallocate(second).unwrap();
    assert_eq!(resource.reap_pending().unwrap(), 150);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn what_one_thread_could_not_free_another_threads_reap_sees_to() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let blocks = [100, 200]
        .map(|bytes| resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap());
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    rig.universe().fail_nth("cuMemFree_v2", 2, 999);
    let hold = rig.universe().hold_nth("cuMemFree_v2", 1);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| resource.reap_pending());
        hold.wait_until_held();
        // Nothing is left for this one, unless the first thread puts something back.
        let second = scope.spawn(|| resource.reap_pending());
        std::thread::sleep(std::time::Duration::from_millis(20));
        hold.release();
        assert!(first.join().unwrap().is_err());
        assert_eq!(second.join().unwrap(), Ok(200));
    });
    drop(resource);
    rig.assert_clean();
}

#[test]
fn an_allocation_that_fails_leaves_the_accounting_as_it_was() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let held = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let before = resource.usage();
    rig.universe().fail_nth("cuMemAlloc_v2", 1, 2);
    let error = resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
    assert!(matches!(error, ResourceError::OutOfMemory { requested: 64, .. }), "{error}");
    rig.universe().fail_nth("cuMemAlloc_v2", 1, 999);
    let error = resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cuMemAlloc failed on device {}: CUDA_ERROR_UNKNOWN (999); retry; if it fails again, look the code up in the documentation of the CUDA driver",
            rig.ordinal()
        )
    );
    assert_eq!(resource.usage(), before);
    resource.deallocate(held).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_block_that_is_dropped_is_leaked_visibly() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    drop(resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap());
    assert_eq!(resource.reap_pending().unwrap(), 0);
    assert_eq!((resource.usage().live, resource.bytes_outstanding()), (100, 100));
    drop(resource);
    let verdict = rig.universe().finish();
    assert!(!verdict.is_clean(), "dropping the resource does not free what may be in use");
}
