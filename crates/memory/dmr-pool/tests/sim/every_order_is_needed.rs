//! Without any one of the records, waits, synchronisations and queries that the pool depends on, a
//! finding; or it was not needed there.

#![allow(clippy::print_stdout, reason = "how much is needed is worth reading")]

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::program::perform;
use crate::support::stage::{ALL, Stage, tight};
use crate::support::{MIB, UPSTREAMS, Upstream, rig, shadow_of};
use dmr_core::{Access, DeviceMemoryResource, ResourceError, UseTrackingExt};
use dmr_pool::PoolConfig;
use dmr_sim::{Policy, ReportKind};

const ORDERING: [&str; 4] =
    ["cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize", "cuEventQuery"];

/// Plays a random program with one call doing nothing (or none): how often each ordering call was
/// made, and whether something was found.
fn without(
    upstream: Upstream,
    number: u64,
    swallow: Option<(&str, u64)>,
) -> (BTreeMap<&'static str, u64>, bool) {
    let rig = Arc::new(rig(Policy::Lazy, number, 256 * MIB));
    let universe = rig.universe().clone();
    universe.reset_calls();
    if let Some((call, n)) = swallow {
        universe.swallow_nth(call, n);
    }
    // Work under which a page was unmapped takes the device with it.
    let played = perform(&rig, upstream, number, 60);
    let calls = universe.calls();
    universe.clear_faults();
    let found = universe.reports().iter().any(|report| report.kind.is_race());
    assert!(played.is_ok() || found, "program {number} without {swallow:?}: {:?}", played.err());
    (ORDERING.into_iter().map(|call| (call, calls.count(call))).collect(), found)
}

/// The simulator proves that a call which it does not report is not needed there: its verdict is
/// that of an exhaustive search over the order of all operations (dmr-sim's `oracle_agreement`).
/// Most of what is spared is the record of a use that no work comes after, or a query at the end,
/// when the device is idle.
#[test]
fn random_programs_need_what_they_order() {
    let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for upstream in UPSTREAMS {
        for number in 30_000..30_016 {
            let (counts, found) = without(upstream, number, None);
            assert!(!found, "program {number}");
            for (call, count) in counts {
                let missed = (1..=count).filter(|&n| without(upstream, number, Some((call, n))).1);
                let total = totals.entry(call).or_default();
                *total = (total.0 + count, total.1 + missed.count() as u64);
            }
        }
    }
    println!("made and needed: {totals:?}");
    let share = |call: &str| totals[call].1 * 100 / totals[call].0.max(1);
    assert!(share("cuStreamWaitEvent") >= 50, "{totals:?}");
    assert!(share("cuEventRecord") >= 15, "{totals:?}");
    assert!(totals["cuEventQuery"].1 > 0, "{totals:?}");
}

/// A program by hand. Up to here everything was in order; now that it is played with each wait in
/// turn doing nothing, each of those that `needed` names must be missed.
fn needs_each_wait(config: PoolConfig, waits: u64, play: impl Fn(&Stage)) {
    for upstream in UPSTREAMS {
        let stage = Stage::new(upstream, config);
        let made = stage.calls("cuStreamWaitEvent", || play(&stage));
        assert_eq!(made, waits, "{upstream:?}");
        stage.end();
        for n in 1..=waits {
            let stage = Stage::new(upstream, config);
            stage.universe().swallow_nth("cuStreamWaitEvent", n);
            play(&stage);
            let races = stage.universe().reports().into_iter().filter(|r| r.kind.is_race());
            assert!(races.count() > 0, "{upstream:?}: wait {n} of {waits} is not missed");
            stage.end_with_findings();
        }
        // The events are needed as well, and so is their being recorded when they are.
        let stage = Stage::new(upstream, config);
        let records = stage.calls("cuEventRecord", || play(&stage));
        stage.end();
        let missed = |n: &u64| {
            let stage = Stage::new(upstream, config);
            stage.universe().swallow_nth("cuEventRecord", *n);
            play(&stage);
            let raced = stage.universe().reports().iter().any(|report| report.kind.is_race());
            stage.end_with_findings();
            raced
        };
        assert!(waits == 0 || (1..=records).any(|n| missed(&n)), "{upstream:?}: {records} records");
    }
}

#[test]
fn a_borrowed_block_waits_for_its_lender() {
    needs_each_wait(tight(), 1, |stage| {
        let [a, b, _] = stage.streams();
        let first = stage.pass(a, ALL, 1);
        assert_eq!(stage.pass(b, ALL, 2), first);
    });
}

#[test]
fn a_streams_own_chunk_that_another_has_used_is_waited_for() {
    needs_each_wait(tight(), 2, |stage| {
        let [a, b, _] = stage.streams();
        let block = stage.allocate(a, ALL);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        let first = block.ptr();
        stage.free(block);
        assert_eq!(stage.pass(a, ALL, 2), first);
    });
}

#[test]
fn as_long_as_there_is_other_memory_no_stream_waits_for_a_free() {
    // The reader's wait for the writer.
    needs_each_wait(PoolConfig::fast(), 1, |stage| {
        let [a, b, _] = stage.streams();
        let block = stage.allocate(a, ALL);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        let first = block.ptr();
        stage.free(block);
        assert_ne!(stage.pass(a, ALL, 2), first, "b is not done with that");
    });
}

#[test]
fn a_lent_chunk_comes_back_when_its_borrower_is_waited_for() {
    needs_each_wait(tight(), 2, |stage| {
        let [a, b, _] = stage.streams();
        let first = stage.pass(a, ALL, 1);
        assert_eq!(stage.pass(b, ALL, 2), first);
        assert_eq!(stage.pass(a, ALL, 3), first);
    });
}

#[test]
fn a_lent_chunk_goes_from_one_borrower_to_the_next() {
    needs_each_wait(tight(), 2, |stage| {
        let [a, b, c] = stage.streams();
        let first = stage.pass(a, ALL, 1);
        assert_eq!(stage.pass(b, ALL, 2), first);
        assert_eq!(stage.pass(c, ALL, 3), first);
    });
}

#[test]
fn memory_of_a_block_deallocated_in_a_window_is_not_reused_before_the_window_closes() {
    needs_each_wait(tight(), 2, |stage| {
        let [a, b, c] = stage.streams();
        let block = stage.allocate(a, ALL);
        stage.write(a, &block, 1);
        let window = stage.open(b, &block, Access::Read);
        let shadow = shadow_of(&block);
        let first = block.ptr();
        stage.free_in_window(block);
        assert_eq!((stage.pool.usage().live, stage.pool.usage().retired), (0, ALL as u64));
        for stream in [a, b, c] {
            let refused = stage.try_allocate(stream, 256);
            assert!(matches!(refused, Err(ResourceError::OutOfMemory { .. })), "{refused:?}");
        }
        stage.check(b, &shadow, 1);
        stage.universe().region_freed(first);
        stage.pool.finish_uses(window).unwrap();
        assert_eq!(stage.pool.usage().outstanding(), 0);
        assert_eq!(stage.pass(a, ALL, 2), first);
    });
}

/// Whichever of the two is freed last, and whichever comes first in memory.
#[test]
fn merged_chunks_have_the_latest_dependency() {
    for first_is_last in [false, true] {
        // The reader of the small block's, and the borrower's.
        needs_each_wait(tight().with_maximum_size(4 * MIB), 2, |stage| {
            let [a, b, _] = stage.streams();
            let x = stage.allocate(a, ALL / 2);
            let y = stage.allocate(a, ALL / 2);
            assert_eq!(x.ptr() + ALL as u64 / 2, y.ptr());
            let (early, late) = if first_is_last { (y, x) } else { (x, y) };
            let start = early.ptr().min(late.ptr());
            let small = stage.allocate(a, 256);
            stage.fill(a, &early, 1);
            stage.fill(a, &late, 2);
            stage.free(early);
            stage.write(a, &small, 3);
            stage.read(b, &small, 3);
            // After this, what `b` has waited for is not enough.
            stage.check(a, &late, 2);
            stage.free(late);
            assert_eq!(stage.pass(b, ALL, 4), start);
            stage.free(small);
        });
    }
}

#[test]
fn a_third_stream_waits_for_the_previous_owner_and_for_its_readers() {
    // Of the reader for the writer, and of the third for both.
    needs_each_wait(tight(), 3, |stage| {
        let [a, b, c] = stage.streams();
        let block = stage.allocate(a, ALL);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        // The reader has not waited for this.
        stage.check(a, &block, 1);
        let first = block.ptr();
        stage.free(block);
        assert_eq!(stage.pass(c, ALL, 2), first);
    });
}

#[test]
fn a_reader_that_borrows_what_it_has_read_waits_for_the_owners_later_work() {
    needs_each_wait(tight(), 2, |stage| {
        let [a, b, _] = stage.streams();
        let block = stage.allocate(a, ALL);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        stage.check(a, &block, 1);
        let first = block.ptr();
        stage.free(block);
        assert_eq!(stage.pass(b, ALL, 2), first);
    });
}

#[test]
fn a_stream_that_has_waited_already_waits_no_more() {
    needs_each_wait(tight().with_maximum_size(4 * MIB), 2, |stage| {
        let [a, b, _] = stage.streams();
        let block = stage.allocate(a, ALL);
        let other = stage.allocate(a, 256);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        let first = block.ptr();
        stage.free(block);
        // Its stream waits for `b`, for another block's sake.
        stage.write(b, &other, 2);
        stage.read(a, &other, 2);
        assert_eq!(stage.pass(a, ALL, 3), first);
        stage.free(other);
    });
}

#[test]
fn several_small_chunks_are_waited_for_to_make_a_large_one() {
    // Of the two readers for the writer, and of the owner for them.
    needs_each_wait(tight(), 4, |stage| {
        let [a, b, c] = stage.streams();
        let halves = [stage.allocate(a, ALL / 2), stage.allocate(a, ALL / 2)];
        let first = halves[0].ptr();
        for (half, reader) in halves.iter().zip([b, c]) {
            stage.write(a, half, 1);
            stage.read(reader, half, 1);
        }
        halves.into_iter().for_each(|half| stage.free(half));
        assert_eq!(stage.pass(a, ALL, 2), first);
    });
}

/// Its memory serves on, after the last event that its owner let the pool record.
#[test]
fn what_a_stream_leaves_that_its_owner_took_back_is_waited_for() {
    needs_each_wait(tight(), 1, |stage| {
        let [_, b, _] = stage.streams();
        let lease = stage.rig.streams().adopt(stage.rig.device().context().new_stream().unwrap());
        let lease = lease.unwrap();
        let first = stage.pass(lease.id(), ALL, 1);
        stage.rig.streams().retire_stream(&lease).unwrap();
        drop(lease);
        assert_eq!(stage.pass(b, ALL, 2), first);
    });
}

#[test]
fn a_block_outlives_its_stream_that_was_taken_back() {
    needs_each_wait(tight(), 3, |stage| {
        let [_, b, c] = stage.streams();
        let lease = stage.rig.streams().adopt(stage.rig.device().context().new_stream().unwrap());
        let lease = lease.unwrap();
        let block = stage.allocate(lease.id(), ALL);
        stage.write(lease.id(), &block, 1);
        stage.check(lease.id(), &block, 1);
        stage.rig.streams().retire_stream(&lease).unwrap();
        drop(lease);
        stage.read(b, &block, 1);
        let first = block.ptr();
        stage.free(block);
        assert_eq!(stage.pass(c, ALL, 2), first);
    });
}

/// No wait can be queued on that stream any more, and the reader's does not wait for a free: the
/// memory is leaked rather than freed under the reader.
#[test]
fn a_dropped_pool_keeps_what_a_stream_that_was_taken_back_is_not_after() {
    for is_done in [false, true] {
        let stage = Stage::new(Upstream::Async, tight());
        let [_, b, _] = stage.streams();
        let lease = stage.rig.streams().adopt(stage.rig.device().context().new_stream().unwrap());
        let lease = lease.unwrap();
        let block = stage.allocate(lease.id(), ALL);
        stage.write(lease.id(), &block, 1);
        stage.rig.streams().retire_stream(&lease).unwrap();
        drop(lease);
        stage.read(b, &block, 1);
        stage.free(block);
        if is_done {
            stage.rig.device().synchronize().unwrap();
        }
        let Stage { pool, rig, .. } = stage;
        drop(pool);
        let reports = rig.universe().finish().reports;
        assert!(reports.iter().all(|report| report.kind == ReportKind::Leak), "{reports:?}");
        let leaked = reports.iter().filter(|report| report.bytes == ALL as u64).count();
        assert_eq!(leaked, usize::from(!is_done), "{reports:?}");
    }
}

/// Without the queries that find them done, memory would go back to upstream under a reader.
#[test]
fn a_segment_goes_back_when_its_readers_are_known_to_be_done() {
    for swallowed in [false, true] {
        let stage = Stage::new(Upstream::Async, tight());
        let [a, b, _] = stage.streams();
        let block = stage.allocate(a, ALL);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        stage.free(block);
        if swallowed {
            stage.universe().swallow_nth("cuEventQuery", 1);
        }
        stage.pool.trim_to(0).unwrap();
        assert_eq!(stage.pool.stats().reserved, if swallowed { 0 } else { ALL as u64 });
        let raced = stage.universe().reports().iter().any(|report| report.kind.is_race());
        assert_eq!(raced, swallowed);
        if !swallowed {
            stage.end();
        }
    }
}
