//! S3: resource, rig, leases and blocks are dropped in any order.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, StreamId};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

#[test]
fn a_resource_keeps_its_pool_and_device_alive() {
    let rig = Rig::new();
    let universe = rig.simulator().cloned();
    let resource = resource(&rig);
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
fn a_resource_may_go_while_its_frees_are_still_queued() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let stream = rig.stream();
    let block = resource.allocate(1 << 20, stream.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(&stream);
    rig.ops().fill_pattern(&block, 0..1 << 20, 1, stream.id()).unwrap();
    resource.deallocate(block).unwrap();
    drop(resource);
    drop(stream);
    rig.assert_clean();
}

#[test]
fn a_block_outlives_the_stream_that_its_home_was() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let theirs = rig.device().context().new_stream().unwrap();
    let home = rig.streams().adopt(theirs).unwrap();
    let block = resource.allocate(4096, home.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(&home);
    rig.ops().fill_pattern(&block, 0..4096, 1, home.id()).unwrap();
    // Its owner takes the stream back, and may destroy it.
    rig.streams().retire_stream(&home).unwrap();
    drop(home);
    resource.deallocate(block).unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_resource_dropped_on_a_thread_that_never_used_cuda_lets_its_pool_go() {
    let rig = Rig::new();
    let resource = resource(&rig);
    std::thread::scope(|scope| {
        scope.spawn(move || drop(resource));
    });
    rig.assert_clean();
}
