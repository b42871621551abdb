//! T7: a free that fails after its window has closed leaves the block retired, for the next reap.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

const UNKNOWN: i32 = 999;
const OUT_OF_MEMORY: i32 = 2;

/// A resource with `blocks` retired blocks of 1000 bytes whose frees have failed.
fn with_failed_frees(rig: &Rig, blocks: u64) -> AsyncCudaResource {
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let [home, other] = [rig.stream(), rig.stream()];
    let held: Vec<_> = (0..blocks)
        .map(|_| resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap())
        .collect();
    let uses: Vec<_> = held.iter().map(|block| BlockUse::new(block.id(), Access::Write)).collect();
    let tokens = resource.prepare_uses(&uses, other.id()).unwrap();
    for block in held {
        resource.deallocate(block).unwrap();
    }
    for nth in 1..=blocks {
        rig.universe().fail_nth("cuMemFreeAsync", nth, UNKNOWN);
    }
    // Its own work is done; what the frees say is for a reap.
    resource.finish_uses(tokens).unwrap();
    rig.universe().clear_faults();
    assert_eq!(resource.usage().retired, 1000 * blocks);
    resource
}

#[test]
fn each_reap_tries_again_and_stops_at_no_failure() {
    let rig = Rig::simulated();
    let resource = with_failed_frees(&rig, 3);
    rig.universe().fail_nth("cuMemFreeAsync", 1, UNKNOWN);
    let error = resource.try_reap().unwrap_err();
    assert!(matches!(error, ResourceError::Driver { call: "cuMemFreeAsync", code: UNKNOWN, .. }));
    assert_eq!((resource.usage().retired, resource.usage().total_freed), (1000, 2000));
    rig.universe().fail_nth("cuMemFreeAsync", 1, UNKNOWN);
    assert!(resource.reap_pending().is_err());
    assert_eq!(resource.reap_pending().unwrap(), 1000);
    assert_eq!((resource.bytes_outstanding(), resource.usage().total_freed), (0, 3000));
    drop(resource);
    rig.assert_clean();
}

#[test]
fn an_allocation_that_finds_no_memory_frees_what_is_retired_and_tries_once_more() {
    let rig = Rig::simulated();
    let resource = with_failed_frees(&rig, 2);
    let home = rig.stream();
    rig.universe().fail_nth("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY);
    let block = resource.allocate(10, home.id(), AllocTag::UNTAGGED).unwrap();
    assert_eq!((resource.usage().live, resource.usage().retired), (10, 0));
    resource.deallocate(block).unwrap();
    drop((resource, home));
    rig.assert_clean();
}

#[test]
fn dropping_the_resource_frees_what_is_retired() {
    let rig = Rig::simulated();
    drop(with_failed_frees(&rig, 2));
    rig.assert_clean();
}
