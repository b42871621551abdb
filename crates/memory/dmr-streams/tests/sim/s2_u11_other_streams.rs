//! U9, U11, S2, S3: the first adopted stream, one of another context, and what a free waits on.

#![allow(unsafe_code, reason = "adopts a raw stream, which is unsafe")]

use std::sync::Arc;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, BlockState, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps,
    ResourceError, StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::{Policy, Universe};
use dmr_streams::uses::Dependencies;
use dmr_streams::{Device, Tracked};
use dmr_testkit::Rig;

const BYTES: usize = 256;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn launch(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    on: StreamId,
    access: Access,
    block: &DeviceBlock,
) {
    let tokens = resource.prepare_uses(&[BlockUse::new(block.id(), access)], on).unwrap();
    if access.writes() {
        rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
    } else {
        rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
    }
    resource.finish_uses(tokens).unwrap();
}

#[test]
fn the_first_adopted_stream_is_a_second_stream() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let first = rig.stream();
    let foreign = rig.device().context().new_stream().unwrap();
    let block = resource.allocate(BYTES, first.id(), AllocTag::UNTAGGED).unwrap();
    launch(&rig, &resource, first.id(), Access::Write, &block);
    launch(&rig, &resource, first.id(), Access::Read, &block);
    rig.universe().reset_calls();
    let adopted = rig.streams().adopt(foreign).unwrap();
    assert_eq!(rig.universe().calls().count("cuEventRecord"), 1);
    rig.universe().reset_calls();
    launch(&rig, &resource, adopted.id(), Access::Write, &block);
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuStreamWaitEvent"), calls.count("cuEventRecord")), (1, 1));
    resource.deallocate(block).unwrap();
    drop((resource, first, adopted));
    rig.assert_clean();
}

#[test]
fn the_announced_event_does_not_stand_for_what_came_after_it() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    let other = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    launch(&rig, &resource, b.id(), Access::Write, &other);
    launch(&rig, &resource, a.id(), Access::Write, &block);
    let window = resource.prepare_block_use(block.id(), a.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, a.id()).unwrap();
    // No event of its own: a wait for it needs one that was recorded after it.
    rig.universe().fail_nth("cuEventRecord", 1, 999);
    rig.universe().fail_nth("cuStreamSynchronize", 1, 999);
    assert!(resource.finish_uses(window).is_err());
    launch(&rig, &resource, b.id(), Access::Read, &block);
    for block in [block, other] {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let rig = Rig::simulated();
    let other = Device::open(rig.universe().ordinal(1)).unwrap();
    let foreign = other.context().new_stream().unwrap();
    let refused = rig.streams().adopt(foreign).map(drop).unwrap_err();
    let ResourceError::StreamMisuse { problem, .. } = refused else { panic!("{refused}") };
    assert_eq!(problem, StreamProblem::OtherContext);
    drop(other);
    rig.assert_clean();
}

#[test]
fn a_retired_streams_handle_is_not_touched_when_it_comes_again() {
    let rig = Rig::simulated();
    let stream = rig.device().context().new_stream().unwrap();
    // SAFETY: destroyed at the end, after the leases and the pool's last use of it.
    let first = unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }.unwrap();
    rig.streams().retire_stream(&first).unwrap();
    let stale = first.id();
    drop(first);
    // SAFETY: as above.
    let again = unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }.unwrap();
    assert_ne!(again.id().slot(), stale.slot(), "the old slot stands for the old stream");
    assert!(rig.streams().resolve(again.id()).is_ok());
    assert!(rig.streams().resolve(stale).is_err());
    rig.streams().retire_stream(&again).unwrap();
    drop((again, stream));
    rig.assert_clean();
}

#[test]
fn frees_wait_on_a_stream_that_cannot_be_leased() {
    let rig = Rig::simulated();
    let leases: Vec<_> = (0..rig.streams().max_streams()).map(|_| rig.stream()).collect();
    let reclaim = rig.streams().reclaim_stream().unwrap().stream().cu_stream();
    assert!(leases.iter().all(|lease| lease.stream().cu_stream() != reclaim));
    drop(leases);
    rig.assert_clean();
}

/// Through the library stream on which the debug guard fills fresh memory.
#[test]
fn no_home_stream_waits_for_the_users_that_a_free_waits_for() {
    let rig = Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().unwrap());
    let [first, user] = [rig.stream(), rig.stream()];
    let home = first.id();
    assert_eq!(home.slot(), 0);
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let large = resource.allocate(16 << 20, home, AllocTag::UNTAGGED).unwrap();
    let fresh = resource.allocate(4096, home, AllocTag::UNTAGGED).unwrap();
    rig.delay(user.id());
    let tokens = resource.prepare_block_use(large.id(), user.id(), Access::Write).unwrap();
    resource.finish_uses(tokens).unwrap();
    // What its event covers: one recorded later would not be done.
    let uses = rig.streams().uses();
    let users = Dependencies::on(user.id(), uses.submitted(user.id()) - 1);
    resource.deallocate(large).unwrap();
    // As the guard does.
    rig.ops().library_stream(&fresh).unwrap();
    rig.ops().join_home_stream(&fresh).unwrap();
    rig.streams().synchronize(home).unwrap();
    assert!(!uses.poll(&users).unwrap(), "the home stream has waited for the user");
}

#[test]
fn tokens_of_another_pool_are_refused() {
    let [rig, other] = [Rig::simulated(), Rig::simulated()];
    let resource = tracked(&rig);
    let lease = rig.stream();
    let block = resource.allocate(BYTES, lease.id(), AllocTag::UNTAGGED).unwrap();
    let uses = [BlockUse::new(block.id(), Access::Read)];
    let prepare = || rig.streams().uses().prepare(&uses, lease.id()).unwrap();
    let finished = other.streams().uses().finish(prepare()).unwrap_err();
    let cancelled = other.streams().uses().cancel(prepare()).unwrap_err();
    for refused in [finished, cancelled] {
        let ResourceError::StreamMisuse { problem, .. } = refused else { panic!("{refused}") };
        let expected = StreamProblem::other_pool(Some(rig.ordinal()), other.ordinal());
        assert_eq!(problem, expected);
    }
    drop((block, resource, lease));
    drop(other);
}

#[test]
fn a_use_that_is_finished_while_the_second_stream_is_announced_is_recorded() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let first = rig.stream();
    let block = resource.allocate(BYTES, first.id(), AllocTag::UNTAGGED).unwrap();
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_nth("cuEventRecord", 1);
        let second = scope.spawn(|| rig.stream());
        hold.wait_until_held();
        // The announced event has its number already: it does not stand for this use.
        launch(&rig, &resource, first.id(), Access::Write, &block);
        assert_eq!(rig.streams().uses().recorded_uses(), 1);
        hold.release();
        let second = second.join().unwrap();
        launch(&rig, &resource, second.id(), Access::Read, &block);
    });
    resource.deallocate(block).unwrap();
    drop((resource, first));
    rig.assert_clean();
}

#[test]
fn a_stream_is_retired_after_its_last_use_is_finished_and_not_before() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let own = rig.stream();
    let stream = rig.device().context().new_stream().unwrap();
    // SAFETY: destroyed below, after it was retired.
    let adopted = unsafe { rig.streams().adopt_raw(stream.cu_stream().cast(), ()) }.unwrap();
    let block = resource.allocate(BYTES, own.id(), AllocTag::UNTAGGED).unwrap();
    let window = resource.prepare_block_use(block.id(), adopted.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, adopted.id()).unwrap();
    assert!(rig.streams().retire_stream(&adopted).is_err());
    resource.finish_uses(window).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(stream);
    launch(&rig, &resource, own.id(), Access::Read, &block);
    resource.deallocate(block).unwrap();
    drop((resource, own, adopted));
    rig.assert_clean();
}

#[test]
fn nothing_is_freed_on_a_home_stream_that_was_retired() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let resource = tracked(&rig);
    let foreign = rig.device().context().new_stream().unwrap();
    let home = rig.streams().adopt(foreign).unwrap();
    let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    rig.delay(home.id());
    rig.streams().retire_stream(&home).unwrap();
    assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
    assert_eq!(resource.try_reap(), Ok(0), "the stream is not done with it");
    assert_eq!(resource.reap_pending(), Ok(BYTES as u64));
    drop((resource, home, universe));
    rig.assert_clean();
}
