//! An upstream that has refused memory gets the next request only before an allocation or a growth
//! is refused.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::stage::Stage;
use crate::support::{MIB, Upstream, pool_over, rig};
use dmr_core::{AllocTag, DeviceMemoryResource, wait_at_most};
use dmr_pool::PoolConfig;
use dmr_sim::Policy;
use dmr_testkit::HeldStream;

/// The driver's calls that create memory.
const CREATES: [&str; 3] = ["cuMemCreate", "cuMemAllocFromPoolAsync", "cuMemAlloc_v2"];

/// The device has 32 MiB, all of which the pool has, in the arena of one stream.
fn full(upstream: Upstream) -> Stage {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
    let stage = Stage::on(rig(Policy::Eager, 0, 32 * MIB), upstream, config);
    let [a, ..] = stage.streams();
    let mut held = Vec::new();
    while let Ok(block) = stage.try_allocate(a, 1 << 20) {
        held.push(block);
    }
    assert!(held.len() > 20, "{}", held.len());
    held.into_iter().for_each(|block| stage.free(block));
    stage
}

#[test]
fn memory_of_other_streams_costs_no_call_of_a_full_upstream() {
    for upstream in [Upstream::Async, Upstream::Virtual] {
        let stage = full(upstream);
        let [_, b, c] = stage.streams();
        stage.universe().reset_calls();
        let mut held = Vec::new();
        for stream in [b, c, b, c, b, c] {
            held.extend((0..3).map(|_| stage.allocate(stream, 300 << 10)));
        }
        let calls = stage.universe().calls();
        for call in CREATES {
            assert_eq!(calls.count(call), 0, "{upstream:?}: {calls:?}");
        }
        held.into_iter().for_each(|block| stage.free(block));
        stage.end();
    }
}

#[test]
fn an_upstream_that_has_memory_again_gets_a_request_before_an_allocation_is_refused() {
    for upstream in [Upstream::Async, Upstream::Virtual] {
        let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
        let stage = Stage::on(rig(Policy::Eager, 0, 32 * MIB), upstream, config);
        let [a, ..] = stage.streams();
        let other = pool_over(Upstream::Virtual, &stage.rig, config);
        let theirs = other.allocate(16 << 20, a, AllocTag::UNTAGGED).unwrap();
        let mut held = Vec::new();
        while let Ok(block) = stage.try_allocate(a, 1 << 20) {
            held.push(block);
        }
        other.deallocate(theirs).unwrap();
        stage.rig.device().synchronize().unwrap();
        other.trim_to(0).unwrap();
        // Some of it is the pool's, and the rest is upstream's.
        held.drain(..4).for_each(|block| stage.free(block));
        held.push(stage.try_allocate(a, 12 << 20).expect("memory that upstream has again"));
        let before = held.len();
        while let Ok(block) = stage.try_allocate(a, 1 << 20) {
            held.push(block);
        }
        assert!(held.len() >= before + 4, "{upstream:?}: {before} and {}", held.len());
        held.into_iter().for_each(|block| stage.free(block));
        drop(other);
        stage.end();
    }
}

#[test]
fn an_upstream_that_frees_memory_of_others_for_a_request_is_asked_again() {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
    let stage = Stage::on(rig(Policy::Lazy, 0, 32 * MIB), Upstream::Virtual, config);
    let [a, b, _] = stage.streams();
    let theirs = stage.pool.upstream();
    let block = theirs.allocate(16 << 20, b, AllocTag::UNTAGGED).unwrap();
    stage.rig.delay(b);
    theirs.deallocate(block).unwrap();
    stage.free(stage.try_allocate(a, 24 << 20).unwrap());
    stage.end();
}

#[test]
fn an_upstream_that_has_memory_again_is_asked_before_a_block_does_not_grow() {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
    let stage = Stage::on(rig(Policy::Eager, 0, 32 * MIB), Upstream::Virtual, config);
    let [a, ..] = stage.streams();
    let other = pool_over(Upstream::Virtual, &stage.rig, config);
    let theirs = other.allocate(16 << 20, a, AllocTag::UNTAGGED).unwrap();
    let mut block = stage.allocate(a, 1 << 20);
    let grow = |block: &mut dmr_core::DeviceBlock| {
        let bytes = block.bytes() + (1 << 20);
        stage.pool.try_grow(block, bytes).unwrap()
    };
    while grow(&mut block) {}
    let before = block.bytes();
    other.deallocate(theirs).unwrap();
    stage.rig.device().synchronize().unwrap();
    other.trim_to(0).unwrap();
    while grow(&mut block) {}
    assert!(block.bytes() >= before + (12 << 20), "{before} and {}", block.bytes());
    stage.free(block);
    drop(other);
    stage.end();
}

#[test]
fn an_upstream_waits_no_longer_than_the_thread_lets_it() {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
    let stage = Stage::on(rig(Policy::Lazy, 0, 32 * MIB), Upstream::Virtual, config);
    let [a, b, _] = stage.streams();
    let resource = stage.pool.upstream();
    let allocate = |stream| resource.allocate(24 << 20, stream, AllocTag::UNTAGGED);
    let block = allocate(b).unwrap();
    let held = HeldStream::hold(stage.rig.streams(), b);
    resource.deallocate(block).unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(30)] {
        let start = Instant::now();
        let refused = wait_at_most(limit, || allocate(a));
        assert!(start.elapsed() >= limit);
        assert!(refused.is_err(), "{refused:?}");
    }
    drop(held);
    resource.deallocate(allocate(a).unwrap()).unwrap();
    stage.end();
}

/// Another thread, without a limit, frees retired blocks and waits for the device meanwhile.
/// For a larger block than what was freed, a pool of the driver waits, too.
fn a_deadline_is_kept_while_another_thread_waits(kind: Upstream, of_pool: bool) {
    let config = PoolConfig::fast().with_growth(2 * MIB).with_page_size(2 * MIB);
    let stage = Stage::on(rig(Policy::Lazy, 0, 32 * MIB), kind, config);
    let [a, b, c] = stage.streams();
    let upstream = stage.pool.upstream();
    let resource: &dyn DeviceMemoryResource = if of_pool { &stage.pool } else { upstream };
    let allocate = |stream| resource.allocate(24 << 20, stream, AllocTag::UNTAGGED);
    let block = upstream.allocate(20 << 20, b, AllocTag::UNTAGGED).unwrap();
    stage.rig.delay(b);
    upstream.deallocate(block).unwrap();
    thread::scope(|scope| {
        let hold = stage.universe().hold_nth("cuEventSynchronize", 1);
        let waits = scope.spawn(|| allocate(a));
        hold.wait_until_held();
        let (sender, receiver) = channel();
        scope.spawn(move || sender.send(wait_at_most(Duration::ZERO, || allocate(c))).unwrap());
        let refused = receiver.recv_timeout(Duration::from_secs(10));
        hold.release();
        refused.expect("the deadline was not kept").unwrap_err();
        resource.deallocate(waits.join().unwrap().unwrap()).unwrap();
    });
    stage.end();
}

#[test]
fn a_deadline_is_kept_while_another_thread_waits_in_the_upstream() {
    for kind in [Upstream::Async, Upstream::Virtual] {
        a_deadline_is_kept_while_another_thread_waits(kind, false);
    }
}

#[test]
fn a_deadline_is_kept_while_another_thread_waits_with_a_hand_open() {
    for kind in [Upstream::Async, Upstream::Virtual] {
        a_deadline_is_kept_while_another_thread_waits(kind, true);
    }
}
