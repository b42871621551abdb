//! Streams are created without a lock held, and a slot whose stream cannot be created stays free.

use std::sync::atomic::{AtomicBool, Ordering};

use dmr_streams::StreamPoolConfig;
use dmr_testkit::{Rig, RigConfig};

const CREATE: &str = "cuStreamCreateWithPriority";
const UNKNOWN: i32 = 999;

fn rig(max_streams: usize) -> Rig {
    let streams = StreamPoolConfig::new().with_max_streams(max_streams);
    Rig::with(RigConfig { streams, simulated: true, ..RigConfig::default() })
}

#[test]
fn while_one_stream_is_being_created_others_are_acquired_and_used() {
    let rig = rig(3);
    let first = rig.stream();
    let hold = rig.universe().hold_nth(CREATE, 1);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| rig.stream().id().slot());
        hold.wait_until_held();
        let other = rig.stream();
        assert_ne!(other.id().slot(), first.id().slot());
        assert!(rig.streams().resolve(other.id()).is_ok());
        assert!(rig.streams().acquire().is_err(), "the slot in the making is taken");
        // Turns leave it out.
        for _ in 0..4 {
            let slot = rig.streams().next().unwrap().slot();
            assert!([first.id().slot(), other.id().slot()].contains(&slot));
        }
        hold.release();
        let slow = slow.join().unwrap();
        assert!(![first.id().slot(), other.id().slot()].contains(&slow));
    });
    drop(first);
    rig.assert_clean();
}

#[test]
fn a_stream_that_cannot_be_created_leaves_its_slot_free() {
    let rig = rig(2);
    let first = rig.stream();
    rig.universe().fail_nth(CREATE, 1, UNKNOWN);
    assert!(rig.streams().acquire().is_err());
    rig.universe().fail_nth(CREATE, 1, UNKNOWN);
    let failed = [rig.streams().next(), rig.streams().next()];
    assert_eq!(failed.iter().filter(|id| id.is_err()).count(), 1);
    let second = rig.stream();
    assert_ne!(second.id().slot(), first.id().slot());
    drop((first, second));
    rig.assert_clean();
}

#[test]
fn streams_end_with_the_last_of_pool_leases_and_streams() {
    let rig = rig(4);
    let universe = rig.universe().clone();
    let leases = [rig.stream(), rig.stream(), rig.stream()];
    let kept = std::sync::Arc::clone(leases[1].stream());
    universe.reset_calls();
    let destroyed = || universe.calls().count("cuStreamDestroy_v2");
    drop(rig);
    assert_eq!(destroyed(), 0, "the leases keep the pool");
    drop(leases);
    assert_eq!(destroyed(), 2);
    drop(kept);
    assert_eq!(destroyed(), 3);
    assert!(universe.finish().is_clean());
}

/// T2: a thread may see each stream in the instant in which another one has made it.
#[test]
fn every_stream_that_is_returned_in_turn_can_be_entered() {
    for _ in 0..200 {
        let rig = rig(6);
        let streams = rig.streams();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let next = streams.next().unwrap();
                    streams.enter(next).map(drop).expect("it was returned just now");
                }
            });
            let made: Vec<_> = (0..3).map(|_| streams.acquire()).collect();
            ended.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            drop(made);
        });
    }
}
