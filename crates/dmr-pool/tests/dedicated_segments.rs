//! Blocks with memory of their own: it serves blocks of about its size, one at a time, and goes
//! back to upstream if it is larger than the pool keeps.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

type Pool = PoolResource<DirectCudaResource>;

fn pool(rig: &Rig, config: PoolConfig) -> Pool {
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap()
}

fn take(pool: &Pool, bytes: usize) -> DeviceBlock {
    pool.allocate(bytes, pool.streams().default_stream(), AllocTag::UNTAGGED).unwrap()
}

fn reserved(pool: &Pool) -> usize {
    pool.stats().reserved as usize
}

#[test]
fn it_serves_a_block_that_wastes_an_eighth_and_none_that_wastes_more() {
    let rig = Rig::new();
    let pool = pool(&rig, PoolConfig::fast().with_apart_from(MIB as u64));
    let first = take(&pool, 18 * MIB);
    let place = first.ptr();
    pool.deallocate(first).unwrap();
    // 16 MiB and an eighth are 18.
    let again = take(&pool, 16 * MIB);
    assert_eq!((again.ptr(), reserved(&pool)), (place, 18 * MIB));
    pool.deallocate(again).unwrap();
    let smaller = take(&pool, 15 * MIB);
    assert!(smaller.reserved_bytes() <= 15 * MIB / 8 * 9, "{smaller:?}");
    pool.deallocate(smaller).unwrap();
    drop(pool);
    rig.assert_clean();
}

#[test]
fn it_goes_back_when_it_is_larger_than_the_pool_keeps() {
    let rig = Rig::new();
    let config = PoolConfig::fast().with_apart_from(MIB as u64).with_largest_pooled(4 * MIB);
    let pool = pool(&rig, config.with_initial_size(16 << 20));
    for (bytes, kept) in [(2 * MIB, 2 * MIB), (4 * MIB, 6 * MIB), (4 * MIB + 1, 6 * MIB)] {
        let block = take(&pool, bytes);
        assert!(reserved(&pool) > 16 * MIB + kept - bytes, "memory of its own");
        pool.deallocate(block).unwrap();
        assert_eq!(reserved(&pool), 16 * MIB + kept, "after a block of {bytes} bytes");
    }
    // What small blocks are cut from stays, however large.
    let small = take(&pool, 1000);
    pool.deallocate(small).unwrap();
    assert_eq!(reserved(&pool), 22 * MIB);
    drop(pool);
    rig.assert_clean();
}
