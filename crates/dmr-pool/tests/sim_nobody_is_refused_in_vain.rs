//! Memory that one thread gives back to upstream is not missed by another that needs it.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use dmr_core::DeviceMemoryResource;
use support::stage::{ALL, Stage, tight};
use support::{UPSTREAMS, Upstream};

/// One thread gives back all that the pool has, and is held inside of this driver call; another one
/// asks for it.
fn whoever_asks_waits_for_what_is_in_hand(upstream: Upstream, call: &str) {
    let stage = Stage::new(upstream, tight());
    let [a, b, _] = stage.streams();
    stage.pass(a, ALL, 1);
    stage.rig.device().synchronize().unwrap();
    thread::scope(|scope| {
        let hold = stage.universe().hold_nth(call, 1);
        let trims = scope.spawn(|| stage.pool.trim_to(0));
        hold.wait_until_held();
        let allocates = scope.spawn(|| stage.try_allocate(b, ALL));
        // Long enough to be refused.
        thread::sleep(Duration::from_millis(50));
        hold.release();
        trims.join().unwrap().unwrap();
        stage.free(allocates.join().unwrap().unwrap());
    });
    assert_eq!(stage.pool.usage().outstanding(), 0);
    stage.end();
}

#[test]
fn a_segment_that_is_given_back_is_waited_for() {
    whoever_asks_waits_for_what_is_in_hand(Upstream::Async, "cuMemFreeAsync");
}

#[test]
fn a_page_that_is_unmapped_is_waited_for() {
    whoever_asks_waits_for_what_is_in_hand(Upstream::Virtual, "cuMemUnmap");
}

#[test]
fn a_page_that_is_destroyed_is_waited_for() {
    whoever_asks_waits_for_what_is_in_hand(Upstream::Virtual, "cuMemRelease");
}

#[test]
fn where_nothing_is_on_its_way_nobody_waits() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        stage.pass(a, ALL, 1);
        stage.rig.device().synchronize().unwrap();
        stage.pool.trim_to(0).unwrap();
        let block = stage.allocate(a, ALL);
        let before = Instant::now();
        stage.try_allocate(b, ALL).unwrap_err();
        assert!(before.elapsed() < Duration::from_millis(500), "{upstream:?}");
        stage.free(block);
        stage.end();
    }
}
