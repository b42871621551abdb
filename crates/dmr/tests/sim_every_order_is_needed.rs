//! Without any one of the records, waits and synchronisations that the library makes, a race.

#![allow(clippy::print_stdout, reason = "what each scenario needs is worth reading")]

use std::collections::BTreeMap;
use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;
use dmr_testkit::scenarios::{SCENARIOS, Scenario, Stage};

/// What orders work; without it, something else must be out of order, or it was not needed.
const ORDERING: [&str; 4] =
    ["cuEventRecord", "cuStreamWaitEvent", "cuStreamSynchronize", "cuEventSynchronize"];

type Make = fn(&Rig) -> Arc<dyn DeviceMemoryResource>;

fn tracked(rig: &Rig) -> Arc<dyn DeviceMemoryResource> {
    let streams = Arc::clone(rig.streams());
    Arc::new(Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap())
}

fn asynchronous(rig: &Rig) -> Arc<dyn DeviceMemoryResource> {
    Arc::new(AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap())
}

const RESOURCES: [(&str, Make); 2] = [("tracked", tracked), ("async", asynchronous)];

/// Plays a scenario with one call swallowed (or none); answers how often each ordering call was
/// made, and whether a race was found.
fn play(
    make: Make,
    scenario: &Scenario,
    swallow: Option<(&str, u64)>,
) -> (BTreeMap<&'static str, u64>, bool) {
    let rig = Rig::simulated();
    let universe = rig.universe().clone();
    let stage = Stage::new(&rig, make(&rig));
    universe.reset_calls();
    if let Some((call, n)) = swallow {
        universe.swallow_nth(call, n);
    }
    (scenario.play)(&stage).unwrap();
    // Frees that the resource has put off are made now: nothing is done yet.
    stage.resource().try_reap().unwrap();
    let calls = universe.calls();
    universe.clear_faults();
    let counts = ORDERING.into_iter().map(|call| (call, calls.count(call))).collect();
    let raced = universe.reports().iter().any(|report| report.kind.is_race());
    (counts, raced)
}

#[test]
fn every_scenario_is_ordered() {
    for (name, make) in RESOURCES {
        for scenario in SCENARIOS {
            let rig = Rig::simulated();
            let stage = Stage::new(&rig, make(&rig));
            (scenario.play)(&stage).unwrap();
            stage.settle().unwrap();
            assert_eq!(stage.resource().usage().outstanding(), 0, "{name}: {}", scenario.name);
            drop(stage);
            assert_eq!(rig.verdict(), Ok(()), "{name}: {}", scenario.name);
            rig.assert_clean();
        }
    }
}

/// What the simulator does not miss, it proves not to be needed there: its verdict is that of an
/// exhaustive search over the order of all operations (dmr-sim's `oracle_agreement`). Most of what
/// is spared is the record of a use that nobody comes after.
#[test]
fn no_ordering_call_can_be_left_out() {
    for (name, make) in RESOURCES {
        for scenario in SCENARIOS {
            let (counts, raced) = play(make, scenario, None);
            assert!(!raced, "{name}: {}", scenario.name);
            let mut needed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
            for (call, count) in counts {
                let missed = (1..=count).filter(|&n| play(make, scenario, Some((call, n))).1);
                needed.insert(call, missed.collect());
            }
            println!("{name}: {}: needed {needed:?}", scenario.name);
            // cuMemAlloc is done when it returns: its memory needs no wait on any stream.
            let allocated_in_order = name == "tracked" && scenario.name.starts_with("fresh memory");
            for call in ["cuEventRecord", "cuStreamWaitEvent"] {
                let is_needed = !needed[call].is_empty();
                assert_ne!(is_needed, allocated_in_order, "{name}: {}: {call}", scenario.name);
            }
        }
    }
}

/// The free's own waits: without them, memory goes back while it is in use.
#[test]
fn no_wait_of_a_free_can_be_left_out() {
    for what in ["a free after another stream's read", "a free after the home stream's own work"] {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == what).unwrap();
        let (counts, _) = play(asynchronous, scenario, None);
        let waits = counts["cuStreamWaitEvent"];
        let missed = |n: &u64| play(asynchronous, scenario, Some(("cuStreamWaitEvent", *n))).1;
        assert!((1..=waits).filter(missed).count() >= 3, "{what}: {waits} waits");
    }
}
