//! T4: whatever driver call fails below RMM, the accounting stays exact and the call can be
//! repeated. What RMM does not report it loses itself: that is not tested.

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceResult};
use dmr_rmm::RmmKind;
use dmr_testkit::for_each_driver_call;

use crate::support::{small, tracked};

/// Makes the call again, if it has failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

#[test]
fn no_driver_call_that_fails_changes_the_accounting() {
    for kind in RmmKind::ALL {
        for code in [2, 999] {
            let failed = for_each_driver_call(
                code,
                |rig| (tracked(rig.streams(), small(kind)), rig.stream()),
                |_, (resource, stream)| {
                    let exact = |live: u64| {
                        let usage = resource.usage();
                        assert_eq!(usage.live, live, "{kind}");
                        assert_eq!(usage.total_allocated, usage.total_freed + live, "{kind}");
                    };
                    let allocate = |bytes| {
                        insist(|| resource.allocate(bytes, stream.id(), AllocTag::UNTAGGED))
                    };
                    let a = allocate(100);
                    let b = allocate(2 << 20);
                    exact(100 + (2 << 20));
                    let freed = resource.deallocate(a);
                    freed.or_else(|back| resource.deallocate(back.block)).unwrap();
                    exact(2 << 20);
                    let freed = resource.deallocate(b);
                    freed.or_else(|back| resource.deallocate(back.block)).unwrap();
                    exact(0);
                },
            );
            assert!(failed >= 4, "{kind}: {failed} calls were failed");
        }
    }
}
