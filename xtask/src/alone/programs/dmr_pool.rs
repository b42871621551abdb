//! `dmr-pool` alone: a pool over a resource of one's own.

mod own_resource;

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_sim::Universe;
use dmr_streams::{Device, StreamPool, StreamPoolConfig};
use own_resource::Addresses;

fn main() {
    let universe = Universe::new().unwrap();
    let device = Device::open(universe.ordinal(0)).unwrap();
    let streams = StreamPool::new(device, StreamPoolConfig::new()).unwrap();
    let upstream = Addresses::new(streams.id());
    let memory = PoolResource::new(upstream, Arc::clone(&streams), PoolConfig::fast()).unwrap();
    let block = memory.allocate(1000, StreamId::DEFAULT, AllocTag::new("alone")).unwrap();
    memory.deallocate(block).unwrap();
    memory.reap_pending().unwrap();
    assert_eq!(memory.bytes_outstanding(), 0);
    assert!(memory.trim_to(0).unwrap() > 0);
}
