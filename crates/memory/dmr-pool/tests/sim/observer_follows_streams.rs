//! An observer that follows the order of streams, as the simulator does, changes nothing of what a
//! pool does: each block is reported to it, and it hides no race.

use std::sync::Arc;

use crate::support::program::play_observed;
use crate::support::witness::{Witness, set_bytes};
use crate::support::{MIB, Pool, UPSTREAMS, Upstream, pool_with, rig};
use dmr_core::{AllocTag, DeviceMemoryResource, UseTrackingExt};
use dmr_pool::PoolConfig;
use dmr_programs::{Conflict, Counts};
use dmr_sim::{CallCounts, Policy, ReportKind};
use dmr_testkit::Rig;

const TAG: AllocTag = AllocTag::new("block");

fn make(upstream: Upstream, rig: &Rig) -> Pool {
    let observer = rig.device().memory_observer();
    assert!(observer.is_some());
    pool_with(upstream, rig, PoolConfig::fast(), observer)
}

/// A pool that queried its blocks would order the second write after the first one.
#[test]
fn frees_and_allocations_of_other_blocks_hide_no_race() {
    for upstream in UPSTREAMS {
        let rig = rig(Policy::Eager, 0, 256 * MIB);
        let pool = make(upstream, &rig);
        let a = rig.stream();
        let b = rig.stream();
        let block = pool.allocate(4096, a.id(), TAG).unwrap();
        set_bytes(&rig, a.id(), block.ptr(), 4096);
        for stream in [&a, &b] {
            for _ in 0..3 {
                let other = pool.allocate(1000, stream.id(), TAG).unwrap();
                set_bytes(&rig, stream.id(), other.ptr(), 1000);
                pool.deallocate(other).unwrap();
            }
            pool.try_reap().unwrap();
        }
        let kinds = || rig.universe().reports().iter().map(|it| it.kind).collect::<Vec<_>>();
        assert_eq!(kinds(), [], "{upstream:?}");
        set_bytes(&rig, b.id(), block.ptr(), 4096);
        assert!(kinds().contains(&ReportKind::WriteAfterWrite), "{upstream:?}: {:?}", kinds());
        pool.deallocate(block).unwrap();
        drop(pool);
        assert!(
            kinds().contains(&ReportKind::FreeBeforeUse) || upstream != Upstream::Async,
            "{:?}",
            kinds()
        );
    }
}

#[test]
fn memory_touched_after_its_block_was_deallocated_is_a_finding_at_once() {
    for upstream in UPSTREAMS {
        let rig = rig(Policy::Lazy, 0, 256 * MIB);
        let pool = make(upstream, &rig);
        let a = rig.stream();
        let block = pool.allocate(4096, a.id(), TAG).unwrap();
        let ptr = block.ptr();
        set_bytes(&rig, a.id(), ptr, 4096);
        pool.deallocate(block).unwrap();
        set_bytes(&rig, a.id(), ptr, 1);
        let kinds: Vec<_> = rig.universe().reports().iter().map(|it| it.kind).collect();
        assert_eq!(kinds, [ReportKind::UseAfterFree], "{upstream:?}");
    }
}

/// The driver calls of a program that passes blocks between two streams.
fn calls(rig: &Rig, pool: &Pool) -> CallCounts {
    let a = rig.stream();
    let b = rig.stream();
    rig.universe().reset_calls();
    for turn in 0..40 {
        let stream = if turn % 2 == 0 { &a } else { &b };
        let bytes = 1000 + 3000 * (turn % 5);
        let block = pool.allocate(bytes, stream.id(), TAG).unwrap();
        set_bytes(rig, stream.id(), block.ptr(), bytes);
        pool.record_block_use(&block, b.id()).unwrap();
        pool.deallocate(block).unwrap();
    }
    rig.universe().calls()
}

#[test]
fn it_costs_no_driver_call() {
    for upstream in UPSTREAMS {
        let of = |is_observed: bool| {
            let rig = rig(Policy::Lazy, 0, 256 * MIB);
            let observer = is_observed.then(|| rig.device().memory_observer().unwrap());
            let pool = pool_with(upstream, &rig, PoolConfig::fast(), observer);
            let calls = calls(&rig, &pool);
            // Without an observer the blocks are unknown to the simulator, which reports each use.
            assert_eq!(rig.universe().reports().is_empty(), is_observed, "{upstream:?}");
            calls
        };
        assert_eq!(of(true), of(false), "{upstream:?}");
    }
}

fn programs(upstream: Upstream, policy: Policy, numbers: std::ops::Range<u64>) {
    let mut seen = Counts::default();
    for first in numbers.step_by(25) {
        let rig = Arc::new(rig(policy, first, 256 * MIB));
        for number in first..first + 25 {
            let witness = Witness::following_streams(&rig);
            seen.add(&play_observed(&rig, upstream, &witness, number));
        }
        Arc::into_inner(rig).expect("the program has ended").assert_clean();
    }
    let refused = seen.of(Conflict::OutOfMemory);
    let retired = seen.of(Conflict::FreeInWindow);
    assert!(seen.allocated > 0 && refused > 0 && retired > 0, "{seen}");
}

#[test]
fn random_programs_are_clean_when_work_runs_late() {
    programs(Upstream::Direct, Policy::Lazy, 50_000..50_200);
    programs(Upstream::Async, Policy::Lazy, 50_200..50_400);
    programs(Upstream::Virtual, Policy::Lazy, 50_400..50_600);
}

#[test]
fn random_programs_are_clean_when_work_runs_at_any_time() {
    programs(Upstream::Direct, Policy::Random, 50_600..50_800);
    programs(Upstream::Async, Policy::Random, 50_800..51_000);
    programs(Upstream::Virtual, Policy::Random, 51_000..51_200);
}

mod conformance {
    use super::*;
    use dmr_testkit::ResourceHarness;

    dmr_core::conformance_tests!(ResourceHarness::new(Rig::simulated(), |rig| {
        make(Upstream::Async, rig)
    }));
}
