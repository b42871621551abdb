//! Mapped pages: they move instead of leaving a hole, in the order of their uses; nothing is
//! unmapped under work; and memory goes back to the device.

use crate::support::stage::{ALL, Stage};
use crate::support::{MIB, UNKNOWN, Upstream, pool_over, rig, trim_completely};
use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_pool::PoolConfig;
use dmr_sim::{Policy, ReportKind};

/// Four pages of 2 MiB.
fn four_pages() -> PoolConfig {
    PoolConfig::compact().with_page_size(2 * MIB).with_maximum_size(8 * MIB)
}

fn stage(config: PoolConfig) -> Stage {
    Stage::new(Upstream::Virtual, config)
}

/// Allocates all four pages on the first stream and frees the first and the third, whose work is
/// not done.
fn leave_two_of_four(stage: &Stage) -> Vec<DeviceBlock> {
    let [a, ..] = stage.streams();
    let mut held: Vec<_> = (0..4).map(|_| stage.allocate(a, ALL)).collect();
    held.sort_by_key(DeviceBlock::ptr);
    for nth in [2, 0] {
        let block = held.remove(nth);
        stage.fill(a, &block, 1);
        stage.free(block);
    }
    held
}

fn reap(stage: &Stage) {
    stage.pool.try_reap().unwrap();
}

/// Plays it in order, with this number of waits, and then once without each of them: that is a
/// race.
fn each_wait_is_needed(waits: u64, play: impl Fn(&Stage)) {
    let in_order = stage(four_pages());
    assert_eq!(in_order.calls("cuStreamWaitEvent", || play(&in_order)), waits);
    in_order.end();
    for n in 1..=waits {
        let unordered = stage(four_pages());
        unordered.universe().swallow_nth("cuStreamWaitEvent", n);
        play(&unordered);
        let reports = unordered.universe().reports();
        assert!(reports.iter().any(|report| report.kind.is_race()), "wait {n}");
        unordered.end_with_findings();
    }
}

#[test]
fn scattered_pages_make_a_large_block_without_more_memory_or_a_wait() {
    let stage = stage(four_pages());
    let [a, ..] = stage.streams();
    let held = leave_two_of_four(&stage);
    let mut block = None;
    stage.universe().reset_calls();
    block.replace(stage.allocate(a, 2 * ALL));
    let calls = stage.universe().calls();
    assert_eq!(calls.count("cuMemMap"), 2, "{calls:?}");
    for call in ["cuMemCreate", "cuMemUnmap", "cuStreamWaitEvent", "cuEventSynchronize"] {
        assert_eq!(calls.count(call), 0, "{calls:?}");
    }
    assert_eq!(stage.pool.usage().reserved, 8 * MIB);
    let block = block.unwrap();
    stage.fill(a, &block, 2);
    stage.check(a, &block, 2);
    held.into_iter().chain([block]).for_each(|block| stage.free(block));
    stage.end();
}

#[test]
fn a_stream_waits_for_the_users_of_the_pages_that_it_is_given() {
    let play = |stage: &Stage| {
        let [_, b, _] = stage.streams();
        let held = leave_two_of_four(stage);
        stage.pass(b, 2 * ALL, 2);
        assert_eq!(stage.pool.usage().reserved, 8 * MIB);
        held.into_iter().for_each(|block| stage.free(block));
    };
    each_wait_is_needed(1, play);
}

/// Moves one page instead of three where another stream has most of the memory in one piece.
/// What is left of that page is another stream's to wait for, too.
#[test]
fn a_block_is_placed_where_the_fewest_pages_are_missing() {
    let play = |stage: &Stage| {
        let [a, b, c] = stage.streams();
        let mut of_host: Vec<_> = (0..3).map(|_| stage.allocate(a, ALL)).collect();
        of_host.sort_by_key(DeviceBlock::ptr);
        let donated = stage.allocate(c, ALL);
        stage.fill(c, &donated, 1);
        stage.free(donated);
        let at = of_host[1].ptr();
        for block in of_host.drain(1..) {
            stage.fill(a, &block, 1);
            stage.free(block);
        }
        let mut block = None;
        let mapped = stage.calls("cuMemMap", || block = Some(stage.allocate(b, 2 * ALL + ALL / 2)));
        let block = block.unwrap();
        assert_eq!((mapped, block.ptr()), (1, at));
        stage.fill(b, &block, 2);
        // The rest of the third stream's page, in the first one's addresses.
        let rest = stage.allocate(a, ALL / 2);
        assert_eq!(rest.ptr(), at + 5 * MIB);
        stage.fill(a, &rest, 3);
        of_host.into_iter().chain([block, rest]).for_each(|block| stage.free(block));
    };
    // Of the user for both, and of the host for the third.
    each_wait_is_needed(3, play);
}

#[test]
fn a_page_that_others_still_use_moves_to_a_stream_that_waits_for_them() {
    let play = |stage: &Stage| {
        let [a, b, c] = stage.streams();
        let mut held: Vec<_> = (0..3).map(|_| stage.allocate(a, ALL)).collect();
        held.sort_by_key(DeviceBlock::ptr);
        let block = held.remove(1);
        stage.write(a, &block, 1);
        stage.read(b, &block, 1);
        // The reader has not waited for this.
        stage.check(a, &block, 1);
        stage.free(block);
        let mapped = stage.calls("cuMemMap", || {
            stage.pass(c, 2 * ALL, 2);
        });
        assert_eq!((mapped, stage.pool.usage().reserved), (2, 8 * MIB));
        held.into_iter().for_each(|block| stage.free(block));
    };
    // Of the reader for the writer, and of the taker for both.
    each_wait_is_needed(3, play);
}

#[test]
fn a_page_that_did_not_move_after_all_is_still_waited_for() {
    let stage = stage(four_pages());
    let [a, b, c] = stage.streams();
    let mut held: Vec<_> = (0..4).map(|_| stage.allocate(a, ALL)).collect();
    held.sort_by_key(DeviceBlock::ptr);
    let last = held.remove(3);
    let used = held.remove(1);
    stage.write(a, &used, 1);
    stage.read(b, &used, 1);
    let at = used.ptr();
    stage.free(used);
    stage.free(last);
    // Behind the last page, where the used one is missing.
    stage.universe().fail_nth("cuMemMap", 1, UNKNOWN);
    let refused = stage.try_allocate(c, 2 * ALL);
    assert!(matches!(refused, Err(ResourceError::Driver { .. })), "{refused:?}");
    stage.universe().clear_faults();
    assert_eq!(stage.pool.usage().reserved, 8 * MIB);
    for _ in 0..2 {
        let block = stage.allocate(a, ALL);
        stage.fill(a, &block, 2);
        held.push(block);
    }
    assert!(held.iter().any(|block| block.ptr() == at));
    held.into_iter().for_each(|block| stage.free(block));
    stage.end();
}

#[test]
fn a_page_that_has_moved_is_unmapped_when_its_work_is_known_to_be_done() {
    for reported_too_soon in [false, true] {
        let stage = stage(four_pages());
        let [a, ..] = stage.streams();
        let held = leave_two_of_four(&stage);
        let block = stage.allocate(a, 2 * ALL);
        if reported_too_soon {
            stage.universe().swallow_nth("cuEventQuery", 1);
        }
        let unmapped = stage.calls("cuMemUnmap", || reap(&stage));
        assert_eq!(unmapped, if reported_too_soon { 2 } else { 0 });
        let reports = stage.universe().reports();
        let is_found = reports.iter().any(|report| report.kind == ReportKind::UnmapBeforeUse);
        assert_eq!(is_found, reported_too_soon, "{reports:?}");
        if reported_too_soon {
            continue;
        }
        stage.rig.device().synchronize().unwrap();
        let unmapped = stage.calls("cuMemUnmap", || reap(&stage));
        assert_eq!(unmapped, 2);
        held.into_iter().chain([block]).for_each(|block| stage.free(block));
        stage.end();
    }
}

#[test]
fn addresses_that_a_page_has_left_are_used_again() {
    let stage = stage(four_pages());
    let [a, ..] = stage.streams();
    let mut addresses = Vec::new();
    for _ in 0..40 {
        let held = leave_two_of_four(&stage);
        let block = stage.allocate(a, 2 * ALL);
        addresses.push(block.ptr());
        stage.fill(a, &block, 2);
        held.into_iter().chain([block]).for_each(|block| stage.free(block));
        stage.rig.device().synchronize().unwrap();
        stage.pool.try_reap().unwrap();
    }
    let span = addresses.iter().max().unwrap() - addresses.iter().min().unwrap();
    assert!(span <= 16 * MIB, "{} MiB of addresses for 8 MiB", span / MIB);
    stage.end();
}

#[test]
fn new_pages_are_taken_before_any_is_moved_as_long_as_the_pool_is_hardly_larger_than_its_peak() {
    let config = PoolConfig::compact().with_page_size(2 * MIB).with_page_slack_divisor(2);
    let stage = stage(config);
    let [a, ..] = stage.streams();
    // More than what a small pool may have anyway.
    let held: Vec<_> = (0..50).map(|_| stage.allocate(a, ALL)).collect();
    let (kept, rest): (Vec<_>, Vec<_>) =
        held.into_iter().enumerate().partition(|(nth, _)| nth % 4 == 1);
    rest.into_iter().for_each(|(_, block)| stage.free(block));
    let reserved = || stage.pool.usage().reserved;
    let mut large = Vec::new();
    while reserved() < 148 * MIB {
        large.push(stage.allocate(a, 4 * ALL));
    }
    let created = stage.calls("cuMemCreate", || large.push(stage.allocate(a, 4 * ALL)));
    assert_eq!(created, 1, "half as much again as was live, and no more");
    assert_eq!(reserved(), 150 * MIB);
    kept.into_iter().map(|(_, block)| block).chain(large).for_each(|block| stage.free(block));
    stage.end();
}

#[test]
fn a_trim_returns_physical_memory_that_no_block_uses() {
    let stage = stage(PoolConfig::compact().with_page_size(2 * MIB));
    let free = || stage.rig.device().memory_info().unwrap().0;
    let [a, ..] = stage.streams();
    let before = free();
    let mut held: Vec<_> = (0..8).map(|_| stage.allocate(a, ALL)).collect();
    assert_eq!(before - free(), 16 * MIB);
    held.sort_by_key(DeviceBlock::ptr);
    let kept = held.split_off(6);
    for block in held {
        stage.fill(a, &block, 1);
        stage.free(block);
    }
    stage.pool.trim_to(0).unwrap();
    assert_eq!(before - free(), 16 * MIB, "work is not known to be done");
    stage.rig.device().synchronize().unwrap();
    stage.pool.trim_to(8 * MIB).unwrap();
    assert_eq!((before - free(), stage.pool.usage().reserved), (8 * MIB, 8 * MIB));
    stage.pool.trim_to(0).unwrap();
    assert_eq!((before - free(), stage.pool.usage().reserved), (4 * MIB, 4 * MIB));
    kept.into_iter().for_each(|block| stage.free(block));
    stage.end();
}

#[test]
fn a_reap_keeps_no_more_than_the_release_threshold() {
    let config = PoolConfig::compact().with_page_size(2 * MIB).with_release_threshold(4 * MIB);
    let stage = stage(config);
    let [a, ..] = stage.streams();
    stage.pass(a, 5 * ALL, 1);
    for _ in 0..2 {
        stage.rig.device().synchronize().unwrap();
        stage.pool.try_reap().unwrap();
    }
    assert_eq!(stage.pool.usage().reserved, 4 * MIB);
    assert_eq!(stage.pool.reserved_high(), 10 * MIB);
    stage.end();
}

#[test]
fn dropping_it_waits_for_work_that_is_not_known_to_be_done_and_for_no_other() {
    for is_known in [false, true] {
        let rig = rig(Policy::Lazy, 0, 256 * MIB);
        let pool = pool_over(Upstream::Virtual, &rig, four_pages());
        let streams = [rig.stream(), rig.stream()];
        for stream in &streams {
            let block = pool.allocate(ALL, stream.id(), AllocTag::UNTAGGED).unwrap();
            rig.universe().region_allocated(block.ptr(), ALL, "block");
            rig.ops().fill_pattern(&block, 0..ALL, 1, stream.id()).unwrap();
            rig.universe().region_freed(block.ptr());
            pool.deallocate(block).unwrap();
        }
        if is_known {
            trim_completely(&rig, &pool);
        }
        rig.universe().reset_calls();
        drop(pool);
        let waited = rig.universe().calls().count("cuEventSynchronize");
        assert_eq!(waited, if is_known { 0 } else { 2 });
        drop(streams);
        rig.assert_clean();
    }
}

#[test]
fn what_is_dropped_with_a_block_in_it_is_leaked_and_the_rest_goes_back() {
    let rig = rig(Policy::Lazy, 0, 256 * MIB);
    let free = || rig.device().memory_info().unwrap().0;
    let before = free();
    let pool = pool_over(Upstream::Virtual, &rig, four_pages());
    let stream = rig.stream();
    let blocks: Vec<_> =
        (0..4).map(|_| pool.allocate(ALL, stream.id(), AllocTag::UNTAGGED).unwrap()).collect();
    let mut blocks = blocks.into_iter();
    let _leaked = blocks.next();
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
    drop(pool);
    assert_eq!(before - free(), 2 * MIB);
}

#[test]
fn without_virtual_memory_it_works_on_blocks_and_says_so() {
    for upstream in [Upstream::Direct, Upstream::Async, Upstream::Virtual] {
        let stage = Stage::new(upstream, PoolConfig::compact());
        let is_paged = upstream == Upstream::Virtual;
        let block = stage.allocate(stage.streams()[0], 100);
        let stats = stage.pool.stats();
        assert_eq!(stats.page_size, if is_paged { 8 * MIB } else { 0 });
        assert_eq!(stats.in_use + stats.cached, stats.reserved);
        assert_eq!(stats.segments, 1);
        let shown = format!("{:?}", stage.pool);
        assert_eq!(shown.starts_with("Pool(pages of 8 MiB, "), is_paged, "{shown}");
        stage.free(block);
        stage.end();
    }
}

#[test]
fn the_initial_size_is_mapped_at_once() {
    let stage = rig(Policy::Lazy, 0, 256 * MIB);
    let pool = pool_over(Upstream::Virtual, &stage, four_pages().with_initial_size(5 * MIB));
    assert_eq!(pool.usage().reserved, 6 * MIB);
    stage.universe().reset_calls();
    let default = stage.streams().default_stream();
    let block = pool.allocate(5 << 20, default, AllocTag::UNTAGGED).unwrap();
    assert_eq!(stage.universe().calls().count("cuMemCreate"), 0);
    pool.deallocate(block).unwrap();
    trim_completely(&stage, &pool);
    drop(pool);
    stage.assert_clean();
}
