//! Blocks of more bytes, and pools of more units, than 32 bits can count.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_sim::Universe;
use dmr_testkit::Rig;

#[test]
fn a_block_may_have_more_than_four_gibibytes_of_pages() {
    let rig = Rig::simulated();
    let streams = rig.streams();
    let upstream = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new()).unwrap();
    let pool = PoolResource::new(upstream, Arc::clone(streams), PoolConfig::fast()).unwrap();
    assert_ne!(pool.stats().page_size, 0);
    let bytes = 5 << 30;
    let block = pool.allocate(bytes, streams.default_stream(), AllocTag::UNTAGGED).unwrap();
    assert_eq!((block.bytes(), pool.usage().reserved), (bytes, bytes as u64));
    pool.deallocate(block).unwrap();
    drop(pool);
    rig.assert_clean();
}

/// 1.5 TiB.
const BYTES: u64 = 3 << 39;

fn serves_all_that_it_has_reserved(is_paged: bool) {
    let universe = Universe::builder().devices(1).capacity(2 << 40).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let streams = rig.streams();
    let upstream: Box<dyn DeviceMemoryResource> = if is_paged {
        Box::new(VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new()).unwrap())
    } else {
        Box::new(DirectCudaResource::new(Arc::clone(streams)))
    };
    let config = PoolConfig::fast().with_initial_size(BYTES).with_growth(u64::MAX);
    let config = config.with_page_size(1 << 30);
    let pool = PoolResource::new(upstream, Arc::clone(streams), config).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.reserved, stats.cached), (BYTES, BYTES));
    let allocate = |bytes: u64| {
        pool.allocate(bytes as usize, streams.default_stream(), AllocTag::UNTAGGED).unwrap()
    };
    let mut blocks: Vec<_> = (0..6).map(|_| allocate(BYTES / 6)).collect();
    assert_eq!(pool.stats().reserved, BYTES, "the blocks fit");
    blocks.push(allocate(64 << 30));
    let stats = pool.stats();
    assert_eq!(stats.in_use + stats.cached, stats.reserved, "after a step of growth");
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
    pool.trim_to(0).unwrap();
    assert_eq!(pool.usage().reserved, 0);
}

#[test]
fn a_pool_of_more_than_a_tebibyte_of_blocks_serves_all_that_it_has_reserved() {
    serves_all_that_it_has_reserved(false);
}

#[test]
fn a_pool_of_more_than_a_tebibyte_of_pages_serves_all_that_it_has_reserved() {
    serves_all_that_it_has_reserved(true);
}
