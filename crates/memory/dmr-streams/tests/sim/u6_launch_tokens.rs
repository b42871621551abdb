//! U3, U6, D5: the windows of a launch whose uses are prepared in several calls.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, ByteRange, DeviceMemoryResource};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_pinned::PinnedMemory;
use dmr_streams::LaunchTokens;
use dmr_testkit::Rig;

/// Work of the first call may have been submitted.
#[test]
fn a_preparation_that_fails_closes_no_window_of_an_earlier_one() {
    let rig = Rig::simulated();
    let [home, user] = [rig.stream(), rig.stream()];
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let pinned = PinnedMemory::new(rig.streams(), 64, home.id()).unwrap();
    let stale = resource.allocate(64, home.id(), AllocTag::UNTAGGED).unwrap();
    let stale_id = stale.id();
    resource.deallocate(stale).unwrap();
    let mut tokens = LaunchTokens::new(user.id());
    let first = [BlockUse::new(pinned.block().id(), Access::Write)];
    let entered = rig.streams().enter(user.id()).unwrap();
    tokens.prepare(&entered, &resource, &first, &[]).unwrap();
    tokens.prepare(&entered, &resource, &[], &[BlockUse::new(stale_id, Access::Read)]).unwrap_err();
    drop(entered);
    assert_eq!(tokens.len(), 1);
    assert_eq!(pinned.synchronize(ByteRange::WHOLE), Ok(false), "its window is open");
}

#[test]
fn a_preparation_that_fails_holds_no_adopted_stream() {
    let rig = Rig::simulated();
    let own = rig.stream();
    let adopted = rig.streams().adopt(rig.device().context().new_stream().unwrap()).unwrap();
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let pinned = PinnedMemory::new(rig.streams(), 64, own.id()).unwrap();
    let block = resource.allocate(64, own.id(), AllocTag::UNTAGGED).unwrap();
    let use_of = |id| [BlockUse::new(id, Access::Write)];
    let [pinned_use, stale] = [pinned.block().id(), block.id()].map(use_of);
    resource.deallocate(block).unwrap();
    let mut tokens = LaunchTokens::new(adopted.id());
    let entered = rig.streams().enter(adopted.id()).unwrap();
    tokens.prepare(&entered, &resource, &pinned_use, &[]).unwrap();
    tokens.prepare(&entered, &resource, &pinned_use, &stale).unwrap_err();
    drop(entered);
    rig.streams().retire_stream(&adopted).expect_err("the first window is open");
    tokens.finish(rig.streams(), &resource).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
}

/// U3: pinned memory is prepared in the use table, and a block through its resource.
#[test]
fn an_event_that_stands_for_a_block_and_pinned_memory_is_waited_for_once() {
    let rig = Rig::simulated();
    let [home, producer, consumer] = [rig.stream(), rig.stream(), rig.stream()];
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let pinned = PinnedMemory::new(rig.streams(), 64, home.id()).unwrap();
    let block = resource.allocate(64, home.id(), AllocTag::UNTAGGED).unwrap();
    let [pinned_use, block_use] =
        [pinned.block().id(), block.id()].map(|id| [BlockUse::new(id, Access::Write)]);
    let launch_on = |stream| {
        let mut tokens = LaunchTokens::new(stream);
        let entered = rig.streams().enter(stream).unwrap();
        tokens.prepare(&entered, &resource, &pinned_use, &block_use).unwrap();
        tokens.finish(rig.streams(), &resource).unwrap();
    };
    launch_on(producer.id());
    rig.universe().reset_calls();
    launch_on(consumer.id());
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuStreamWaitEvent"), 1, "{calls:?}");
    assert_eq!(calls.count("cuEventRecord"), 1, "{calls:?}");
    resource.deallocate(block).unwrap();
}
