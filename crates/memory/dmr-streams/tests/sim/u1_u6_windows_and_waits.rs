//! U1, U6: what one wait stands for, and which window a token closes.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError,
    StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 256;

fn tracked(rig: &Rig) -> Tracked<DirectCudaResource> {
    let streams = Arc::clone(rig.streams());
    Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap()
}

fn block(resource: &dyn DeviceMemoryResource, on: StreamId) -> DeviceBlock {
    resource.allocate(BYTES, on, AllocTag::UNTAGGED).unwrap()
}

/// Fills for a write, checks for a read.
fn launch(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    on: StreamId,
    access: Access,
    of: &[&DeviceBlock],
) {
    let uses: Vec<_> = of.iter().map(|block| BlockUse::new(block.id(), access)).collect();
    let tokens = resource.prepare_uses(&uses, on).unwrap();
    for block in of {
        if access.writes() {
            rig.ops().fill_pattern(block, 0..BYTES, 7, on).unwrap();
        } else {
            rig.ops().check_pattern(block, 0..BYTES, 7, on, 0).unwrap();
        }
    }
    resource.finish_uses(tokens).unwrap();
}

/// Loads the kernels, which the simulated host waits for.
fn warm(rig: &Rig, resource: &dyn DeviceMemoryResource, on: StreamId) {
    let block = block(resource, on);
    launch(rig, resource, on, Access::Write, &[&block]);
    launch(rig, resource, on, Access::Read, &[&block]);
    resource.deallocate(block).unwrap();
}

#[test]
fn a_wait_for_an_early_use_does_not_stand_for_a_later_one() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let [early, late, of_c] = [a.id(), a.id(), c.id()].map(|on| block(&resource, on));
    warm(&rig, &resource, a.id());
    launch(&rig, &resource, c.id(), Access::Write, &[&of_c]);
    launch(&rig, &resource, a.id(), Access::Write, &[&early]);
    launch(&rig, &resource, a.id(), Access::Write, &[&late]);
    for block in [&early, &late, &of_c] {
        rig.universe().reset_calls();
        launch(&rig, &resource, b.id(), Access::Read, &[block]);
        assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 1);
    }
    for block in [early, late, of_c] {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn a_launch_waits_for_the_latest_of_several_uses_of_one_stream() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let [early, late] = [a.id(), a.id()].map(|on| block(&resource, on));
    warm(&rig, &resource, a.id());
    launch(&rig, &resource, a.id(), Access::Write, &[&early]);
    launch(&rig, &resource, a.id(), Access::Write, &[&late]);
    for (reader, order) in [(&b, [&early, &late]), (&c, [&late, &early])] {
        rig.universe().reset_calls();
        launch(&rig, &resource, reader.id(), Access::Read, &order);
        assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 1);
    }
    for block in [early, late] {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn a_thread_whose_wait_is_not_queued_yet_does_not_spare_another_thread_its_own() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    warm(&rig, &resource, a.id());
    launch(&rig, &resource, a.id(), Access::Write, &[&block]);
    rig.universe().reset_calls();
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_nth("cuStreamWaitEvent", 1);
        let first =
            scope.spawn(|| resource.prepare_block_use(block.id(), b.id(), Access::Read).unwrap());
        hold.wait_until_held();
        launch(&rig, &resource, b.id(), Access::Read, &[&block]);
        hold.release();
        resource.finish_uses(first.join().unwrap()).unwrap();
    });
    assert_eq!(rig.universe().calls().count("cuStreamWaitEvent"), 2);
    resource.deallocate(block).unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn a_token_closes_its_own_window_in_whatever_order_windows_close() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    let prepare = |on, access| resource.prepare_block_use(block.id(), on, access);
    let [of_a, of_b] = [&a, &b].map(|on| prepare(on.id(), Access::Read).unwrap());
    resource.finish_uses(of_b).unwrap();
    for writer in [&b, &c] {
        match prepare(writer.id(), Access::Write).unwrap_err() {
            ResourceError::WindowConflict { holder, .. } => assert_eq!(holder, a.id()),
            other => panic!("{other}"),
        }
    }
    resource.finish_uses(of_a).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, a, b, c));
    rig.assert_clean();
}

#[test]
fn a_writer_conflicts_with_any_of_several_readers() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    let prepare = |on, access| resource.prepare_block_use(block.id(), on, access);
    let readers = [&a, &b].map(|on| prepare(on.id(), Access::Read).unwrap());
    // The window of `a` itself comes first, and nests.
    for writer in [&a, &b] {
        let refused = prepare(writer.id(), Access::Write).unwrap_err();
        assert!(matches!(refused, ResourceError::WindowConflict { .. }), "{refused}");
    }
    for reader in readers {
        resource.finish_uses(reader).unwrap();
    }
    resource.deallocate(block).unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}

#[test]
fn a_cancelled_use_is_not_remembered_and_no_stream_waits_for_it() {
    let rig = Rig::simulated();
    let resource = tracked(&rig);
    let [a, b] = [rig.stream(), rig.stream()];
    let block = block(&resource, a.id());
    launch(&rig, &resource, a.id(), Access::Write, &[&block]);
    launch(&rig, &resource, b.id(), Access::Read, &[&block]);
    launch(&rig, &resource, a.id(), Access::Write, &[&block]);
    let remembered = rig.streams().uses().recorded_uses();
    rig.universe().reset_calls();
    let uses = [BlockUse::new(block.id(), Access::Write)];
    let tokens = resource.prepare_uses(&uses, a.id()).unwrap();
    resource.cancel_uses(tokens).unwrap();
    assert_eq!(rig.universe().calls().count("cuEventRecord"), 0);
    assert_eq!(rig.streams().uses().recorded_uses(), remembered);
    resource.deallocate(block).unwrap();
    drop((resource, a, b));
    rig.assert_clean();
}
