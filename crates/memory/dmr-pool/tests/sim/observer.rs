//! The pool's reports to an observer match the device: a region ends when all work on it is done,
//! no sooner, and no block reuses its memory before that. With the reports, a checker sees each
//! block.

use crate::support;
use std::sync::{Arc, Barrier};

use crate::support::program::play_observed;
use crate::support::stage::Stage;
use crate::support::witness::{Witness, set_bytes};
use crate::support::{
    MIB, OUT_OF_MEMORY, UPSTREAMS, Upstream, pool_with, rig, shadow_of, trim_completely,
};
use dmr_core::{Access, AllocTag, BlockState, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_pool::{PoolConfig, RegionState};
use dmr_programs::{Conflict, Counts};
use dmr_sim::{Policy, ReportKind};

/// All of a pool of 2 MiB except the gap behind each block, in bytes.
const NEARLY_ALL: usize = (2 << 20) - 256;

fn tight() -> PoolConfig {
    support::stage::tight()
}

fn stage(upstream: Upstream, config: PoolConfig) -> Stage {
    Stage::observed(upstream, config)
}

fn findings(stage: &Stage) -> Vec<ReportKind> {
    stage.universe().reports().iter().map(|report| report.kind).collect()
}

/// For sizes that the pool rounds up and sizes that it does not.
#[test]
fn a_byte_past_the_end_of_a_block_is_a_finding() {
    for upstream in UPSTREAMS {
        for bytes in [1, 1000, 1024, 65_536] {
            let stage = stage(upstream, PoolConfig::fast());
            let [a, ..] = stage.streams();
            let blocks = [stage.allocate(a, bytes), stage.allocate(a, bytes)];
            for block in &blocks {
                set_bytes(&stage.rig, a, block.ptr(), bytes);
            }
            assert_eq!(findings(&stage), [], "{upstream:?}, {bytes} bytes");
            for block in &blocks {
                set_bytes(&stage.rig, a, block.ptr(), bytes + 1);
                // One byte, as one thread of a kernel writes it.
                set_bytes(&stage.rig, a, block.ptr() + bytes as u64, 1);
            }
            assert_eq!(findings(&stage).len(), 4, "{upstream:?}, {bytes} bytes");
            blocks.into_iter().for_each(|block| stage.free(block));
        }
    }
}

#[test]
fn memory_touched_after_its_free_has_completed_is_a_finding() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, PoolConfig::fast());
        let [a, ..] = stage.streams();
        let block = stage.allocate(a, 4096);
        let shadow = shadow_of(&block);
        stage.fill(a, &block, 1);
        stage.free(block);
        assert_eq!(findings(&stage), [], "{upstream:?}");
        stage.rig.streams().synchronize(a).unwrap();
        stage.pool.try_reap().unwrap();
        set_bytes(&stage.rig, a, shadow.ptr(), 4);
        assert_eq!(findings(&stage), [ReportKind::UseAfterFree], "{upstream:?}");
    }
}

#[test]
fn memory_of_the_pool_that_no_block_has_is_a_finding_when_it_is_touched() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, PoolConfig::fast());
        let [a, ..] = stage.streams();
        let block = stage.allocate(a, 4096);
        set_bytes(&stage.rig, a, block.ptr() + MIB, 4);
        assert_eq!(findings(&stage), [ReportKind::OutOfBounds], "{upstream:?}");
        stage.free(block);
    }
}

/// Work on the home stream is not recorded as a use; work on other streams is.
#[test]
fn a_region_ends_when_all_work_with_it_is_done_and_no_sooner() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, PoolConfig::fast());
        let [a, b, _] = stage.streams();
        // Reserves memory for the second stream now: reserving it later might wait for the device.
        stage.pass(b, 4096, 1);
        stage.rig.device().synchronize().unwrap();
        stage.pool.try_reap().unwrap();
        let own = stage.allocate(a, 5000);
        let shared = stage.allocate(a, 6000);
        // Each query makes the simulator execute one step.
        for _ in 0..20 {
            stage.fill(a, &own, 1);
            stage.write(a, &shared, 2);
            stage.read(b, &shared, 2);
        }
        let regions = stage.witness().regions();
        stage.free(own);
        stage.free(shared);
        stage.pool.try_reap().unwrap();
        let other = stage.allocate(b, 4096);
        assert!(regions.iter().all(|&(ptr, _)| ptr != other.ptr()));
        stage.free(other);
        let still = stage.witness().regions();
        assert!(regions.iter().all(|region| still.contains(region)), "{upstream:?}: {still:?}");
        let pending: u64 = stage.pool.stats().pending;
        assert!(pending >= 11_000, "{pending}");
        let map = stage.pool.heap_map();
        let is_pending = |&(ptr, _): &(u64, usize)| {
            map.iter().any(|it| it.address == ptr && it.state == RegionState::Pending)
        };
        assert!(regions.iter().all(is_pending), "{map:?}");
        // The reads of `shared` on `b` come after all work on `own`.
        stage.rig.streams().synchronize(b).unwrap();
        stage.rig.streams().synchronize(a).unwrap();
        stage.pool.try_reap().unwrap();
        assert_eq!(stage.witness().regions(), []);
        assert_eq!((stage.pool.stats().pending, stage.pool.stats().in_use), (0, 0));
        stage.end();
    }
}

#[test]
fn a_block_deallocated_in_a_window_is_a_region_until_the_work_of_the_window_is_done() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, PoolConfig::fast());
        let [a, b, _] = stage.streams();
        let block = stage.allocate(a, 5000);
        stage.write(a, &block, 1);
        let window = stage.open(b, &block, Access::Read);
        let shadow = shadow_of(&block);
        assert_eq!(stage.pool.deallocate(block).unwrap(), BlockState::Retired);
        stage.rig.device().synchronize().unwrap();
        stage.pool.try_reap().unwrap();
        stage.check(b, &shadow, 1);
        stage.pool.finish_uses(window).unwrap();
        stage.pool.try_reap().unwrap();
        assert_eq!(stage.witness().regions(), [(shadow.ptr(), 5000)]);
        stage.rig.device().synchronize().unwrap();
        stage.pool.try_reap().unwrap();
        assert_eq!(stage.witness().regions(), []);
        stage.end();
    }
}

/// On its home stream, and on a stream that borrows it.
#[test]
fn the_host_waits_for_freed_memory_before_the_pool_reuses_it() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, tight());
        let [a, b, _] = stage.streams();
        let first = stage.pass(a, NEARLY_ALL, 1);
        for (nth, stream) in [(1, a), (2, b), (3, a), (4, b), (5, b)] {
            let freed = stage.witness().freed();
            let waits = stage.calls("cuStreamWaitEvent", || {
                // Direct frees the segment, which also waits for the device.
                let at = stage.pass(stream, NEARLY_ALL, nth);
                assert!(upstream != Upstream::Virtual || at == first);
            });
            assert_eq!((waits, stage.witness().freed()), (0, freed + 1), "{upstream:?}");
        }
        stage.end();
    }
}

#[test]
fn a_pool_beyond_its_slack_waits_before_it_reserves_more() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, PoolConfig::fast().with_growth(2 * MIB));
        let [a, ..] = stage.streams();
        for _ in 0..40 {
            let block = stage.allocate(a, 8 << 20);
            (0..50).for_each(|_| stage.fill(a, &block, 1));
            stage.free(block);
        }
        let reserved = stage.pool.reserved_high();
        assert!(reserved <= 96 * MIB, "{upstream:?}: {} MiB", reserved / MIB);
        stage.end();
    }
}

#[test]
fn each_upstream_allocation_is_a_heap_including_the_initial_one() {
    for upstream in UPSTREAMS {
        let rig = rig(Policy::Lazy, 0, 256 * MIB);
        let witness = Witness::new(&rig);
        let config = PoolConfig::fast().with_initial_size(2 * MIB).with_growth(2 * MIB);
        let pool = pool_with(upstream, &rig, config, Some(witness.clone()));
        let stream = rig.stream();
        assert_eq!(witness.heaps().len(), 1, "{upstream:?}");
        let blocks: Vec<_> = [1 << 20, 4 << 20]
            .map(|bytes| pool.allocate(bytes, stream.id(), AllocTag::new("block")).unwrap())
            .into();
        let heaps = witness.heaps();
        for block in &blocks {
            let is_around =
                |&(ptr, bytes): &(u64, usize)| (ptr..ptr + bytes as u64).contains(&block.ptr());
            assert_eq!(heaps.iter().filter(|heap| is_around(heap)).count(), 1, "{upstream:?}");
        }
        if upstream != Upstream::Virtual {
            let bytes: usize = heaps.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(bytes as u64, pool.stats().reserved);
        }
        for block in blocks {
            pool.deallocate(block).unwrap();
        }
        if upstream != Upstream::Virtual {
            trim_completely(&rig, &pool);
            assert_eq!(witness.heaps(), []);
        }
        drop((pool, stream));
        witness.assert_settled();
        rig.assert_clean();
    }
}

/// Over async: the direct backend accepts any block and frees it later, so the call cannot fail.
#[test]
fn a_heap_that_upstream_fails_to_free_stays_a_heap() {
    let stage = stage(Upstream::Async, tight());
    let [a, ..] = stage.streams();
    stage.pass(a, NEARLY_ALL, 1);
    stage.rig.device().synchronize().unwrap();
    let heaps = stage.witness().heaps();
    stage.universe().fail_nth("cuMemFreeAsync", 1, support::UNKNOWN);
    let refused = stage.pool.trim_to(0);
    assert!(matches!(refused, Err(ResourceError::Driver { .. })), "{refused:?}");
    assert_eq!(stage.witness().heaps(), heaps);
    stage.pass(a, NEARLY_ALL, 2);
    stage.end();
}

#[test]
fn an_allocation_that_fails_is_no_region() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, tight());
        let [a, ..] = stage.streams();
        let block = stage.allocate(a, 4096);
        for bytes in [0, NEARLY_ALL, usize::MAX] {
            assert!(stage.try_allocate(a, bytes).is_err());
        }
        assert_eq!(stage.witness().regions(), [(block.ptr(), 4096)]);
        stage.free(block);
        stage.end();
    }
    let stage = stage(Upstream::Direct, PoolConfig::fast());
    let [a, ..] = stage.streams();
    stage.universe().fail_nth("cuMemAlloc_v2", 1, OUT_OF_MEMORY);
    let _ = stage.try_allocate(a, 4096).map(|block| stage.free(block));
    stage.end();
}

#[test]
fn an_observed_block_does_not_grow_in_place() {
    for upstream in UPSTREAMS {
        let stage = stage(upstream, PoolConfig::fast());
        let [a, ..] = stage.streams();
        let mut block = stage.allocate(a, 1000);
        assert_eq!(stage.pool.try_grow(&mut block, 1000), Ok(true));
        for bytes in [1001, 2000, 100_000] {
            assert_eq!(stage.pool.try_grow(&mut block, bytes), Ok(false));
        }
        assert_eq!(stage.witness().regions(), [(block.ptr(), 1000)]);
        stage.free(block);
        stage.end();
    }
}

/// Its allocation was not reported, and neither is its end.
#[test]
fn a_block_from_before_the_observer_is_never_a_region() {
    let rig = rig(Policy::Lazy, 0, 256 * MIB);
    let witness = Witness::new(&rig);
    let pool = pool_with(Upstream::Direct, &rig, PoolConfig::fast(), Some(witness.clone()));
    let later = Witness::new(&rig);
    let stream = rig.stream();
    let tag = AllocTag::new("block");
    let early = pool.allocate(4096, stream.id(), tag).unwrap();
    let ended = pool.allocate(4096, stream.id(), tag).unwrap();
    rig.delay(&stream);
    pool.deallocate(ended).unwrap();
    let pool = pool.with_observer(later.clone());
    let block = pool.allocate(4096, stream.id(), tag).unwrap();
    assert_eq!(later.regions(), [(block.ptr(), 4096)]);
    for block in [early, block] {
        pool.deallocate(block).unwrap();
    }
    drop((pool, stream));
    later.assert_settled();
    rig.assert_clean();
}

#[test]
fn threads_that_share_an_observed_pool_cause_no_wrong_report() {
    const THREADS: usize = 4;
    for upstream in UPSTREAMS {
        let rig = rig(Policy::Random, 0, 256 * MIB);
        let witness = Witness::new(&rig);
        let config = tight().with_maximum_size(8 * MIB);
        let pool = pool_with(upstream, &rig, config, Some(witness.clone()));
        let together = Barrier::new(THREADS);
        let tag = AllocTag::new("block");
        let play = |thread: usize| {
            let stream = rig.stream();
            rig.device().bind().unwrap();
            together.wait();
            for turn in 0..200 {
                let bytes = 1000 * (1 + (7 * turn + thread) % 300);
                let block = pool.allocate(bytes, stream.id(), tag).unwrap();
                set_bytes(&rig, stream.id(), block.ptr(), bytes);
                witness.expect_work(&rig, stream.id(), block.ptr());
                pool.deallocate(block).unwrap();
            }
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|thread| drop(scope.spawn(move || play(thread))));
        });
        assert_eq!(pool.usage().outstanding(), 0);
        drop(pool);
        assert_eq!(witness.freed(), 200 * THREADS as u64);
        witness.assert_settled();
        rig.assert_clean();
    }
}

/// Programs that share a simulated machine.
const TOGETHER: u64 = 25;

fn programs(upstream: Upstream, policy: Policy, numbers: std::ops::Range<u64>) {
    let mut seen = Counts::default();
    for first in numbers.clone().step_by(TOGETHER as usize) {
        let rig = Arc::new(rig(policy, first, 256 * MIB));
        for number in first..numbers.end.min(first + TOGETHER) {
            let witness = Witness::new(&rig);
            seen.add(&play_observed(&rig, upstream, &witness, number));
        }
        Arc::into_inner(rig).expect("the program has ended").assert_clean();
    }
    let count = numbers.end - numbers.start;
    assert!(seen.allocated > 5 * count, "{seen}");
    let refused = seen.of(Conflict::OutOfMemory);
    let retired = seen.of(Conflict::FreeInWindow);
    assert!(refused > count / 20 && retired > count / 10, "{seen}");
}

macro_rules! programs {
    ($($name:ident: $upstream:ident, $policy:ident, $numbers:expr;)*) => {
        $(#[test]
        fn $name() {
            programs(Upstream::$upstream, Policy::$policy, $numbers);
        })*
    };
}

programs! {
    reports_over_direct_are_correct_when_work_runs_at_once: Direct, Eager, 40_000..40_200;
    reports_over_direct_are_correct_when_work_runs_late: Direct, Lazy, 40_200..40_500;
    reports_over_direct_are_correct_when_work_runs_at_any_time: Direct, Random, 40_500..40_800;
    reports_over_async_are_correct_when_work_runs_at_once: Async, Eager, 41_000..41_200;
    reports_over_async_are_correct_when_work_runs_late: Async, Lazy, 41_200..41_500;
    reports_over_async_are_correct_when_work_runs_at_any_time: Async, Random, 41_500..41_800;
    reports_over_pages_are_correct_when_work_runs_at_once: Virtual, Eager, 42_000..42_200;
    reports_over_pages_are_correct_when_work_runs_late: Virtual, Lazy, 42_200..42_500;
    reports_over_pages_are_correct_when_work_runs_at_any_time: Virtual, Random, 42_500..42_800;
}

mod conformance {
    use super::*;
    use dmr_testkit::{ResourceHarness, Rig};

    fn make(rig: &Rig) -> support::Pool {
        pool_with(Upstream::Async, rig, PoolConfig::fast(), Some(Witness::new(rig)))
    }

    dmr_core::conformance_tests!(ResourceHarness::new(Rig::simulated(), make));
}
