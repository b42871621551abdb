//! `CUmemoryPool`: which memory an allocation may reuse, what the counters say, when memory goes
//! back to the device.

use crate::support::gpu::{
    self, Gpu, code, fill, free, free_async, kinds, malloc_async, malloc_from, order, pool_get,
    pool_set,
};
use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool, CUstream};
use dmr_sim::{Policy, Universe};

use Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as THRESHOLD;
use Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as RESERVED;
use Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as RESERVED_HIGH;
use Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES as INTERNAL;
use Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC as OPPORTUNISTIC;
use Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES as FOLLOW;
use Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as USED;
use Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH as USED_HIGH;

const MIB: usize = 1 << 20;
/// A multiple of what any driver takes from the device at once, so that nothing is left beside a
/// block.
const WHOLE: usize = 64 * MIB;

/// A device that runs work when it is waited for, and a pool that keeps its memory, with these
/// kinds of reuse.
fn pool_with(reuse: &[Attribute]) -> (Universe, Gpu, CUmemoryPool) {
    let (universe, gpu) = lazy(16 << 30);
    let pool = gpu::pool(gpu.device);
    pool_set(pool, THRESHOLD, u64::MAX);
    for attribute in [FOLLOW, OPPORTUNISTIC, INTERNAL] {
        pool_set(pool, attribute, u64::from(reuse.contains(&attribute)));
    }
    (universe, gpu, pool)
}

fn lazy(capacity: u64) -> (Universe, Gpu) {
    let universe = Universe::builder().policy(Policy::Lazy).capacity(capacity).build().unwrap();
    let gpu = Gpu::new(&universe);
    (universe, gpu)
}

/// Allocates, uses and frees a block on one stream.
fn freed_block(pool: CUmemoryPool, stream: CUstream) -> u64 {
    let block = malloc_from(pool, WHOLE, stream).unwrap();
    fill(block, 1, WHOLE, stream).unwrap();
    free_async(block, stream).unwrap();
    block
}

#[test]
fn every_kind_of_reuse_is_on_at_first() {
    let (_universe, gpu) = lazy(16 << 30);
    for pool in [gpu::pool(gpu.device), gpu::default_pool(gpu.device)] {
        for attribute in [FOLLOW, OPPORTUNISTIC, INTERNAL] {
            assert_eq!(pool_get(pool, attribute) as u32, 1, "{attribute:?}");
        }
        assert_eq!(pool_get(pool, THRESHOLD), 0);
    }
}

#[test]
fn a_stream_reuses_its_own_memory_at_once() {
    let (universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let block = freed_block(pool, a);
    assert_eq!(malloc_from(pool, WHOLE, a).unwrap(), block);
    fill(block, 2, WHOLE, a).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn another_stream_does_not_get_memory_whose_free_is_pending() {
    let (_universe, _gpu, pool) = pool_with(&[FOLLOW, OPPORTUNISTIC]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = freed_block(pool, a);
    assert_ne!(malloc_from(pool, WHOLE, b).unwrap(), block);
}

#[test]
fn a_stream_that_waited_for_the_free_reuses_the_memory() {
    let (universe, _gpu, pool) = pool_with(&[FOLLOW]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = freed_block(pool, a);
    order(a, b);
    assert_eq!(malloc_from(pool, WHOLE, b).unwrap(), block);
    fill(block, 2, WHOLE, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn a_wait_for_something_before_the_free_is_not_enough() {
    let (_universe, _gpu, pool) = pool_with(&[FOLLOW]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = malloc_from(pool, WHOLE, a).unwrap();
    order(a, b);
    free_async(block, a).unwrap();
    assert_ne!(malloc_from(pool, WHOLE, b).unwrap(), block);
}

#[test]
fn event_dependencies_are_followed_only_if_the_pool_may() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = freed_block(pool, a);
    order(a, b);
    assert_ne!(malloc_from(pool, WHOLE, b).unwrap(), block);
}

#[test]
fn memory_whose_free_has_executed_is_reused_if_the_pool_may() {
    let (universe, _gpu, pool) = pool_with(&[OPPORTUNISTIC]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = freed_block(pool, a);
    while !gpu::query(a) {}
    assert_eq!(malloc_from(pool, WHOLE, b).unwrap(), block);
    fill(block, 2, WHOLE, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn memory_whose_free_has_executed_is_not_reused_if_the_pool_may_not() {
    let universe = Universe::builder().policy(Policy::Eager).build().unwrap();
    let gpu = Gpu::new(&universe);
    let pool = gpu::pool(gpu.device);
    pool_set(pool, OPPORTUNISTIC, 0);
    pool_set(pool, INTERNAL, 0);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = freed_block(pool, a);
    assert_ne!(malloc_from(pool, WHOLE, b).unwrap(), block);
}

#[test]
fn memory_that_the_host_has_waited_for_is_reused_by_every_stream() {
    let (universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = freed_block(pool, a);
    gpu::sync(a).unwrap();
    assert_eq!(malloc_from(pool, WHOLE, b).unwrap(), block);
    fill(block, 2, WHOLE, b).unwrap();
    assert_eq!(kinds(&universe), []);
}

#[test]
fn opportunistic_reuse_orders_the_memory_and_nothing_else() {
    let universe = Universe::builder().policy(Policy::Eager).build().unwrap();
    let gpu = Gpu::new(&universe);
    let pool = gpu::pool(gpu.device);
    let a = gpu::stream();
    let b = gpu::stream();
    let other = gpu::malloc(64).unwrap();
    fill(other, 1, 64, a).unwrap();
    let block = freed_block(pool, a);
    // The free has executed without a wait for it: a coincidence of this run, no order.
    assert_eq!(malloc_from(pool, WHOLE, b).unwrap(), block);
    fill(block, 2, WHOLE, b).unwrap();
    assert_eq!(kinds(&universe), []);
    fill(other, 2, 64, b).unwrap();
    assert_eq!(kinds(&universe), [dmr_sim::ReportKind::WriteAfterWrite]);
}

#[test]
fn memory_is_shared_by_an_internal_dependency_only_when_the_device_is_full() {
    let block_bytes = 600 * MIB;
    for allowed in [true, false] {
        let (universe, gpu) = lazy(1 << 30);
        let pool = gpu::pool(gpu.device);
        pool_set(pool, OPPORTUNISTIC, 0);
        pool_set(pool, INTERNAL, u64::from(allowed));
        let a = gpu::stream();
        let b = gpu::stream();
        let small = freed_block(pool, a);
        assert_ne!(malloc_from(pool, WHOLE, b).unwrap(), small, "there is room");
        let block = malloc_from(pool, block_bytes, a).unwrap();
        fill(block, 1, block_bytes, a).unwrap();
        free_async(block, a).unwrap();
        let again = malloc_from(pool, block_bytes, b);
        if allowed {
            assert_eq!(again.unwrap(), block);
            fill(block, 2, block_bytes, b).unwrap();
            gpu::sync(b).unwrap();
            assert_eq!(gpu::read(block, 64).unwrap(), [2; 64]);
        } else {
            assert_eq!(code(again), Some(2), "out of memory");
        }
        assert_eq!(kinds(&universe), []);
    }
}

#[test]
fn a_small_allocation_takes_part_of_a_larger_freed_one() {
    let (universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let block = freed_block(pool, a);
    let first = malloc_from(pool, 1000, a).unwrap();
    let second = malloc_from(pool, 1000, a).unwrap();
    let inside = |address: u64| (block..block + WHOLE as u64).contains(&address);
    assert!(inside(first) && inside(second));
    assert!(first.abs_diff(second) >= 1000);
    fill(first, 1, 1000, a).unwrap();
    fill(second, 2, 1000, a).unwrap();
    gpu::sync(a).unwrap();
    assert_eq!(gpu::read(first, 1000).unwrap(), [1; 1000]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn freed_neighbours_become_one_block_again() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let whole = freed_block(pool, a);
    let halves = [WHOLE / 2; 2].map(|bytes| malloc_from(pool, bytes, a).unwrap());
    for half in halves {
        free_async(half, a).unwrap();
    }
    gpu::sync(a).unwrap();
    assert_eq!(malloc_from(pool, WHOLE, a).unwrap(), whole);
}

#[test]
fn the_counters_follow_allocations_and_remember_their_peaks() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let read = |attribute| pool_get(pool, attribute);
    assert_eq!([RESERVED, RESERVED_HIGH, USED, USED_HIGH].map(read), [0; 4]);
    let block = malloc_from(pool, 3 * MIB, a).unwrap();
    let used = read(USED);
    assert!(used >= 3 * MIB as u64);
    assert!(read(RESERVED) >= used);
    free_async(block, a).unwrap();
    gpu::sync(a).unwrap();
    assert_eq!(read(USED), 0);
    assert_eq!(read(USED_HIGH), used);
    assert_eq!(read(RESERVED_HIGH), read(RESERVED), "the pool kept it");
}

#[test]
fn a_pending_free_no_longer_counts_as_used() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let block = malloc_from(pool, MIB, a).unwrap();
    fill(block, 1, MIB, a).unwrap();
    assert_eq!(pool_get(pool, USED), MIB as u64, "exactly what was asked");
    free_async(block, a).unwrap();
    assert_eq!(pool_get(pool, USED), 0, "as on an H200, before the free has executed");
    gpu::sync(a).unwrap();
}

#[test]
fn a_peak_is_reset_to_what_is_there_now() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let block = malloc_from(pool, 3 * MIB, a).unwrap();
    free_async(block, a).unwrap();
    gpu::sync(a).unwrap();
    let kept = malloc_from(pool, 1000, a).unwrap();
    pool_set(pool, USED_HIGH, 0);
    assert_eq!(pool_get(pool, USED_HIGH), pool_get(pool, USED));
    free_async(kept, a).unwrap();
}

#[test]
fn above_the_threshold_memory_goes_back_when_the_host_waits() {
    let (_universe, gpu) = lazy(16 << 30);
    let pool = gpu::pool(gpu.device);
    let a = gpu::stream();
    freed_block(pool, a);
    assert!(pool_get(pool, RESERVED) > 0, "there was no wait yet");
    gpu::sync(a).unwrap();
    assert_eq!(pool_get(pool, RESERVED), 0, "the threshold is 0 at first");
    pool_set(pool, THRESHOLD, u64::MAX);
    freed_block(pool, a);
    gpu::sync(a).unwrap();
    assert!(pool_get(pool, RESERVED) > 0, "below the threshold it stays");
    pool_set(pool, THRESHOLD, 0);
    let event = gpu::event();
    gpu::record(event, a).unwrap();
    gpu::sync_event(event).unwrap();
    assert_eq!(pool_get(pool, RESERVED), 0, "an event is waited for as well");
}

#[test]
fn memory_in_use_does_not_go_back() {
    let (universe, gpu) = lazy(16 << 30);
    let pool = gpu::pool(gpu.device);
    let a = gpu::stream();
    let kept = malloc_from(pool, MIB, a).unwrap();
    fill(kept, 7, MIB, a).unwrap();
    freed_block(pool, a);
    gpu::sync_context().unwrap();
    gpu::trim(pool, 0).unwrap();
    assert!(pool_get(pool, RESERVED) >= MIB as u64);
    assert_eq!(gpu::read(kept, 64).unwrap(), [7; 64]);
    assert_eq!(kinds(&universe), []);
}

#[test]
fn trimming_releases_free_memory_beyond_the_bytes_to_keep() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let blocks = [(); 4].map(|()| malloc_from(pool, 64 * MIB, a).unwrap());
    for block in blocks {
        free_async(block, a).unwrap();
    }
    gpu::sync(a).unwrap();
    let before = pool_get(pool, RESERVED);
    gpu::trim(pool, usize::MAX).unwrap();
    assert_eq!(pool_get(pool, RESERVED), before);
    gpu::trim(pool, 100 * MIB).unwrap();
    let kept = pool_get(pool, RESERVED);
    assert!(kept < before && kept >= 100 * MIB as u64, "{kept}");
    gpu::trim(pool, 0).unwrap();
    assert_eq!(pool_get(pool, RESERVED), 0);
}

#[test]
fn trimming_leaves_memory_whose_free_is_pending() {
    let (_universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    freed_block(pool, a);
    gpu::trim(pool, 0).unwrap();
    assert!(pool_get(pool, RESERVED) >= MIB as u64);
}

#[test]
fn a_destroyed_pool_allocates_no_more_and_its_blocks_stay_valid() {
    let (universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let block = malloc_from(pool, 1000, a).unwrap();
    gpu::destroy_pool(pool).unwrap();
    assert!(malloc_from(pool, 1000, a).is_err());
    assert!(gpu::destroy_pool(pool).is_err());
    fill(block, 3, 1000, a).unwrap();
    free_async(block, a).unwrap();
    let verdict = universe.finish();
    assert!(verdict.is_clean(), "{verdict}");
}

#[test]
fn cumemfree_frees_pool_memory_too() {
    let (universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    let block = malloc_from(pool, MIB, a).unwrap();
    fill(block, 1, MIB, a).unwrap();
    gpu::sync(a).unwrap();
    free(block).unwrap();
    assert_eq!(pool_get(pool, USED), 0);
    assert!(universe.finish().is_clean());
}

#[test]
fn more_than_the_device_has_is_refused_and_changes_nothing() {
    let (universe, _gpu, pool) = pool_with(&[]);
    let a = gpu::stream();
    for bytes in [17 << 30, usize::MAX, usize::MAX - 255] {
        assert_eq!(code(malloc_from(pool, bytes, a)), Some(2), "{bytes}");
    }
    assert_eq!(pool_get(pool, USED), 0);
    assert!(universe.finish().is_clean());
}

#[test]
fn memory_of_cumemalloc_can_be_freed_in_stream_order() {
    let (universe, _gpu, _pool) = pool_with(&[]);
    let a = gpu::stream();
    let b = gpu::stream();
    let block = gpu::malloc(1000).unwrap();
    fill(block, 1, 1000, a).unwrap();
    free_async(block, a).unwrap();
    assert!(fill(block, 2, 1000, a).is_err());
    gpu::sync(a).unwrap();
    assert_eq!(gpu::kinds(&universe), [dmr_sim::ReportKind::UseAfterFree]);
    let block = gpu::malloc(1000).unwrap();
    fill(block, 1, 1000, a).unwrap();
    free_async(block, b).unwrap();
    assert_eq!(gpu::kinds(&universe)[1..], [dmr_sim::ReportKind::FreeBeforeUse]);
}

#[test]
fn a_streams_own_memory_is_taken_before_a_better_fit() {
    let universe = Universe::builder().policy(Policy::Eager).build().unwrap();
    let _gpu = Gpu::new(&universe);
    let a = gpu::stream();
    let b = gpu::stream();
    let own = malloc_async(8 * MIB, a).unwrap();
    let others = [4, 2, 6].map(|mib| malloc_async(mib * MIB, b).unwrap());
    free_async(own, a).unwrap();
    for other in others {
        free_async(other, b).unwrap();
    }
    assert_eq!(malloc_async(2 * MIB, a).unwrap(), own);
    // What is left of its own is too small; of the rest, executed frees all, the best fit.
    let taken = [8 * MIB, 6 * MIB, 4 * MIB].map(|bytes| malloc_async(bytes, a).unwrap());
    assert!(!others.contains(&taken[0]));
    assert_eq!(taken[1], own + 2 * MIB as u64);
    assert_eq!(taken[2], others[0]);
}
