//! Whatever driver call fails under `Tracked`: nothing leaks, nothing races, the accounting stays
//! exact.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceResult, StreamId,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::{Rig, for_each_driver_call};

const UNKNOWN: i32 = 999;

type Resource = Tracked<DirectCudaResource>;

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

fn give_back(resource: &Resource, block: DeviceBlock) {
    if let Err(refused) = resource.deallocate(block) {
        resource.deallocate(refused.block).expect("only one driver call fails");
    }
}

fn write(rig: &Rig, resource: &Resource, block: &DeviceBlock, stream: StreamId) {
    let token = insist(|| resource.prepare_block_use(block.id(), stream, Access::Write));
    insist(|| rig.ops().fill_pattern(block, 0..block.bytes(), 0, stream));
    // The use stands, whether or not its event could be recorded.
    let _ = resource.finish_block_use(token);
}

#[test]
fn no_driver_call_that_fails_loses_memory_order_or_accounting() {
    let prepare = |rig: &Rig| {
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
        (Tracked::new(direct, Arc::clone(rig.streams())).unwrap(), streams)
    };
    let failed = for_each_driver_call(UNKNOWN, prepare, |rig, (resource, streams)| {
        let [a, b, c] = [0, 1, 2].map(|nth: usize| streams[nth].id());
        let exact = |live: u64| {
            let usage = resource.usage();
            assert_eq!(usage.live, live);
            assert_eq!(usage.total_allocated, usage.total_freed + usage.outstanding());
        };
        let allocate = |bytes| insist(|| resource.allocate(bytes, a, AllocTag::UNTAGGED));
        let (first, second) = (allocate(64), allocate(128));
        exact(192);
        write(rig, &resource, &first, b);
        write(rig, &resource, &first, c);
        give_back(&resource, first);
        exact(128);
        // Inside a window.
        let token = insist(|| resource.prepare_block_use(second.id(), c, Access::Read));
        give_back(&resource, second);
        exact(0);
        let _ = resource.finish_block_use(token);
        let third = allocate(256);
        write(rig, &resource, &third, c);
        give_back(&resource, third);
        insist(|| resource.try_reap());
        insist(|| resource.reap_pending());
        exact(0);
        assert_eq!((resource.bytes_outstanding(), resource.usage().total_freed), (0, 448));
        drop((resource, streams));
        let verdict = rig.universe().finish();
        assert!(verdict.is_clean(), "{verdict}");
    });
    assert!(failed >= 30, "{failed} calls were failed");
}
