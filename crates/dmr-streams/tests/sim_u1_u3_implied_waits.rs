//! U1, U3: a wait is left out only if another one that is queued stands for it.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceBlock, DeviceMemoryResource, StreamId};
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
    let (fresh_of_a, fresh_of_b) = (allocate(&a), allocate(&b));
    let (of_a, of_b) = (allocate(&a), allocate(&b));
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
