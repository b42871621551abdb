//! Whatever driver call fails: nothing leaks, the accounting stays exact, no block is lost.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceResult, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::{Rig, for_each_driver_call};

const OUT_OF_MEMORY: i32 = 2;
const UNKNOWN: i32 = 999;

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn no_driver_call_that_fails_loses_memory_or_accounting() {
    for code in [OUT_OF_MEMORY, UNKNOWN] {
        let prepare = |rig: &Rig| DirectCudaResource::new(Arc::clone(rig.streams()));
        let failed = for_each_driver_call(code, prepare, |rig, resource| {
            let exact = |live: u64| {
                let usage = resource.usage();
                assert_eq!(usage.live, live);
                assert_eq!(usage.reserved, usage.live + usage.retired);
                assert_eq!(usage.total_allocated, usage.total_freed + usage.outstanding());
            };
            let allocate =
                |bytes| insist(|| resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED));
            let a = allocate(100);
            let b = allocate(200);
            exact(300);
            resource.deallocate(a).unwrap();
            exact(200);
            let c = allocate(400);
            exact(600);
            resource.deallocate(b).unwrap();
            insist(|| resource.try_reap());
            exact(400);
            resource.deallocate(c).unwrap();
            insist(|| resource.reap_pending());
            exact(0);
            assert_eq!(resource.usage().total_freed, 700);
            drop(resource);
            let verdict = rig.universe().finish();
            let leaks = verdict.to_string();
            // The rig's own buffers are still there, but it has none: it checked nothing.
            assert!(verdict.is_clean(), "{leaks}");
        });
        assert!(failed >= 10, "{failed} calls were failed");
    }
}

#[test]
fn making_a_device_and_its_streams_fails_cleanly_at_every_call() {
    use dmr_sim::Universe;
    use dmr_streams::{Device, StreamPool, StreamPoolConfig};
    let mut failed = 0;
    loop {
        let universe = Universe::new().unwrap();
        let ordinal = universe.ordinal(0);
        let make = || -> Result<_, Box<dyn std::error::Error>> {
            let streams = StreamPool::new(Device::open(ordinal)?, StreamPoolConfig::new())?;
            let leases = (streams.acquire()?, streams.acquire()?);
            Ok((leases, DirectCudaResource::new(streams)))
        };
        universe.fail_call_number(failed + 1, UNKNOWN);
        let made = make();
        universe.clear_faults();
        if made.is_ok() {
            break;
        }
        failed += 1;
        let (leases, resource) = make().expect("it can be repeated");
        let block = resource.allocate(10, leases.1.id(), AllocTag::UNTAGGED).unwrap();
        resource.deallocate(block).unwrap();
        drop((leases, resource));
        assert!(universe.finish().is_clean());
    }
    assert!(failed >= 5, "{failed} calls were failed");
}
