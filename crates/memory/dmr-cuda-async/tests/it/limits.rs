//! A limit of the driver's pool: what it refuses, the error says is refused by it.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

const MIB: usize = 1 << 20;

fn limited(rig: &Rig, bytes: usize) -> AsyncCudaResource {
    let config = AsyncConfig::new().with_max_bytes(bytes);
    AsyncCudaResource::new(Arc::clone(rig.streams()), config).unwrap()
}

fn refused(resource: &AsyncCudaResource, bytes: usize) -> ResourceError {
    resource.allocate(bytes, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap_err()
}

#[test]
fn a_refusal_names_the_limit_its_value_and_what_is_held_against_it() {
    let rig = Rig::new();
    let resource = limited(&rig, 64 * MIB);
    let held = resource.allocate(2 * MIB, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let message = refused(&resource, 100 * MIB).to_string();
    for part in ["100 MiB requested", "AsyncConfig::max_bytes", "64 MiB", "raise"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    resource.deallocate(held).unwrap();
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_limit_of_nothing_refuses_every_allocation() {
    let rig = Rig::new();
    let resource = limited(&rig, 0);
    for bytes in [1, 2 * MIB] {
        let message = refused(&resource, bytes).to_string();
        assert!(message.contains("AsyncConfig::max_bytes"), "{message}");
    }
    assert_eq!(resource.usage().outstanding(), 0);
    drop(resource);
    rig.assert_clean();
}

/// Memory that a refused call has taken from the device is returned: others may need it.
#[test]
fn a_refused_allocation_leaves_nothing_reserved() {
    let rig = Rig::new();
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let held = resource.allocate(2 * MIB, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let before = resource.usage().reserved;
    let bytes = usize::try_from(rig.device().total_memory()).unwrap();
    let error = refused(&resource, bytes);
    assert!(matches!(error, ResourceError::OutOfMemory { .. }), "{error}");
    assert_eq!(resource.usage().reserved, before);
    resource.deallocate(held).unwrap();
    drop(resource);
    rig.assert_clean();
}
