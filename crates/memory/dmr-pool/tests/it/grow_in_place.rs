//! A block that grows where it is: it stays the same block, what was in it stays, the accounting is
//! exact, and nothing changes where it cannot grow.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, ByteRange, DeviceBlock, DeviceMemoryResource, DeviceOps,
    ResourceError, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

type Pool = PoolResource<Box<dyn DeviceMemoryResource>>;

fn blocks(rig: &Rig, config: PoolConfig) -> Pool {
    let upstream = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    PoolResource::new(Box::new(upstream) as _, Arc::clone(rig.streams()), config).unwrap()
}

fn pages(rig: &Rig, config: PoolConfig) -> Pool {
    let upstream =
        VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap();
    let config = config.with_page_size(2 << 20);
    PoolResource::new(Box::new(upstream) as _, Arc::clone(rig.streams()), config).unwrap()
}

/// Both kinds of pool.
fn each(config: PoolConfig, play: impl Fn(&Rig, &Pool)) {
    for make in [blocks, pages] {
        let rig = Rig::new();
        let pool = make(&rig, config);
        play(&rig, &pool);
        assert_eq!(pool.usage().outstanding(), 0);
        drop(pool);
        rig.assert_clean();
    }
}

fn take(pool: &Pool, bytes: usize) -> DeviceBlock {
    pool.allocate(bytes, pool.streams().default_stream(), AllocTag::UNTAGGED).unwrap()
}

#[test]
fn it_stays_the_same_block_with_what_was_in_it() {
    each(PoolConfig::fast().with_growth(16 << 20), |rig, pool| {
        let home = pool.streams().default_stream();
        let first = take(pool, 16 * MIB);
        pool.deallocate(first).unwrap();
        let mut block = take(pool, MIB);
        rig.ops().fill_pattern(&block, 0..MIB, 7, home).unwrap();
        let id = block.id();
        let ptr = block.ptr();
        let stream = block.alloc_stream();
        for bytes in [MIB + 1, 3 * MIB, 16 * MIB] {
            assert!(pool.try_grow(&mut block, bytes).unwrap(), "{bytes}");
            assert_eq!((block.id(), block.ptr(), block.alloc_stream()), (id, ptr, stream));
            assert_eq!(block.bytes(), bytes);
            assert!(block.reserved_bytes() >= bytes);
            assert_eq!(pool.usage().live, bytes as u64);
        }
        rig.ops().fill_pattern(&block, MIB..16 * MIB, 9, home).unwrap();
        rig.ops().check_pattern(&block, 0..MIB, 7, home, 0).unwrap();
        assert!(rig.ops().collect().unwrap().is_empty());
        pool.deallocate(block).unwrap();
        let usage = pool.usage();
        assert_eq!((usage.total_allocated, usage.total_freed), (32 << 20, 32 << 20));
        // All of it serves again.
        let again = take(pool, 16 * MIB);
        assert_eq!(again.ptr(), ptr);
        pool.deallocate(again).unwrap();
    });
}

#[test]
fn a_block_that_is_as_large_already_stays_as_it_is() {
    each(PoolConfig::fast(), |_, pool| {
        let mut block = take(pool, 1000);
        let before = pool.usage();
        for bytes in [0, 1, 1000] {
            assert!(pool.try_grow(&mut block, bytes).unwrap());
        }
        assert_eq!((block.bytes(), pool.usage()), (1000, before));
        pool.deallocate(block).unwrap();
    });
}

#[test]
fn what_a_block_was_rounded_up_to_is_its_own_up_to_the_next_block() {
    each(PoolConfig::fast(), |_, pool| {
        let x = take(pool, 1000);
        let y = take(pool, 1000);
        let (mut lower, upper) = if x.ptr() < y.ptr() { (x, y) } else { (y, x) };
        let reserved = lower.reserved_bytes();
        assert_eq!(lower.ptr() + reserved as u64, upper.ptr());
        assert!(pool.try_grow(&mut lower, reserved).unwrap());
        assert_eq!((lower.bytes(), lower.reserved_bytes()), (reserved, reserved));
        assert_eq!(pool.usage().live, (reserved + 1000) as u64);
        assert!(!pool.try_grow(&mut lower, reserved + 1).unwrap());
        pool.deallocate(lower).unwrap();
        pool.deallocate(upper).unwrap();
    });
}

#[test]
fn nothing_changes_if_what_follows_is_another_block() {
    each(PoolConfig::fast().with_growth(16 << 20), |_, pool| {
        let x = take(pool, MIB);
        let y = take(pool, MIB);
        let (mut lower, upper) = if x.ptr() < y.ptr() { (x, y) } else { (y, x) };
        assert_eq!(lower.ptr() + MIB as u64, upper.ptr());
        let before = (pool.usage(), lower.reserved_bytes());
        assert!(!pool.try_grow(&mut lower, MIB + 256).unwrap());
        assert_eq!((lower.bytes(), (pool.usage(), lower.reserved_bytes())), (MIB, before));
        pool.deallocate(upper).unwrap();
        assert!(pool.try_grow(&mut lower, MIB + 256).unwrap());
        pool.deallocate(lower).unwrap();
    });
}

#[test]
fn what_does_not_exist_is_refused_cleanly() {
    each(PoolConfig::fast(), |rig, pool| {
        let mut block = take(pool, MIB);
        let before = pool.usage();
        let beyond = rig.device().total_memory() as usize + 1;
        for bytes in [beyond, usize::MAX, usize::MAX - 255] {
            let refused = pool.try_grow(&mut block, bytes);
            assert!(matches!(refused, Err(ResourceError::InvalidSize { .. })), "{refused:?}");
        }
        assert_eq!((block.bytes(), pool.usage()), (MIB, before));
        let other = blocks(rig, PoolConfig::fast());
        let refused = other.try_grow(&mut block, 2 * MIB);
        assert!(matches!(refused, Err(ResourceError::ForeignBlock { .. })), "{refused:?}");
        pool.deallocate(block).unwrap();
    });
}

#[test]
fn it_does_not_grow_under_another_streams_open_window() {
    each(PoolConfig::fast().with_growth(16 << 20), |rig, pool| {
        // The first lease is of the default stream.
        let _first = rig.stream();
        let other = rig.stream();
        let mut block = take(pool, MIB);
        let uses = [BlockUse::new(block.id(), Access::Read)];
        let window = pool.prepare_uses(&uses, other.id()).unwrap();
        let before = (pool.usage().live, block.reserved_bytes());
        let refused = pool.try_grow(&mut block, 2 * MIB);
        assert!(matches!(refused, Err(ResourceError::WindowConflict { .. })), "{refused:?}");
        assert_eq!((pool.usage().live, block.reserved_bytes()), before);
        pool.cancel_uses(window).unwrap();
        assert!(pool.try_grow(&mut block, 2 * MIB).unwrap());
        pool.deallocate(block).unwrap();
    });
}

/// U15: a part that another stream used before the block grew is waited for, and so is one that it
/// uses afterwards; while a window on it is open, the block does not grow.
#[test]
fn a_block_grows_beside_uses_of_its_parts_but_not_under_their_windows() {
    each(PoolConfig::fast().with_growth(16 << 20), |rig, pool| {
        let _first = rig.stream();
        let other = rig.stream();
        let third = rig.stream();
        let mut block = take(pool, MIB);
        let part = |block: &DeviceBlock, start: usize| {
            let bytes = ByteRange::new(block.ptr() + start as u64, 4096);
            [BlockUse::of_bytes(block.id(), Access::Write, bytes)]
        };
        let fill = |block: &DeviceBlock, start: usize, pattern, on| {
            rig.delay(on);
            rig.ops().fill_pattern(block, start..start + 4096, pattern, on).unwrap();
        };
        let window = pool.prepare_uses(&part(&block, 0), other.id()).unwrap();
        let refused = pool.try_grow(&mut block, 2 * MIB);
        assert!(matches!(refused, Err(ResourceError::WindowConflict { .. })), "{refused:?}");
        fill(&block, 0, 1, other.id());
        pool.finish_uses(window).unwrap();
        assert!(pool.try_grow(&mut block, 2 * MIB).unwrap());
        // In the new bytes, and in the old ones.
        for (start, lease, pattern) in [(MIB + 512, &third, 2), (8192, &other, 3)] {
            let tokens = pool.prepare_uses(&part(&block, start), lease.id()).unwrap();
            fill(&block, start, pattern, lease.id());
            pool.finish_uses(tokens).unwrap();
        }
        let home = block.alloc_stream();
        let tokens = pool.prepare_block_use(block.id(), home, Access::Read).unwrap();
        for (start, pattern) in [(0, 1), (MIB + 512, 2), (8192, 3)] {
            let range = start..start + 4096;
            rig.ops().check_pattern(&block, range, pattern, home, 0).unwrap();
        }
        pool.finish_uses(tokens).unwrap();
        assert_eq!(rig.ops().collect().unwrap(), []);
        pool.deallocate(block).unwrap();
    });
}

#[test]
fn the_last_block_of_its_addresses_grows_as_long_as_there_is_memory() {
    let rig = Rig::new();
    let pool = pages(&rig, PoolConfig::fast().with_maximum_size(64 << 20));
    let mut block = take(&pool, 1);
    let ptr = block.ptr();
    for mib in [1, 2, 3, 30, 64] {
        assert!(pool.try_grow(&mut block, mib * MIB).unwrap(), "{mib} MiB");
        let reserved = (mib.next_multiple_of(2) * MIB) as u64;
        assert_eq!((block.ptr(), pool.usage().reserved), (ptr, reserved));
    }
    assert!(!pool.try_grow(&mut block, 64 * MIB + 1).unwrap());
    assert_eq!((block.bytes(), pool.usage().live), (64 * MIB, 64 << 20));
    pool.deallocate(block).unwrap();
}

#[test]
fn pages_that_are_free_elsewhere_move_behind_the_block() {
    let rig = Rig::new();
    let pool = pages(&rig, PoolConfig::fast().with_maximum_size(8 << 20));
    let mut held: Vec<_> = (0..4).map(|_| take(&pool, 2 * MIB)).collect();
    held.sort_by_key(DeviceBlock::ptr);
    let mut last = held.pop().unwrap();
    let middle = held.remove(1);
    pool.deallocate(middle).unwrap();
    assert!(pool.try_grow(&mut last, 4 * MIB).unwrap());
    assert!(!pool.try_grow(&mut last, 4 * MIB + 1).unwrap());
    assert_eq!(pool.usage().reserved, 8 << 20);
    for block in held.into_iter().chain([last]) {
        pool.deallocate(block).unwrap();
    }
}
