//! The conformance suite over pinned memory, but for the checks of a device that is full: the
//! host's memory has no limit that a test could reach. A budget over pinned memory has one
//! (`dmr-adaptors`).

use std::sync::Arc;

use dmr_core::conformance::{CHECKS, run};
use dmr_pinned::{PinnedKind, PinnedResource};
use dmr_testkit::Rig;

/// The checks of a device that is full.
const OF_A_LIMIT: [&str; 2] =
    ["running_out_of_memory_changes_nothing", "sizes_beyond_the_device_are_refused"];

#[test]
fn pinned_memory_of_each_kind_keeps_the_contract() {
    for kind in PinnedKind::ALL {
        let resource = |rig: &Rig| PinnedResource::new(Arc::clone(rig.streams()), kind);
        let checks = CHECKS.iter().filter(|check| !OF_A_LIMIT.contains(&check.name));
        let mut count = 0;
        for check in checks {
            count += 1;
            run(check.name, || Rig::new().harness(resource)).into_result().unwrap();
        }
        assert_eq!(count, CHECKS.len() - OF_A_LIMIT.len());
    }
}
