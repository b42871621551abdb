//! The upstreams that a pool of these tests can have.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_testkit::Rig;

pub(crate) type Upstream = Box<dyn DeviceMemoryResource>;
pub(crate) type Make = fn(&Rig) -> Upstream;

/// Direct, async, and pages.
pub(crate) const UPSTREAMS: [Make; 3] = [
    |rig| Box::new(DirectCudaResource::new(Arc::clone(rig.streams()))),
    |rig| {
        let streams = Arc::clone(rig.streams());
        Box::new(AsyncCudaResource::new(streams, AsyncConfig::new()).unwrap())
    },
    |rig| {
        let streams = Arc::clone(rig.streams());
        Box::new(VirtualCudaResource::new(streams, VirtualConfig::new()).unwrap())
    },
];
