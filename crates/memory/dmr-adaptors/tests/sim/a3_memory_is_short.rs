//! A3: memory in quarantine is there for an allocation, although its check takes a while.

#![cfg(feature = "debug-guard")]

use crate::a3::{BOTH, Backend, TAG, guarded, layer};
use dmr_core::DeviceMemoryResource;
use dmr_sim::{Policy, Universe};
use dmr_testkit::Rig;

#[test]
fn an_allocation_waits_for_the_checks_of_the_memory_that_it_needs() {
    for backend in [Backend::Direct, Backend::TrackedDirect, Backend::Async] {
        for checks in BOTH {
            let universe =
                Universe::builder().policy(Policy::Lazy).capacity(Rig::SMALL).build().unwrap();
            let rig = Rig::in_universe(&universe);
            let home = rig.stream();
            let config = layer(&rig).with_checks(checks).with_quarantine(usize::MAX, usize::MAX);
            let guard = guarded(backend.make(&rig), config);
            let bytes = rig.device().total_memory() as usize / 3;
            for _ in 0..5 {
                let block = guard.allocate(bytes, home.id(), TAG).unwrap();
                guard.deallocate(block).unwrap();
            }
            guard.reap_pending().unwrap();
            assert_eq!(guard.bytes_outstanding(), 0);
            drop((guard, home, universe));
            rig.assert_clean();
        }
    }
}
