//! Tests of what cannot be seen from outside of the crate, on the simulated driver.

mod counts;
mod hands;
mod loans;
mod slack;
mod stalls;
pub(crate) mod work;

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceBlock, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_sim::{Policy, Universe};
use dmr_streams::{Device, StreamLease, StreamPool, StreamPoolConfig};

use crate::{PoolConfig, PoolResource};

pub(crate) type Pool = PoolResource<Box<dyn DeviceMemoryResource>>;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) struct Stage {
    pub(crate) pool: Pool,
    streams: [StreamLease; 2],
    _universe: Universe,
}

impl Stage {
    pub(crate) fn new(is_paged: bool, policy: Policy, config: PoolConfig) -> Self {
        let builder = Universe::builder().devices(1).policy(policy).capacity(64 << 30);
        let universe = builder.build().unwrap();
        let device = Device::open(universe.ordinal(0)).unwrap();
        let streams = StreamPool::new(device, StreamPoolConfig::default()).unwrap();
        let upstream: Box<dyn DeviceMemoryResource> = if is_paged {
            let config = VirtualConfig::new();
            Box::new(VirtualCudaResource::new(Arc::clone(&streams), config).unwrap())
        } else {
            Box::new(DirectCudaResource::new(Arc::clone(&streams)))
        };
        let leases = [streams.acquire().unwrap(), streams.acquire().unwrap()];
        let pool = PoolResource::new(upstream, streams, config).unwrap();
        Self { pool, streams: leases, _universe: universe }
    }

    pub(crate) fn streams(&self) -> [StreamId; 2] {
        [0, 1].map(|at| self.streams[at].id())
    }

    pub(crate) fn allocate(&self, stream: StreamId, bytes: usize) -> Option<DeviceBlock> {
        self.pool.allocate(bytes, stream, AllocTag::UNTAGGED).ok()
    }

    pub(crate) fn free(&self, block: DeviceBlock) {
        self.pool.deallocate(block).unwrap();
    }

    /// Allocates blocks of one size until the pool has no more, or `most` of them.
    pub(crate) fn fill(&self, stream: StreamId, bytes: usize, most: usize) -> Vec<DeviceBlock> {
        (0..most).map_while(|_| self.allocate(stream, bytes)).collect()
    }

    /// Frees every second block, and returns the others.
    pub(crate) fn free_every_second(&self, blocks: Vec<DeviceBlock>) -> Vec<DeviceBlock> {
        let mut held = Vec::new();
        for (at, block) in blocks.into_iter().enumerate() {
            if at % 2 == 0 { self.free(block) } else { held.push(block) }
        }
        held
    }

    pub(crate) fn end(self, held: Vec<DeviceBlock>) {
        for block in held {
            self.free(block);
        }
        assert_eq!(self.pool.usage().outstanding(), 0);
    }
}
