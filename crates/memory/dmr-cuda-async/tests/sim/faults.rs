//! Whatever driver call fails: nothing leaks, nothing races, the accounting stays exact.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceResult,
    StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::{Rig, for_each_driver_call};

const OUT_OF_MEMORY: i32 = 2;
const UNKNOWN: i32 = 999;

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

fn deallocate(resource: &AsyncCudaResource, block: DeviceBlock) {
    if let Err(refused) = resource.deallocate(block) {
        resource.deallocate(refused.block).expect("only one driver call fails");
    }
}

/// Fills the block on a stream, as a declared use.
fn write(rig: &Rig, resource: &AsyncCudaResource, block: &DeviceBlock, stream: StreamId) {
    let uses = [BlockUse::new(block.id(), Access::Write)];
    let tokens = insist(|| resource.prepare_uses(&uses, stream));
    insist(|| rig.ops().fill_pattern(block, 0..block.bytes(), 0, stream));
    // The use stands, whether or not its event could be recorded.
    let _ = resource.finish_uses(tokens);
}

#[test]
fn no_driver_call_that_fails_loses_memory_order_or_accounting() {
    for code in [OUT_OF_MEMORY, UNKNOWN] {
        let prepare = |rig: &Rig| {
            let streams = [rig.stream(), rig.stream(), rig.stream()];
            let pool = Arc::clone(rig.streams());
            (AsyncCudaResource::new(pool, AsyncConfig::new()).unwrap(), streams)
        };
        let failed = for_each_driver_call(code, prepare, |rig, (resource, streams)| {
            let [a, b, c] = [0, 1, 2].map(|nth: usize| streams[nth].id());
            let exact = |live: u64| {
                let usage = resource.usage();
                assert_eq!(usage.live, live);
                assert_eq!(usage.total_allocated, usage.total_freed + usage.outstanding());
            };
            let allocate = |bytes| insist(|| resource.allocate(bytes, a, AllocTag::UNTAGGED));
            let first = allocate(64);
            let second = allocate(128);
            exact(192);
            write(rig, &resource, &first, b);
            write(rig, &resource, &first, c);
            write(rig, &resource, &second, b);
            deallocate(&resource, first);
            exact(128);
            // Inside a window.
            let uses = [BlockUse::new(second.id(), Access::Read)];
            let tokens = insist(|| resource.prepare_uses(&uses, c));
            deallocate(&resource, second);
            exact(0);
            let _ = resource.finish_uses(tokens);
            let third = allocate(256);
            write(rig, &resource, &third, c);
            deallocate(&resource, third);
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
}
