//! A pool holds what it says that it holds.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource, RegionState};
use dmr_testkit::Rig;

const MIB: u64 = 1 << 20;

#[test]
fn the_map_covers_what_is_reserved_and_the_numbers_are_its_sums() {
    let rig = Rig::new();
    let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
    let config = PoolConfig::fast().with_initial_size(16 * MIB);
    let pool = PoolResource::new(upstream, Arc::clone(rig.streams()), config).unwrap();
    let stream = rig.streams().default_stream();
    let allocate = |bytes| pool.allocate(bytes, stream, AllocTag::UNTAGGED).unwrap();
    let blocks = [3 << 20, 1000, 256 << 10].map(allocate);
    let [large, small, middle] = blocks;
    pool.deallocate(small).unwrap();

    let stats = pool.stats();
    let map = pool.heap_map();
    assert_eq!((stats.reserved, stats.segments, stats.arenas), (16 * MIB, 1, 1));
    assert_eq!(stats.in_use, 3 * MIB + (256 << 10));
    assert_eq!(stats.in_use + stats.cached + stats.pending, stats.reserved);
    assert!(stats.largest_free > 12 * MIB && stats.fragmentation() < 0.01, "{stats:?}");
    let free: u64 = stats.free_by_size.iter().map(|line| line.bytes).sum();
    assert_eq!(free, stats.cached);
    assert_eq!(map.iter().map(|region| region.bytes).sum::<u64>(), stats.reserved);
    for pair in map.windows(2) {
        assert_eq!(pair[0].address + pair[0].bytes, pair[1].address, "one segment, no gaps");
    }
    let in_use = map.iter().filter(|region| region.state == RegionState::InUse);
    let mut in_use: Vec<_> = in_use.map(|region| region.address).collect();
    let mut blocks = [large.ptr(), middle.ptr()];
    in_use.sort_unstable();
    blocks.sort_unstable();
    assert_eq!(in_use, blocks);

    pool.deallocate(large).unwrap();
    pool.deallocate(middle).unwrap();
    pool.trim_to(0).unwrap();
    assert_eq!((pool.stats().reserved, pool.heap_map().len()), (0, 0));
    assert_eq!(pool.stats().reserved_high, 16 * MIB);
}
