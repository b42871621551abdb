//! When the device has no more memory, what the driver's pool keeps goes back to it before an
//! allocation is refused.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

const GIB: usize = 1 << 30;
const UNKNOWN: i32 = 999;
const HOME: StreamId = StreamId::DEFAULT;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn pass(resource: &AsyncCudaResource, bytes: usize) {
    let block = resource.allocate(bytes, HOME, AllocTag::UNTAGGED).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
}

#[test]
fn half_a_device_that_was_freed_makes_room_for_nearly_all_of_it() {
    let rig = Rig::simulated();
    assert_eq!(rig.device().total_memory(), 16 * GIB as u64);
    let resource = resource(&rig);
    pass(&resource, 8 * GIB);
    pass(&resource, 15 * GIB);
    pass(&resource, 8 * GIB);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn an_allocation_that_finds_memory_trims_nothing() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    rig.universe().reset_calls();
    pass(&resource, 8 * GIB);
    pass(&resource, GIB);
    assert_eq!(rig.universe().calls().count("cuMemPoolTrimTo"), 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_trim_that_fails_leaves_the_allocation_refused_and_nothing_else_changed() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    pass(&resource, 8 * GIB);
    rig.universe().fail_nth("cuMemPoolTrimTo", 1, UNKNOWN);
    let refused = resource.allocate(15 * GIB, HOME, AllocTag::UNTAGGED).unwrap_err();
    assert!(matches!(refused, ResourceError::OutOfMemory { .. }), "{refused}");
    assert_eq!(resource.usage().outstanding(), 0);
    rig.universe().clear_faults();
    pass(&resource, 15 * GIB);
    drop(resource);
    rig.assert_clean();
}
