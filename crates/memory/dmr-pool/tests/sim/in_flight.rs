//! The host waits for memory in flight only where that could serve the request, and holds no other
//! thread up meanwhile.

use std::thread;

use dmr_core::ResourceError;
use dmr_pool::PoolConfig;

use crate::support::stage::{ALL, Stage, tight};
use crate::support::{MIB, UPSTREAMS, Upstream};

const QUARTER: usize = 512 << 10;

/// The calls in which the host waits.
const WAITS: [&str; 2] = ["cuEventSynchronize", "cuStreamSynchronize"];

fn waits(stage: &Stage, calls: impl FnOnce()) -> u64 {
    let count = || WAITS.map(|call| stage.universe().calls().count(call)).iter().sum::<u64>();
    let before = count();
    calls();
    count() - before
}

#[test]
fn a_request_that_no_memory_in_flight_could_serve_is_refused_without_a_wait() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, c] = stage.streams();
        let kept = stage.allocate(a, ALL / 2);
        let used = stage.allocate(a, ALL / 4);
        stage.write(b, &used, 1);
        stage.free(used);
        for stream in [a, b, c] {
            let waited = waits(&stage, || {
                let refused = stage.try_allocate(stream, ALL / 2 + 256);
                assert!(matches!(refused, Err(ResourceError::OutOfMemory { .. })), "{refused:?}");
            });
            assert_eq!(waited, 0, "{upstream:?}");
        }
        stage.free(kept);
        stage.pass(c, ALL, 2);
        stage.end();
    }
}

/// Two streams with four blocks each. Two neighbours of the first are in flight, and one block of
/// the second.
fn with_two_neighbours_in_flight(upstream: Upstream) -> (Stage, Vec<dmr_core::DeviceBlock>) {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_maximum_size(4 * MIB);
    let stage = Stage::new(upstream, config.with_page_size(2 * MIB));
    let [_, b, c] = stage.streams();
    let mut of_b: Vec<_> = (0..4).map(|_| stage.allocate(b, QUARTER)).collect();
    let mut of_c: Vec<_> = (0..4).map(|_| stage.allocate(c, QUARTER)).collect();
    of_b.sort_by_key(|block| block.ptr());
    for block in of_b.drain(1..3) {
        stage.write(c, &block, 1);
        stage.free(block);
    }
    let block = of_c.pop().unwrap();
    stage.write(b, &block, 1);
    stage.free(block);
    of_b.append(&mut of_c);
    (stage, of_b)
}

#[test]
fn the_host_waits_for_the_neighbours_that_would_suffice_and_for_nothing_else() {
    for upstream in UPSTREAMS {
        let (stage, kept) = with_two_neighbours_in_flight(upstream);
        let [a, ..] = stage.streams();
        let mut found = None;
        let waited = waits(&stage, || found = Some(stage.allocate(a, 2 * QUARTER)));
        assert!((1..=2).contains(&waited), "{upstream:?}: {waited} waits");
        kept.into_iter().chain(found).for_each(|block| stage.free(block));
        stage.end();
    }
}

#[test]
fn a_thread_that_waits_for_memory_holds_no_other_thread_up() {
    for upstream in UPSTREAMS {
        let (stage, mut kept) = with_two_neighbours_in_flight(upstream);
        let [a, b, c] = stage.streams();
        thread::scope(|scope| {
            let hold = stage.universe().hold_nth("cuEventSynchronize", 1);
            let waits = scope.spawn(|| stage.allocate(a, 2 * QUARTER));
            hold.wait_until_held();
            // A warm pair on each of the other streams, and a free with a use elsewhere.
            for stream in [b, c] {
                let at = kept.iter().position(|block| block.alloc_stream() == stream).unwrap();
                stage.free(kept.swap_remove(at));
                kept.push(stage.allocate(stream, QUARTER));
            }
            hold.release();
            kept.push(waits.join().unwrap());
        });
        kept.into_iter().for_each(|block| stage.free(block));
        stage.end();
    }
}
