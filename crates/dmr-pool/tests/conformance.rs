//! The pool keeps the contract, on every upstream.

use std::sync::Arc;

use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::{ResourceHarness, Rig};

mod over_direct {
    use super::*;

    fn make(rig: &Rig) -> PoolResource<DirectCudaResource> {
        let upstream = DirectCudaResource::new(Arc::clone(rig.streams()));
        PoolResource::new(upstream, Arc::clone(rig.streams()), PoolConfig::fast()).unwrap()
    }

    dmr_core::conformance_tests!(ResourceHarness::new(Rig::new(), make));
}

mod over_the_drivers_pool {
    use super::*;

    fn make(rig: &Rig) -> PoolResource<AsyncCudaResource> {
        let streams = rig.streams();
        let upstream = AsyncCudaResource::new(Arc::clone(streams), AsyncConfig::new()).unwrap();
        PoolResource::new(upstream, Arc::clone(streams), PoolConfig::fast()).unwrap()
    }

    dmr_core::conformance_tests!(ResourceHarness::new(Rig::new(), make));
}

mod over_pages_that_it_maps {
    use super::*;

    fn make(rig: &Rig) -> PoolResource<VirtualCudaResource> {
        let streams = rig.streams();
        let upstream = VirtualCudaResource::new(Arc::clone(streams), VirtualConfig::new()).unwrap();
        let pool = PoolResource::new(upstream, Arc::clone(streams), PoolConfig::compact()).unwrap();
        assert_eq!(pool.stats().page_size, 8 << 20);
        pool
    }

    dmr_core::conformance_tests!(ResourceHarness::new(Rig::new(), make));
}
