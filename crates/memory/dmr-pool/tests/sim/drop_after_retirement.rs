//! A pool over pages that is dropped returns the memory that a stream had borrowed from a retired
//! one.

use std::sync::Arc;

use crate::support::{Upstream, pool_over};
use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_pool::PoolConfig;
use dmr_testkit::Rig;

#[test]
fn the_chunks_of_a_retired_stream_are_waited_for_by_the_host() {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let pool = pool_over(Upstream::Virtual, &rig, PoolConfig::fast());
    let adopt = || streams.adopt(rig.device().context().new_stream().unwrap()).unwrap();
    let allocate = |stream: StreamId| pool.allocate(4096, stream, AllocTag::UNTAGGED).unwrap();
    let settle = || {
        streams.synchronize_all().unwrap();
        pool.reap_pending().unwrap();
        pool.trim_to(0).unwrap();
    };
    let retired = adopt();
    let own = allocate(retired.id());
    settle();
    let other = adopt();
    let borrowed = allocate(other.id());
    streams.retire_stream(&retired).unwrap();
    settle();
    for block in [own, borrowed] {
        pool.deallocate(block).unwrap();
    }
    drop((pool, retired, other, streams));
    rig.assert_clean();
}
