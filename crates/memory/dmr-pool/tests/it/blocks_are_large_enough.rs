//! Every block has the requested bytes, and shares none with another, whatever was freed
//! before it and of whatever size.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

const UNIT: usize = 256;

type Pool = PoolResource<DirectCudaResource>;

fn pool(rig: &Rig, config: PoolConfig) -> Pool {
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap()
}

fn take(pool: &Pool, bytes: usize) -> DeviceBlock {
    pool.allocate(bytes, pool.streams().default_stream(), AllocTag::UNTAGGED).unwrap()
}

fn deallocate_all(pool: &Pool, blocks: Vec<DeviceBlock>) {
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
}

fn assert_apart(blocks: &[DeviceBlock]) {
    let mut ranges: Vec<_> =
        blocks.iter().map(|block| (block.ptr(), block.bytes(), block.reserved_bytes())).collect();
    ranges.sort_unstable();
    for &(ptr, bytes, reserved) in &ranges {
        assert!(reserved >= bytes, "{reserved} bytes at {ptr:#x} for {bytes}");
    }
    for pair in ranges.windows(2) {
        let end = pair[0].0 + pair[0].2 as u64;
        let next = pair[1].0;
        assert!(end <= next, "a block that ends at {end:#x}, and one at {next:#x}");
    }
}

/// Memory that has just been freed serves the next request of its size, and of no other.
#[test]
fn a_freed_block_never_serves_a_larger_request() {
    let rig = Rig::new();
    let pool = pool(&rig, PoolConfig::fast());
    let sizes = || (1..=200).map(|units| units * UNIT);
    for _ in 0..2 {
        let once: Vec<_> = sizes().map(|bytes| take(&pool, bytes)).collect();
        assert_apart(&once);
        deallocate_all(&pool, once);
        // Twice as many of each, so that whatever is kept for a size runs out.
        let twice: Vec<_> = sizes().chain(sizes()).map(|bytes| take(&pool, bytes)).collect();
        assert_apart(&twice);
        deallocate_all(&pool, twice);
    }
    drop(pool);
    rig.assert_clean();
}

/// There are only pieces of about the size, nearly all of them a little too small.
#[test]
fn the_one_free_piece_that_is_large_enough_is_found() {
    let rig = Rig::new();
    let all = 16 << 20;
    let config = PoolConfig::fast().with_initial_size(all).with_maximum_size(all);
    let pool = pool(&rig, config);
    let small = 1090 * UNIT;
    let large = 1110 * UNIT;
    let mut pieces = vec![take(&pool, large)];
    let mut held = Vec::new();
    for _ in 0..8 {
        // Between two of them, so that they stay pieces.
        held.push(take(&pool, UNIT));
        pieces.push(take(&pool, small));
    }
    let mut bytes = all as usize;
    while bytes >= UNIT {
        match pool.allocate(bytes, pool.streams().default_stream(), AllocTag::UNTAGGED) {
            Ok(block) => held.push(block),
            Err(_) => bytes /= 2,
        }
    }
    let place = pieces[0].ptr();
    deallocate_all(&pool, pieces);
    held.push(take(&pool, large));
    assert_eq!(held.last().map(DeviceBlock::ptr), Some(place));
    assert_apart(&held);
    deallocate_all(&pool, held);
    drop(pool);
    rig.assert_clean();
}

/// The pool that it is over aligns to 256 bytes: no address in the first 2 MiB may be a multiple of
/// 2 MiB.
#[test]
fn an_initial_size_of_less_than_the_alignment_holds_one_block() {
    let rig = Rig::new();
    let home = rig.streams().default_stream();
    let outer = PoolConfig::fast().with_alignment(2 << 20).with_initial_size(1);
    let upstream = pool(&rig, PoolConfig::fast().with_initial_size(8 << 20));
    let first = take(&upstream, UNIT);
    let pool = PoolResource::new(upstream, Arc::clone(rig.streams()), outer).unwrap();
    let reserved = pool.stats().reserved;
    let block = pool.allocate(2 << 20, home, AllocTag::UNTAGGED).unwrap();
    assert!(block.ptr().is_multiple_of(2 << 20));
    assert_eq!(pool.stats().reserved, reserved, "it is in the initial memory");
    pool.deallocate(block).unwrap();
    pool.upstream().deallocate(first).unwrap();
    drop(pool);
    rig.assert_clean();
}
