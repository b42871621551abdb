//! The conformance suite over RMM's resources, tracked and not.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use dmr_core::conformance::run_all;
use dmr_rmm::{RmmConfig, RmmKind};
use dmr_testkit::Rig;

use crate::support::{resource, small, tracked};

#[test]
fn rmms_resources_keep_the_contract() {
    let mut failed = Vec::new();
    for kind in RmmKind::ALL {
        let of = |report: dmr_core::conformance::Report, how| {
            report.into_result().err().map(|report| format!("{kind}, {how}: {report}"))
        };
        let with = |rig: &Rig| tracked(rig.streams(), fitting(kind, rig));
        failed.extend(of(run_all(|| Rig::small().harness(with)), "tracked"));
        let without = |rig: &Rig| resource(rig.streams(), fitting(kind, rig));
        failed.extend(of(run_all(|| Rig::small().harness(without)), "not tracked"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Returns settings with which a block of an eighth of the device fits, whatever its size, and
/// several resources: some checks leak one.
fn fitting(kind: RmmKind, rig: &Rig) -> RmmConfig {
    let total = rig.streams().device().total_memory();
    match kind {
        RmmKind::Arena => small(kind).with_initial_bytes((total / 6).max(6 << 20)),
        _ => small(kind),
    }
}
