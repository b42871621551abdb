//! An allocation does not miss memory that another thread is returning to upstream.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use dmr_core::{Access, BlockState, DeviceMemoryResource};
use dmr_pool::PoolConfig;
use support::stage::{ALL, Stage, tight};
use support::{MIB, UPSTREAMS, Upstream};

/// One thread returns all of the pool's memory to upstream, and is held inside of this driver call; another
/// one allocates all of it.
fn an_allocation_waits_for_memory_in_a_hand(upstream: Upstream, call: &str) {
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
fn a_segment_on_its_way_upstream_is_waited_for() {
    an_allocation_waits_for_memory_in_a_hand(Upstream::Async, "cuMemFreeAsync");
}

#[test]
fn a_page_that_is_unmapped_is_waited_for() {
    an_allocation_waits_for_memory_in_a_hand(Upstream::Virtual, "cuMemUnmap");
}

#[test]
fn a_page_that_is_destroyed_is_waited_for() {
    an_allocation_waits_for_memory_in_a_hand(Upstream::Virtual, "cuMemRelease");
}

/// A reap frees a hundred blocks whose windows have closed, and is held in a query. Another thread needs the
/// memory of the last one.
#[test]
fn retired_blocks_that_a_reap_frees_are_waited_for() {
    for upstream in [Upstream::Direct, Upstream::Async] {
        let config = PoolConfig::fast().with_growth(2 * MIB).with_maximum_size(4 * MIB);
        let stage = Stage::new(upstream, config);
        let [a, b, c] = stage.streams();
        let mut blocks: Vec<_> = (0..100).map(|_| stage.allocate(a, 4096)).collect();
        blocks.push(stage.allocate(a, ALL));
        let mut windows = Vec::new();
        for block in blocks {
            windows.push(stage.open(b, &block, Access::Write));
            stage.fill(b, &block, 1);
            stage.universe().region_freed(block.ptr());
            assert_eq!(stage.pool.deallocate(block).unwrap(), BlockState::Retired);
        }
        for tokens in windows {
            // The pool is not called.
            stage.rig.streams().uses().finish(tokens).unwrap();
        }
        thread::scope(|scope| {
            let hold = stage.universe().hold_nth("cuEventQuery", 1);
            let reaps = scope.spawn(|| stage.pool.try_reap());
            hold.wait_until_held();
            let allocates = scope.spawn(|| stage.try_allocate(c, ALL));
            // Long enough to be refused.
            thread::sleep(Duration::from_millis(200));
            hold.release();
            reaps.join().unwrap().unwrap();
            let block = allocates.join().unwrap();
            stage.free(block.expect("the reap had taken the block out of the retired ones"));
        });
        stage.end();
    }
}

#[test]
fn without_memory_in_a_hand_no_allocation_waits() {
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

/// The stream cannot be made to wait for the pending memory, so the host waits for it: then it is free, and
/// nothing else is pending.
#[test]
fn memory_that_the_host_has_waited_for_is_found() {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, tight());
        let [a, b, _] = stage.streams();
        let held = stage.allocate(a, ALL / 2);
        let block = stage.allocate(a, ALL / 2);
        stage.write(b, &block, 1);
        stage.free(block);
        for n in 1..=8 {
            stage.universe().fail_nth("cuStreamWaitEvent", n, 999);
        }
        let block = stage.try_allocate(a, ALL / 2);
        [block.unwrap_or_else(|error| panic!("{upstream:?}: {error}")), held]
            .into_iter()
            .for_each(|block| stage.free(block));
        stage.universe().clear_faults();
        stage.end();
    }
}
