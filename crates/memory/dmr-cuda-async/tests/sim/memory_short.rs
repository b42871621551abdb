//! The memory that the driver's pool keeps goes back to a device that has no more, before an
//! allocation is refused.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_sim::{Policy, Universe};
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

/// A rig whose work runs only when the host waits for it, and so do the frees behind it.
fn lazy() -> Rig {
    Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().unwrap())
}

/// Allocates, submits work, and frees.
fn work(rig: &Rig, resource: &AsyncCudaResource, bytes: usize, stream: StreamId) {
    let block = resource.allocate(bytes, stream, AllocTag::UNTAGGED).unwrap();
    rig.delay(stream);
    resource.deallocate(block).unwrap();
}

/// Allocates 15 GiB while `meanwhile` runs, during the first call of this driver function.
fn allocate_while(rig: &Rig, resource: &AsyncCudaResource, call: &str, meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        let hold = rig.universe().hold_nth(call, 1);
        let allocates = scope.spawn(|| resource.allocate(15 * GIB, HOME, AllocTag::UNTAGGED));
        hold.wait_until_held();
        meanwhile();
        hold.release();
        resource.deallocate(allocates.join().unwrap().unwrap()).unwrap();
    });
}

#[test]
fn an_allocation_waits_for_the_frees_of_all_streams_however_long_they_take() {
    let rig = lazy();
    let resource = resource(&rig);
    let streams = [rig.stream(), rig.stream(), rig.stream()];
    streams.iter().for_each(|stream| work(&rig, &resource, 4 * GIB, stream.id()));
    let sleep = || std::thread::sleep(std::time::Duration::from_millis(20));
    allocate_while(&rig, &resource, "cuEventCreate", sleep);
    drop((streams, resource));
    rig.assert_clean();
}

/// The memory that the allocation has waited for is another thread's by the time that it is
/// trimmed, and is freed again.
#[test]
fn an_allocation_also_waits_for_what_was_freed_while_it_waited() {
    let rig = lazy();
    let resource = resource(&rig);
    let [first, other] = [rig.stream(), rig.stream()];
    work(&rig, &resource, 8 * GIB, first.id());
    let meanwhile = || work(&rig, &resource, 8 * GIB, other.id());
    allocate_while(&rig, &resource, "cuMemPoolTrimTo", meanwhile);
    drop((first, other, resource));
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
