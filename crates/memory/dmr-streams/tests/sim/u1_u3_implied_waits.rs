//! U1, U3: a wait is left out only if another one that is queued stands for it.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId,
    UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

fn launch(resource: &dyn DeviceMemoryResource, on: StreamId, access: Access, of: &[&DeviceBlock]) {
    let uses: Vec<_> = of.iter().map(|block| BlockUse::new(block.id(), access)).collect();
    let tokens = resource.prepare_uses(&uses, on).unwrap();
    resource.finish_uses(tokens).unwrap();
}

#[test]
fn streams_that_have_waited_for_each_other_do_not_hide_each_others_allocations() {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [a, b, c] = [rig.stream(), rig.stream(), rig.stream()];
    let allocate = |on: &dmr_streams::StreamLease| {
        resource.allocate(256, on.id(), AllocTag::UNTAGGED).unwrap()
    };
    let fresh_of_a = allocate(&a);
    let fresh_of_b = allocate(&b);
    let of_a = allocate(&a);
    let of_b = allocate(&b);
    launch(&resource, a.id(), Access::Write, &[&of_a]);
    launch(&resource, b.id(), Access::Write, &[&of_b]);
    // From now on the latest event of each stream stands for the other's allocation as well.
    launch(&resource, a.id(), Access::Read, &[&of_b]);
    launch(&resource, b.id(), Access::Read, &[&of_a]);
    rig.universe().reset_calls();
    launch(&resource, c.id(), Access::Write, &[&fresh_of_a, &fresh_of_b]);
    assert_ne!(rig.universe().calls().count("cuStreamWaitEvent"), 0, "nothing was waited for");
    for block in [fresh_of_a, fresh_of_b, of_a, of_b] {
        resource.deallocate(block).unwrap();
    }
    drop((resource, a, b, c));
    rig.assert_clean();
}

/// A launch that writes `written` and then reads `read`.
fn work(
    rig: &Rig,
    resource: &dyn DeviceMemoryResource,
    on: StreamId,
    read: &[&DeviceBlock],
    written: &[&DeviceBlock],
) {
    let uses = |of: &[&DeviceBlock], access| {
        of.iter().map(|block| BlockUse::new(block.id(), access)).collect::<Vec<_>>()
    };
    let uses = [uses(read, Access::Read), uses(written, Access::Write)].concat();
    let tokens = resource.prepare_uses(&uses, on).unwrap();
    for block in read {
        rig.ops().check_pattern(block, 0..block.bytes(), 7, on, 0).unwrap();
    }
    for block in written {
        rig.ops().fill_pattern(block, 0..block.bytes(), 7, on).unwrap();
    }
    resource.finish_uses(tokens).unwrap();
}

#[test]
fn of_two_events_that_cover_each_other_one_is_waited_for() {
    let rig = Rig::simulated();
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [b, x, c] = [rig.stream(), rig.stream(), rig.stream()];
    let [y1, y2, z] = [0; 3].map(|_| resource.allocate(1024, b.id(), AllocTag::UNTAGGED).unwrap());
    // Loads the kernels, which the simulated host waits for.
    let warm = resource.allocate(1024, x.id(), AllocTag::UNTAGGED).unwrap();
    work(&rig, &resource, x.id(), &[], &[&warm]);
    work(&rig, &resource, x.id(), &[&warm], &[]);
    std::thread::scope(|scope| {
        // In here: a test that fails releases the other thread.
        let hold = rig.universe().hold_nth("cuEventCreate", 1);
        let held = scope.spawn(|| work(&rig, &resource, b.id(), &[], &[&y1]));
        hold.wait_until_held();
        // The use of `y1` has its number, and its event is recorded after all of this.
        work(&rig, &resource, b.id(), &[], &[&y2]);
        work(&rig, &resource, x.id(), &[&y2], &[&z]);
        work(&rig, &resource, b.id(), &[&z], &[]);
        hold.release();
        held.join().unwrap();
    });
    // The event of `y1` comes after the write of `z`, and the event of `z` after that of `y1`.
    work(&rig, &resource, c.id(), &[&y1, &z], &[]);
    for block in [y1, y2, z, warm] {
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    drop((resource, b, x, c));
    rig.assert_clean();
}
