//! S3: resource, rig, leases and blocks are dropped in any order.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn a_resource_keeps_its_pool_and_device_alive() {
    let rig = Rig::new();
    let universe = rig.simulator().cloned();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let lease = rig.stream();
    let block = resource.allocate(100, lease.id(), AllocTag::UNTAGGED).unwrap();
    drop((rig, lease));
    // The home stream's lease is gone, its id refused; the block goes back all the same.
    resource.deallocate(block).unwrap();
    let block = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    resource.deallocate(block).unwrap();
    drop(resource);
    assert!(universe.is_none_or(|universe| universe.finish().is_clean()));
}

#[test]
fn a_resource_dropped_on_a_thread_that_never_used_cuda_frees_there() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let block = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    resource.deallocate(block).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(resource));
    });
    rig.assert_clean();
}
