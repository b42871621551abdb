//! The whole contract holds around a guard, whatever it guards.
//!
//! One check after the other: on a GPU one of them takes all its memory.

#![cfg(feature = "debug-guard")]

use crate::a3::{BACKENDS, BOTH, Backend, guarded, layer};
use dmr_adaptors::guard::DebugGuardLayer;
use dmr_core::conformance::{Harness, Report, check_forwarding, run_all};
use dmr_fake::FakeHarness;
use dmr_testkit::Rig;

#[test]
fn the_guard_keeps_the_contract_over_every_backend_in_both_modes() -> Result<(), Report> {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        run_all(|| Rig::small().harness(|rig| backend.guarded(rig, checks))).into_result()?;
    }
    Ok(())
}

#[test]
fn the_guard_keeps_the_contract_where_streams_run_as_late_as_they_may() -> Result<(), Report> {
    for (tracks, checks) in [true, false].into_iter().flat_map(|t| BOTH.map(|c| (t, c))) {
        let make = || {
            FakeHarness::wrapped(tracks, |fake, ops| {
                guarded(fake, DebugGuardLayer::new(ops).with_checks(checks))
            })
        };
        run_all(make).into_result()?;
    }
    Ok(())
}

/// Except for pages, which it does not have, and for growth: guarded blocks do not grow.
#[test]
fn every_call_reaches_the_inner_resource() {
    for (backend, checks) in BACKENDS.into_iter().flat_map(|b| BOTH.map(|checks| (b, checks))) {
        let harness = Rig::new().harness(|rig| backend.make(rig));
        let config = layer(harness.rig()).with_checks(checks);
        let missed = check_forwarding(&harness, |spy| guarded(spy, config)).unwrap_err();
        let expected =
            "not forwarded exactly once: try_grow (0 calls), virtual_memory (returns None)";
        assert_eq!(missed, expected);
        assert_eq!(harness.resource().bytes_outstanding(), 0);
    }
}

#[test]
fn it_shows_itself_and_what_it_guards_in_one_line() {
    let rig = Rig::new();
    let guard = guarded(Backend::Async.make(&rig), layer(&rig).with_red_zone(1025));
    let inner = format!("Async(device {})", rig.ordinal());
    assert_eq!(
        format!("{guard} {guard:?}"),
        format!("DebugGuard(1280 B, {inner}) DebugGuard(1280 B, {inner})")
    );
    drop(guard.into_upstream());
}
