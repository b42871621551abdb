//! Dedicated blocks: the segment of one serves blocks of about its size, one at a time.

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
    let pool = pool(&rig, PoolConfig::fast().with_dedicated_from(MIB as u64));
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
fn a_free_one_hides_no_larger_free_memory() {
    let rig = Rig::new();
    let config = PoolConfig::fast().with_dedicated_from(8 * MIB as u64);
    let pool = pool(&rig, config.with_initial_size(64 * MIB as u64));
    // Leaves no room for the next block, which is dedicated so.
    let most = take(&pool, 60 * MIB);
    let dedicated = take(&pool, 30 * MIB);
    assert_eq!(reserved(&pool), 94 * MIB);
    pool.deallocate(most).unwrap();
    pool.deallocate(dedicated).unwrap();
    let small = take(&pool, MIB);
    assert_eq!(reserved(&pool), 94 * MIB, "the initial memory is free");
    pool.deallocate(small).unwrap();
    drop(pool);
    rig.assert_clean();
}
