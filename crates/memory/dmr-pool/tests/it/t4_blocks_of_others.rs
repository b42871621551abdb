//! T4: a pool refuses blocks of other resources, also of those on the same streams, and gives them
//! back as they were.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pinned::{PinnedKind, PinnedResource};
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 1000;

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

fn pool(rig: &Rig) -> PoolResource<DirectCudaResource> {
    PoolResource::new(direct(rig), Arc::clone(rig.streams()), PoolConfig::fast()).unwrap()
}

fn a_pool_refuses_blocks_of<R: DeviceMemoryResource>(make: impl FnOnce(&Rig) -> R) {
    let rig = Rig::new();
    let pool = pool(&rig);
    let other = make(&rig);
    let stream = rig.stream();
    let own = pool.allocate(BYTES, stream.id(), AllocTag::UNTAGGED).unwrap();
    let mut block = other.allocate(BYTES, stream.id(), AllocTag::UNTAGGED).unwrap();
    let before = pool.usage();
    let of_other = other.usage();
    let grown = pool.try_grow(&mut block, 2 * BYTES).unwrap_err();
    assert!(matches!(grown, ResourceError::ForeignBlock { .. }), "{grown}");
    let refused = pool.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }), "{}", refused.error);
    assert_eq!((pool.usage(), other.usage()), (before, of_other));
    other.deallocate(refused.block).unwrap();
    other.reap_pending().unwrap();
    pool.deallocate(own).unwrap();
    assert_eq!((pool.bytes_outstanding(), other.bytes_outstanding()), (0, 0));
    drop((pool, other, stream));
    rig.assert_clean();
}

#[test]
fn a_pool_refuses_blocks_of_another_pool_on_the_same_streams() {
    a_pool_refuses_blocks_of(pool);
}

#[test]
fn a_pool_refuses_blocks_of_the_drivers_pool_on_the_same_streams() {
    a_pool_refuses_blocks_of(|rig| {
        AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
    });
}

#[test]
fn a_pool_refuses_blocks_of_a_tracked_resource_on_the_same_streams() {
    a_pool_refuses_blocks_of(|rig| Tracked::new(direct(rig), Arc::clone(rig.streams())).unwrap());
}

/// D5: the host must not get the memory while work uses it that only the pool orders.
#[test]
fn a_pool_over_host_memory_allocates_nothing() {
    let rig = Rig::new();
    let streams = rig.streams();
    let stream = rig.stream();
    let pinned = PinnedResource::new(Arc::clone(streams), PinnedKind::Cached);
    let tracked = Tracked::new(pinned.clone(), Arc::clone(streams)).unwrap();
    let over_pinned =
        PoolResource::new(pinned.clone(), Arc::clone(streams), PoolConfig::fast()).unwrap();
    let over_tracked = PoolResource::new(tracked, Arc::clone(streams), PoolConfig::fast()).unwrap();
    let pools: [&dyn DeviceMemoryResource; 2] = [&over_pinned, &over_tracked];
    for pool in pools {
        let refused = pool.allocate(BYTES, stream.id(), AllocTag::UNTAGGED).unwrap_err();
        assert!(matches!(refused, ResourceError::HostMemory { .. }), "{refused}");
        assert_eq!(pool.bytes_outstanding(), 0);
    }
    pinned.reap_pending().unwrap();
    assert_eq!(pinned.bytes_outstanding(), 0);
}

#[test]
fn a_pool_refuses_blocks_that_are_not_tracked() {
    a_pool_refuses_blocks_of(direct);
}
