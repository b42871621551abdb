//! U7, U9, T4, T7: when `Tracked` deallocates a block upstream.

use std::sync::Arc;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError, StreamId,
    UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::{StreamPool, StreamPoolConfig, Tracked};
use dmr_testkit::Rig;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    Tracked::new(direct, Arc::clone(rig.streams())).unwrap()
}

fn write(rig: &Rig, resource: &Tracked<DirectCudaResource>, block: &DeviceBlock, on: StreamId) {
    let token = resource.prepare_block_use(block.id(), on, Access::Write).unwrap();
    rig.ops().fill_pattern(block, 0..block.bytes(), 1, on).unwrap();
    resource.finish_uses(token).unwrap();
}

#[test]
fn a_block_used_at_home_goes_to_the_inner_resource_at_once() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let [home, _other] = [rig.stream(), rig.stream()];
    let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    write(&rig, &resource, &block, home.id());
    resource.deallocate(block).unwrap();
    assert_eq!(resource.upstream().usage().retired, 1000);
    assert_eq!(resource.usage(), resource.upstream().usage());
    assert_eq!(resource.reap_pending().unwrap(), 1000);
    drop((resource, home, _other));
    rig.assert_clean();
}

#[test]
fn a_block_used_elsewhere_is_retired_until_that_is_done_and_counted_once() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(&other);
    write(&rig, &resource, &block, other.id());
    resource.deallocate(block).unwrap();
    let inner = resource.upstream().usage();
    assert_eq!((inner.live, inner.retired), (1000, 0), "it does not know yet");
    let usage = resource.usage();
    assert_eq!((usage.live, usage.retired, usage.outstanding()), (0, 1000, 1000));
    assert_eq!(resource.reap_pending().unwrap(), 1000);
    assert_eq!((resource.bytes_outstanding(), resource.upstream().bytes_outstanding()), (0, 0));
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn without_any_reap_allocating_hands_over_what_is_done() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    for _ in 0..50 {
        let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
        write(&rig, &resource, &block, other.id());
        resource.deallocate(block).unwrap();
        rig.device().synchronize().unwrap();
    }
    assert!(resource.usage().retired <= 2000, "{:?}", resource.usage());
    resource.reap_pending().unwrap();
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn a_block_in_an_open_window_stays_until_a_reap_finds_it_closed() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    let token = resource.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..1000, 1, other.id()).unwrap();
    resource.deallocate(block).unwrap();
    assert_eq!(resource.reap_pending().unwrap(), 0);
    resource.finish_uses(token).unwrap();
    assert_eq!(resource.reap_pending().unwrap(), 1000);
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn dropped_or_taken_apart_it_hands_over_what_is_retired() {
    for taken_apart in [false, true] {
        let rig = Rig::new();
        let resource = tracked(&rig);
        let [home, other] = [rig.stream(), rig.stream()];
        let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
        rig.delay(&other);
        write(&rig, &resource, &block, other.id());
        resource.deallocate(block).unwrap();
        if taken_apart {
            let inner = resource.into_upstream();
            assert_eq!((inner.usage().live, inner.usage().retired), (0, 1000));
        } else {
            drop(resource);
        }
        drop((home, other));
        rig.assert_clean();
    }
}

#[test]
fn blocks_of_the_inner_resource_and_of_another_are_refused() {
    let rig = Rig::new();
    let [ours, theirs] = [tracked(&rig), tracked(&rig)];
    let own = ours.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let bare = ours.upstream().allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let foreign = theirs.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let mut back = Vec::new();
    for block in [bare, foreign] {
        let refused = ours.deallocate(block).unwrap_err();
        assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }), "{refused}");
        back.push(refused.block);
    }
    let [bare, foreign]: [DeviceBlock; 2] = back.try_into().unwrap();
    ours.upstream().deallocate(bare).unwrap();
    theirs.deallocate(foreign).unwrap();
    ours.deallocate(own).unwrap();
    drop((ours, theirs));
    rig.assert_clean();
}

#[test]
fn a_resource_of_another_pool_is_refused() {
    let rig = Rig::new();
    let other = StreamPool::new(rig.device().clone(), StreamPoolConfig::new()).unwrap();
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    let error = Tracked::new(direct, other).unwrap_err();
    assert!(matches!(error, ResourceError::StreamMisuse { problem: StreamProblem::OtherPool, .. }));
}

#[test]
fn it_prints_as_one_line() {
    let rig = Rig::new();
    let resource = tracked(&rig);
    let line = format!("Tracked(Direct(device {}))", rig.ordinal());
    assert_eq!((format!("{resource:?}"), format!("{resource}")), (line.clone(), line));
}
