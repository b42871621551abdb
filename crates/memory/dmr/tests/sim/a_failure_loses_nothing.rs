//! T4, U13: each driver call of each scenario fails once; nothing is lost and nothing is out of
//! order.

#![cfg(feature = "direct")]

use std::sync::Arc;

use dmr::prelude::*;
use dmr_sim::ReportKind;
use dmr_testkit::Rig;
use dmr_testkit::faults::for_each_driver_call;
use dmr_testkit::scenarios::{SCENARIOS, Stage};

/// `CUDA_ERROR_UNKNOWN`: not one of those after which the device is lost.
const FAILURE: i32 = 999;

fn lose_nothing(make: impl Fn(&Rig) -> Arc<dyn DeviceMemoryResource>) {
    for scenario in SCENARIOS {
        let failed = for_each_driver_call(
            FAILURE,
            |rig| Stage::new(rig, make(rig)),
            |rig, stage| {
                let played = (scenario.play)(&stage);
                // The one failure may come only now.
                let settled = stage.wait_and_check().or_else(|_| stage.wait_and_check());
                let what = format!("{}: played {played:?}", scenario.name);
                assert_eq!(settled, Ok(()), "{what}");
                assert_eq!(stage.resource().usage().outstanding(), 0, "{what}");
                let open = rig.streams().uses().recorded_uses();
                assert_eq!(open, 0, "{what}: ledger entries of blocks that are gone");
                drop(stage);
                let races: Vec<_> =
                    rig.universe().reports().into_iter().filter(|r| r.kind.is_race()).collect();
                assert!(races.is_empty(), "{what}: {races:#?}");
                let leaks = rig.universe().finish().reports;
                let leaked = |report: &dmr_sim::Report| {
                    report.kind == ReportKind::Leak && report.bytes == 4096
                };
                assert!(!leaks.iter().any(leaked), "{what}: {leaks:#?}");
            },
        );
        assert!(failed > 5, "{}: only {failed} calls", scenario.name);
    }
}

#[test]
fn on_the_tracked_direct_backend() {
    lose_nothing(|rig| {
        let streams = Arc::clone(rig.streams());
        Arc::new(Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap())
    });
}

#[cfg(feature = "async")]
#[test]
fn on_the_async_backend() {
    lose_nothing(|rig| {
        Arc::new(AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap())
    });
}
