//! Without any one of the records, waits and synchronisations that the library makes, a race.

#![cfg(all(feature = "async", feature = "direct"))]
#![allow(clippy::print_stdout, reason = "what each scenario needs is worth reading")]

use std::collections::BTreeMap;
use std::sync::Arc;

use dmr::prelude::*;
use dmr_testkit::Rig;
use dmr_testkit::scenarios::{SCENARIOS, Scenario, Stage};

/// The calls that order work; without one, something else must be out of order, or it was not
/// needed.
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

/// Plays a scenario with one call swallowed (or none); returns how often each ordering call was
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
    // Frees the pending blocks, whose work is not done yet.
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
            stage.wait_and_check().unwrap();
            assert_eq!(stage.resource().usage().outstanding(), 0, "{name}: {}", scenario.name);
            drop(stage);
            assert_eq!(rig.verdict(), Ok(()), "{name}: {}", scenario.name);
            rig.assert_clean();
        }
    }
}

/// Leaves each ordering call of a scenario out in turn: some of each kind must be missed.
///
/// A call that the simulator does not miss is proved not to be needed there: its verdict is that of
/// an exhaustive search over the order of all operations (dmr-sim's `oracle_agreement`). Most of
/// these calls record a use that no other use comes after.
fn cannot_do_without_any(what: &str) {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == what).unwrap();
    for (name, make) in RESOURCES {
        let (counts, raced) = play(make, scenario, None);
        assert!(!raced, "{name}: {what}");
        let mut needed: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (call, count) in counts {
            let missed = (1..=count).filter(|&n| play(make, scenario, Some((call, n))).1);
            needed.insert(call, missed.collect());
        }
        println!("{name}: {what}: needed {needed:?}");
        // cuMemAlloc is done when it returns: its memory needs no wait on any stream.
        let allocated_in_order = name == "tracked" && what.starts_with("fresh memory");
        for call in ["cuEventRecord", "cuStreamWaitEvent"] {
            let is_needed = !needed[call].is_empty();
            assert_ne!(is_needed, allocated_in_order, "{name}: {what}: {call}");
        }
    }
}

/// A test for each scenario, named by it.
macro_rules! needed_in {
    ($($test:ident: $scenario:literal,)*) => {
        $(#[test]
        fn $test() {
            cannot_do_without_any($scenario);
        })*

        #[test]
        fn every_scenario_has_its_test() {
            let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            assert_eq!(names, [$($scenario),*]);
        }
    };
}

needed_in! {
    a_read_comes_after_a_write: "a read after a write",
    a_write_comes_after_a_read: "a write after a read",
    a_write_comes_after_both_readers: "a write after two readers",
    a_write_comes_after_a_write: "a write after a write",
    a_free_comes_after_another_streams_read: "a free after another stream's read",
    a_free_comes_after_the_home_streams_own_work: "a free after the home stream's own work",
    fresh_memory_is_used_first_on_another_stream: "fresh memory used first on another stream",
    freed_memory_is_taken_over_by_another_stream: "memory that another stream has freed",
    a_launch_comes_after_two_producers: "a launch that uses two blocks of two streams",
    an_order_holds_through_a_third_stream: "an order that holds through a third stream",
    work_is_recorded_after_it_was_submitted: "work that is recorded after it was submitted",
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
