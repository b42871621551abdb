//! U9: what a free must come after is all of it.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceMemoryResource, DeviceOps, ResourceError, StreamId,
    UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::{Policy, Universe};
use dmr_streams::Tracked;
use dmr_streams::uses::{Dependencies, Pending, PendingFrees};
use dmr_testkit::Rig;

const BYTES: usize = 256;

#[test]
fn dependencies_are_done_when_all_of_them_are() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [home, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    let write = BlockUse::new(block.id(), Access::Write);
    let tokens = resource.prepare_uses(&[write], b.id()).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 7, b.id()).unwrap();
    resource.finish_uses(tokens).unwrap();
    let uses = rig.streams().uses();
    let mut after = uses.work_so_far(home.id()).unwrap();
    after.add_all(&uses.work_so_far(b.id()).unwrap());
    // The home stream is done, the writer is not.
    rig.streams().synchronize(home.id()).unwrap();
    assert_eq!(uses.poll(&after), Ok(false));
    assert_eq!(uses.poll(&after), Ok(false), "and it does not change by asking");
    assert!(!uses.is_known_done(&after) && !uses.is_after(home.id(), &after));
    universe.reset_calls();
    uses.synchronize(&after).unwrap();
    assert_ne!(universe.calls().count("cuEventSynchronize"), 0, "nothing was waited for");
    assert_eq!(uses.poll(&after), Ok(true));
    assert!(uses.is_known_done(&after) && uses.is_after(home.id(), &after));
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, home, b, universe));
    rig.assert_clean();
}

#[test]
fn a_few_queries_find_what_is_done_of_many_uses() {
    const DONE: usize = 100;
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [home, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    let uses = rig.streams().uses();
    let mut after = Vec::new();
    for nth in 0..3 * DONE {
        if nth == DONE {
            rig.device().synchronize().unwrap();
        }
        let write = BlockUse::new(block.id(), Access::Write);
        let tokens = resource.prepare_uses(&[write], b.id()).unwrap();
        rig.ops().fill_pattern(&block, 0..BYTES, 7, b.id()).unwrap();
        resource.finish_uses(tokens).unwrap();
        after.push(uses.work_so_far(b.id()).unwrap());
    }
    universe.reset_calls();
    uses.poll_each(&after.iter().collect());
    let queries = universe.calls().count("cuEventQuery");
    assert!((1..=12).contains(&queries), "{queries} queries");
    assert!(uses.is_known_done(&after[DONE - 1]), "the last one that is done");
    assert!(!uses.is_known_done(&after[2 * DONE]), "one that is not");
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, home, b, universe));
    rig.assert_clean();
}

/// T2: numbers of another pool say nothing about the streams of this one.
#[test]
fn dependencies_of_another_pool_are_refused() {
    let rig = Rig::simulated();
    let other = Rig::simulated();
    let stream = rig.stream();
    let foreign = other.stream();
    let uses = rig.streams().uses();
    let of_other = Dependencies::on(foreign.id(), 1);
    let mut mixed = Dependencies::on(stream.id(), 1);
    mixed.add_all(&of_other);
    let mut of_no_pool = Dependencies::default();
    of_no_pool.add(StreamId::DEFAULT, 1);
    for after in [of_other, mixed, of_no_pool] {
        assert!(!uses.is_known_done(&after) && !uses.is_after(stream.id(), &after));
        let refused = |outcome| matches!(outcome, Err(ResourceError::StreamMisuse { .. }));
        assert!(refused(uses.poll(&after).map(drop)));
        assert!(refused(uses.synchronize(&after)));
        assert!(refused(uses.wait_for(stream.id(), &after)));
    }
    let own = uses.work_so_far(stream.id()).unwrap();
    assert!(uses.wait_for(stream.id(), &own).is_ok());
    assert!(!uses.is_after(foreign.id(), &own), "a stream of another pool");
    assert!(uses.wait_for(foreign.id(), &own).is_err());
    assert!(uses.work_so_far(foreign.id()).is_err());
    assert!(uses.has_ended(foreign.id()));
    let never = Dependencies::on(stream.id(), uses.submitted(foreign.id()));
    assert!(!uses.is_known_done(&never), "a number that no use reaches");
}

/// Taken for "not done" it would be polled for ever; taken for "done" the memory would be freed
/// under the work.
#[test]
fn a_driver_error_is_neither_done_nor_not_done() {
    let universe = Universe::builder().policy(Policy::Lazy).build().unwrap();
    let rig = Rig::in_universe(&universe);
    let [home, _second] = [rig.stream(), rig.stream()];
    rig.delay(&home);
    let uses = rig.streams().uses();
    let after = uses.work_so_far(home.id()).unwrap();
    assert_eq!(uses.poll(&after), Ok(false));
    universe.fail_nth("cuEventQuery", 1, 999);
    let error = uses.poll(&after).unwrap_err();
    let is_the_drivers =
        matches!(error, ResourceError::Driver { call: "cuEventQuery", code: 999, .. });
    assert!(is_the_drivers, "{error}");
    rig.device().synchronize().unwrap();
    assert_eq!(uses.poll(&after), Ok(true));
    drop((home, _second, universe));
    rig.assert_clean();
}

#[test]
fn an_id_that_names_no_stream_of_the_pool_is_refused() {
    let rig = Rig::simulated();
    let _second = rig.stream();
    let pool = rig.streams();
    let owner = rig.streams().register();
    let beyond = StreamId::from_parts(pool.id(), StreamId::MAX_SLOTS - 1, 0).unwrap();
    let is_misuse = |error| matches!(error, ResourceError::StreamMisuse { .. });
    let on = Dependencies::on(beyond, 1);
    assert!(is_misuse(pool.uses().poll(&on).unwrap_err()));
    assert!(is_misuse(pool.uses().synchronize(&on).unwrap_err()));
    assert!(is_misuse(pool.uses().wait_for(pool.default_stream(), &on).unwrap_err()));
    assert!(is_misuse(pool.uses().work_so_far(beyond).unwrap_err()));
    assert!(is_misuse(pool.uses().reserve(&owner, 0, beyond).unwrap_err()));
    assert!(pool.uses().work_so_far(StreamId::DEFAULT).is_ok(), "it is the first stream");
}

/// Or a call would free blocks for as long as other threads release some.
#[test]
fn a_call_that_frees_the_oldest_blocks_frees_none_that_became_pending_meanwhile() {
    let rig = Rig::simulated();
    let home = rig.stream().id();
    let pending = PendingFrees::new(1, |_: &u32| 1);
    let push = |value| pending.push(home, Pending { value, after: Dependencies::default() });
    push(0);
    push(1);
    let free = |freed: &mut Pending<u32>| {
        push(freed.value + 2);
        Ok(freed.value < 100)
    };
    assert_eq!(pending.free_oldest(home, usize::MAX, |_| true, free), 2);
    assert_eq!(pending.pending(home).blocks, 2);
}
