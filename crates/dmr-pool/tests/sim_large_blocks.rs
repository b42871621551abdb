//! Blocks of more bytes than 32 bits can count.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
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
