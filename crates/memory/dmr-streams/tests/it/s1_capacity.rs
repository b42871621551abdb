//! S1: a pool leases up to `max_streams` streams, each to one user, then says so.

#![allow(unsafe_code, reason = "asks the driver for the priority of a stream")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaStream, sys};
use dmr_core::ResourceError;
use dmr_streams::{StreamLease, StreamPoolConfig};
use dmr_testkit::{Rig, RigConfig};

fn rig(max_streams: usize) -> Rig {
    let streams = StreamPoolConfig::new().with_max_streams(max_streams);
    Rig::with(RigConfig { streams, ..RigConfig::default() })
}

fn handle(lease: &StreamLease) -> usize {
    lease.stream().cu_stream() as usize
}

/// The priority that the driver reports for a stream.
fn priority_of(stream: &CudaStream) -> i32 {
    let mut priority = i32::MAX;
    // SAFETY: the stream is alive, and the driver writes one `int`.
    unsafe { sys::cuStreamGetPriority(stream.cu_stream(), &mut priority) }.result().unwrap();
    priority
}

/// The priorities that the device of the current context has, from the most to the least urgent.
fn priorities() -> std::ops::RangeInclusive<i32> {
    let mut least = 0;
    let mut greatest = 0;
    // SAFETY: the driver writes one `int` through each pointer.
    unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }.result().unwrap();
    greatest..=least
}

#[test]
fn every_stream_is_leased_once_and_then_the_pool_says_it_has_no_more() {
    let rig = rig(4);
    let mut leases: Vec<_> = (0..4).map(|_| rig.streams().acquire().unwrap()).collect();
    let handles: HashSet<_> = leases.iter().map(handle).collect();
    assert_eq!(handles.len(), 4);

    let error = rig.streams().acquire().unwrap_err();
    assert!(matches!(error, ResourceError::Capacity { limit: 4, .. }), "{error}");
    let advice = ": return one, wait for one with `acquire_timeout`, or raise `max_streams`";
    assert!(error.to_string().ends_with(advice), "{error}");

    let returned = handle(&leases.pop().unwrap());
    assert_eq!(handle(&rig.streams().acquire().unwrap()), returned);
}

#[test]
fn the_first_lease_is_the_default_stream_itself() {
    let rig = rig(4);
    let first = rig.stream();
    let streams = rig.streams();
    assert!(streams.same_stream(first.id(), streams.default_stream()).unwrap());
    let second = rig.stream();
    assert!(!streams.same_stream(second.id(), streams.default_stream()).unwrap());
}

#[test]
fn threads_that_race_for_leases_never_share_one() {
    const STREAMS: usize = 8;
    let rig = rig(STREAMS);
    let held = Mutex::new(HashSet::new());
    let refused = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2 * STREAMS)
            .map(|_| {
                scope.spawn(|| {
                    let mut refused = 0;
                    for _ in 0..200 {
                        match rig.streams().acquire() {
                            Ok(lease) => {
                                assert!(held.lock().unwrap().insert(handle(&lease)));
                                std::thread::yield_now();
                                assert!(rig.streams().resolve(lease.id()).is_ok());
                                assert!(held.lock().unwrap().remove(&handle(&lease)));
                            }
                            Err(ResourceError::Capacity { .. }) => refused += 1,
                            Err(other) => panic!("{other}"),
                        }
                    }
                    refused
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    // What was refused was refused for good reason: all are free again now.
    let all: Vec<_> = (0..STREAMS).map(|_| rig.stream()).collect();
    assert_eq!(all.len(), STREAMS, "after {refused} refusals");
}

#[test]
fn next_goes_round_all_streams_without_a_lease() {
    let rig = rig(3);
    let leased = rig.stream();
    let round: Vec<_> = (0..6).map(|_| rig.streams().next().unwrap()).collect();
    assert_eq!(round[..3], round[3..]);
    assert_eq!(round.iter().collect::<HashSet<_>>().len(), 3);
    for id in &round {
        rig.streams().synchronize(*id).unwrap();
    }
    // What was created in turn can be leased.
    let rest = [rig.stream(), rig.stream()];
    drop(rest);
    // A leased stream takes its turn, and the lease's end does not end the turn's id.
    assert!(rig.streams().same_stream(leased.id(), round[0]).unwrap());
    drop(leased);
    assert!(rig.streams().resolve(round[0]).is_ok());
}

#[test]
fn threads_that_go_round_together_create_each_stream_once() {
    let rig = rig(8);
    let seen = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let id = rig.streams().next().unwrap();
                    let handle = rig.streams().resolve(id).unwrap().cu_stream() as usize;
                    seen.lock().unwrap().insert((id, handle));
                }
            });
        }
    });
    assert_eq!(seen.into_inner().unwrap().len(), 8);
}

#[test]
fn a_stream_keeps_its_priority() {
    let rig = rig(3);
    let urgent = handle(&rig.streams().acquire_with_priority(-1).unwrap());
    assert_ne!(handle(&rig.stream()), urgent, "a free stream of another priority");
    assert_eq!(handle(&rig.streams().acquire_with_priority(-1).unwrap()), urgent);
    // The turn of `next` leaves it out.
    let pool = Arc::clone(rig.streams());
    let round: HashSet<_> = (0..4).map(|_| pool.next().unwrap()).collect();
    let error = pool.acquire_with_priority(-2).unwrap_err();
    assert!(error.to_string().starts_with("all 0 streams of this priority are in use"), "{error}");
    let handles: Vec<_> =
        round.iter().map(|&id| pool.resolve(id).unwrap().cu_stream() as usize).collect();
    assert_eq!(handles.len(), 2);
    assert!(!handles.contains(&urgent));
}

#[test]
fn the_driver_reports_the_priority_that_was_asked_for() {
    let rig = rig(32);
    rig.device().bind().unwrap();
    let range = priorities();
    assert!(range.contains(&-1), "{range:?}: this device cannot tell priorities apart");
    for priority in range.clone() {
        let lease = rig.streams().acquire_with_priority(priority).unwrap();
        assert_eq!(priority_of(lease.stream()), priority);
    }
    // Priorities outside of the device's range become its nearest.
    for (asked, given) in [(range.start() - 1, *range.start()), (range.end() + 1, *range.end())] {
        let lease = rig.streams().acquire_with_priority(asked).unwrap();
        assert_eq!(priority_of(lease.stream()), given, "asked for {asked}");
    }
}

#[test]
fn the_streams_of_a_pool_have_the_priority_of_its_configuration() {
    let streams = StreamPoolConfig::new().with_max_streams(3).with_priority(-1);
    let rig = Rig::with(RigConfig { streams, ..RigConfig::default() });
    let pool = rig.streams();
    let lease = rig.stream();
    let ids = [pool.default_stream(), pool.next().unwrap(), pool.next().unwrap(), lease.id()];
    for id in ids {
        assert_eq!(priority_of(&pool.resolve(id).unwrap()), -1, "{id}");
    }
    assert_eq!(priority_of(pool.reclaim_stream().unwrap().stream()), -1);
}

#[test]
fn a_pool_has_at_least_its_default_stream() {
    let rig = rig(0);
    assert_eq!(rig.streams().max_streams(), 1);
    let lease = rig.stream();
    assert!(rig.streams().acquire().is_err());
    drop(lease);
}
