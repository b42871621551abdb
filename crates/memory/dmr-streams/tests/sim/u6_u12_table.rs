//! U2, U6, U7, U12: the use table by itself: names of a stream, slots and their blocks.

use std::collections::HashSet;
use std::sync::Arc;

use dmr_core::{Access, AllocTag, DeviceMemoryResource, ResourceError, StreamId, UseTrackingExt};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

#[test]
fn windows_nest_whichever_name_of_the_stream_they_were_opened_by() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [first, second] = [rig.stream(), rig.stream()];
    let block = resource.allocate(256, first.id(), AllocTag::UNTAGGED).unwrap();
    let prepare = |on| resource.prepare_block_use(block.id(), on, Access::Write);
    assert_eq!(first.id().slot(), rig.streams().default_stream().slot());
    let names = [first.id(), StreamId::DEFAULT, rig.streams().default_stream()];
    let windows = names.map(|name| prepare(name).unwrap());
    assert!(prepare(second.id()).is_err());
    for window in windows {
        resource.finish_uses(window).unwrap();
    }
    resource.deallocate(block).unwrap();
    drop((resource, first, second));
    rig.assert_clean();
}

#[test]
fn blocks_that_live_at_the_same_time_have_slots_of_their_own() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let leases = [rig.stream(), rig.stream()];
    let blocks: Vec<_> = (0..200)
        .map(|n| resource.allocate(256, leases[n % 2].id(), AllocTag::UNTAGGED).unwrap())
        .collect();
    let slots: HashSet<_> = blocks.iter().map(|block| block.id().slot()).collect();
    assert_eq!(slots.len(), blocks.len());
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    drop((resource, leases));
    rig.assert_clean();
}

#[test]
fn a_use_of_a_block_of_another_stream_pool_is_refused_as_such_and_a_stale_one_as_freed() {
    let rig = Rig::simulated();
    let other = Rig::simulated();
    let [resource, of_other] = [&rig, &other].map(tracked);
    let [stream, foreign] = [rig.stream(), other.stream()];
    let block = of_other.allocate(256, foreign.id(), AllocTag::UNTAGGED).unwrap();
    let stale = resource.allocate(256, stream.id(), AllocTag::UNTAGGED).unwrap();
    let stale_id = stale.id();
    resource.deallocate(stale).unwrap();
    let prepare = |id| resource.prepare_block_use(id, stream.id(), Access::Write);
    let refused = prepare(block.id()).unwrap_err();
    assert!(matches!(refused, ResourceError::OtherPool { .. }), "{refused}");
    let refused = prepare(stale_id).unwrap_err();
    assert!(matches!(refused, ResourceError::UseAfterFree { .. }), "{refused}");
    of_other.deallocate(block).unwrap();
    drop((resource, of_other, stream, foreign));
    rig.assert_clean();
    other.assert_clean();
}
