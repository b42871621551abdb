//! T4: what a failed call leaves behind.

use std::sync::Arc;

use dmr_core::{
    AllocTag, DeviceMemoryResource, DeviceOps, ResourceError, StreamId, Usage, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

const UNKNOWN: i32 = 999;
const OUT_OF_MEMORY: i32 = 2;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

#[test]
fn a_failed_allocation_changes_nothing() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let held = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let before = resource.usage();
    rig.universe().fail_nth("cuMemAllocFromPoolAsync", 1, UNKNOWN);
    let error = resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cuMemAllocFromPoolAsync failed on device {}: CUDA_ERROR_UNKNOWN (999); retry; if it fails again, look the code up in the documentation of the CUDA driver",
            rig.ordinal()
        )
    );
    // It is tried again when the pool was trimmed.
    rig.universe().fail_nth("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY);
    rig.universe().fail_nth("cuMemAllocFromPoolAsync", 2, OUT_OF_MEMORY);
    match resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err() {
        ResourceError::OutOfMemory { requested, live, retired, free, total, .. } => {
            assert_eq!((requested, live, retired), (64, 100, 0));
            assert!(free < total && total > 0, "{free} of {total}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(resource.usage(), before);
    resource.deallocate(held).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn an_allocation_after_which_the_capture_status_cannot_be_read_changes_nothing() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let stream = rig.stream();
    let _lent = stream.stream().clone();
    // The driver's pool takes memory from the device.
    resource.deallocate(resource.allocate(64, stream.id(), AllocTag::UNTAGGED).unwrap()).unwrap();
    let before = resource.usage();
    // Before the allocation, and after it.
    for nth in [1, 2] {
        rig.universe().fail_nth("cuStreamIsCapturing", nth, UNKNOWN);
        let error = resource.allocate(64, stream.id(), AllocTag::UNTAGGED).unwrap_err();
        let named = matches!(
            error,
            ResourceError::Driver { call: "cuStreamIsCapturing", code: UNKNOWN, .. }
        );
        assert!(named, "{nth}: {error}");
        assert_eq!(resource.usage(), before);
    }
    // The free of what was allocated fails too: the memory is not lost.
    rig.universe().fail_nth("cuStreamIsCapturing", 2, UNKNOWN);
    rig.universe().fail_nth("cuMemFreeAsync", 1, UNKNOWN);
    let block = resource.allocate(64, stream.id(), AllocTag::UNTAGGED).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn a_failed_free_returns_the_block_unchanged() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let stream = rig.stream();
    let mut block = resource.allocate(1000, stream.id(), AllocTag::UNTAGGED).unwrap();
    let before = resource.usage();
    // Alone, and with the look-up of the context that follows.
    for also in [None, Some("cuCtxGetCurrent")] {
        rig.universe().fail_nth("cuMemFreeAsync", 1, UNKNOWN);
        if let Some(also) = also {
            rig.universe().fail_nth(also, 1, UNKNOWN);
        }
        let refused = resource.deallocate(block).unwrap_err();
        assert!(matches!(refused.error, ResourceError::Driver { call: "cuMemFreeAsync", .. }));
        block = refused.block;
        assert_eq!(resource.usage(), before, "{also:?}");
        // It is still a block, and tracked.
        let token = resource.prepare_block_use(block.id(), stream.id(), dmr_core::Access::Write);
        let token = token.unwrap();
        rig.ops().fill_pattern(&block, 0..1000, 7, stream.id()).unwrap();
        resource.finish_uses(token).unwrap();
    }
    resource.deallocate(block).unwrap();
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn a_block_of_another_resource_comes_back_unharmed() {
    let rig = Rig::simulated();
    let [ours, theirs] = [resource(&rig), resource(&rig)];
    // Alike in all but identity, in neighbouring slots of one table.
    let own = ours.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let block = theirs.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let id = block.id();
    let refused = ours.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }), "{refused}");
    assert_eq!(refused.block.id(), id);
    assert_eq!((ours.usage().total_freed, theirs.usage().live), (0, 100));
    theirs.deallocate(refused.block).unwrap();
    ours.deallocate(own).unwrap();
    drop((ours, theirs));
    rig.assert_clean();
}

#[test]
fn a_pool_that_cannot_be_made_as_configured_is_not_made() {
    let rig = Rig::simulated();
    let config = AsyncConfig::new().with_opportunistic_reuse(false);
    for (call, nth) in
        [("cuMemPoolCreate", 1), ("cuMemPoolSetAttribute", 1), ("cuMemPoolSetAttribute", 2)]
    {
        rig.universe().fail_nth(call, nth, UNKNOWN);
        let error = AsyncCudaResource::new(Arc::clone(rig.streams()), config).unwrap_err();
        assert!(matches!(error, ResourceError::Driver { call: failed, .. } if failed == call));
    }
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuMemPoolDestroy"), 2, "no pool is left over");
    rig.assert_clean();
}

#[test]
fn a_block_that_is_dropped_is_leaked_visibly() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    drop(resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap());
    assert_eq!(resource.reap_pending().unwrap(), 0);
    assert_eq!(resource.diagnostics().live_bytes, 100);
    drop(resource);
    let verdict = rig.universe().finish();
    assert!(!verdict.is_clean(), "dropping the resource does not free what may be in use");
}

#[test]
fn a_fresh_resource_holds_nothing() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    assert_eq!(resource.usage(), Usage::default());
    drop(resource);
    rig.assert_clean();
}
