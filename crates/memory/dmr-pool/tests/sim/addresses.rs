//! However many streams there are, each has addresses to map pages into.

use crate::support::{Upstream, pool_over, trim_completely};
use dmr_core::{AllocTag, DeviceMemoryResource};
use dmr_pool::PoolConfig;
use dmr_sim::Universe;
use dmr_streams::StreamPoolConfig;
use dmr_testkit::{Rig, RigConfig};

const STREAMS: usize = 1000;
/// A page.
const BYTES: usize = 2 << 20;

/// The simulated driver has 32 TiB of addresses: of a few times the device's memory for each stream
/// they would be enough for 63.
#[test]
fn a_thousand_streams_have_memory_of_a_large_device() {
    let universe = Universe::builder().devices(1).capacity(141 << 30).build();
    let rig = Rig::with(RigConfig {
        universe: Some(universe.expect("the simulated driver")),
        streams: StreamPoolConfig::new().with_max_streams(STREAMS),
        ..RigConfig::default()
    });
    let config = PoolConfig::fast().with_page_size(BYTES as u64);
    let pool = pool_over(Upstream::Virtual, &rig, config);
    let leases: Vec<_> = (0..STREAMS).map(|_| rig.stream()).collect();
    let blocks = leases.iter().map(|lease| pool.allocate(BYTES, lease.id(), AllocTag::UNTAGGED));
    let blocks: Result<Vec<_>, _> = blocks.collect();
    for block in blocks.expect("the device has memory") {
        pool.deallocate(block).unwrap();
    }
    trim_completely(&rig, &pool);
    assert_eq!(pool.usage().reserved, 0);
    drop((pool, leases));
    rig.assert_clean();
}
