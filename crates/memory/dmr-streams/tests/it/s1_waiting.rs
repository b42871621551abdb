//! S1: a call with a timeout waits for a stream, and gets one that is returned meanwhile, by
//! whichever thread.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dmr_core::ResourceError;
use dmr_streams::StreamPoolConfig;
use dmr_testkit::{Rig, RigConfig};

/// Long enough that a test which waits for it has failed.
const FOREVER: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn rig(max_streams: usize) -> Rig {
    let streams = StreamPoolConfig::new().with_max_streams(max_streams);
    Rig::with(RigConfig { streams, ..RigConfig::default() })
}

#[test]
fn a_call_that_waits_gets_the_stream_that_another_thread_returns() {
    let rig = rig(1);
    let held = rig.stream();
    let stream = held.stream().cu_stream() as usize;
    let before = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lease = rig.streams().acquire_timeout(FOREVER).unwrap();
            lease.stream().cu_stream() as usize
        });
        thread::sleep(SHORT);
        assert!(!waiting.is_finished());
        drop(held);
        assert_eq!(waiting.join().unwrap(), stream);
    });
    assert!(before.elapsed() < FOREVER / 2);
}

#[test]
fn a_call_does_not_wait_while_a_stream_is_free_and_refuses_when_its_time_is_over() {
    let rig = rig(2);
    let held = [(); 2].map(|()| rig.streams().acquire_timeout(Duration::ZERO).unwrap());
    let before = Instant::now();
    let error = rig.streams().acquire_timeout(SHORT).unwrap_err();
    assert!(before.elapsed() >= SHORT);
    assert!(matches!(error, ResourceError::Capacity { limit: 2, .. }), "{error}");
    assert!(error.to_string().contains("`max_streams`"), "{error}");
    drop(held);
    assert!(rig.streams().acquire_timeout(Duration::MAX).is_ok());
}

#[test]
fn calls_that_wait_are_served_in_the_order_of_their_arrival() {
    const WAITING: usize = 4;
    let rig = rig(1);
    let held = rig.stream();
    let served = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..WAITING {
            let rig = &rig;
            let served = &served;
            scope.spawn(move || {
                let lease = rig.streams().acquire_timeout(FOREVER).unwrap();
                served.lock().unwrap().push(number);
                drop(lease);
            });
            thread::sleep(SHORT);
        }
        drop(held);
    });
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn a_call_waits_for_a_stream_of_its_own_priority_and_not_for_one_that_cannot_come() {
    let rig = rig(2);
    let normal = rig.stream();
    let urgent = rig.streams().acquire_with_priority(-1).unwrap();
    let before = Instant::now();
    let none = rig.streams().acquire_with_priority_timeout(-2, FOREVER).unwrap_err();
    assert!(none.to_string().contains("use another priority"), "{none}");
    assert!(before.elapsed() < FOREVER / 2);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.streams().acquire_with_priority_timeout(-1, FOREVER));
        thread::sleep(SHORT);
        drop(normal);
        thread::sleep(SHORT);
        assert!(!waiting.is_finished(), "a stream of another priority was returned");
        drop(urgent);
        assert!(waiting.join().unwrap().is_ok());
    });
}

/// 16 parallel queries on 3 streams, each of which finds one: none of the calls is refused, and no
/// two have one stream.
#[test]
fn more_threads_than_streams_all_get_one_in_turn() {
    let rig = rig(3);
    let held = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let lease = rig.streams().acquire_timeout(FOREVER).unwrap();
                    let stream = lease.stream().cu_stream() as usize;
                    assert!(held.lock().unwrap().insert(stream));
                    assert!(held.lock().unwrap().remove(&stream));
                }
            });
        }
    });
}

/// Timeouts end while leases are returned. Whatever the outcome of each call, no wake-up is lost: a
/// call without a short timeout that waits beside them is served each time.
#[test]
fn timeouts_that_race_with_returned_leases_lose_no_wake_up() {
    let rig = rig(1);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let rig = &rig;
            let refused = &refused;
            scope.spawn(move || {
                for round in 0..2_000_u64 {
                    let timeout = Duration::from_nanos((thread * 977 + round * 131) % 40_000);
                    match rig.streams().acquire_timeout(timeout) {
                        Ok(lease) => drop(lease),
                        Err(ResourceError::Capacity { .. }) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2_000 {
                drop(rig.streams().acquire_timeout(FOREVER).unwrap());
            }
        });
    });
    assert!(rig.streams().acquire().is_ok(), "after {refused:?} refusals");
}
