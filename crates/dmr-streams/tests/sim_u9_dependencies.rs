//! U9: what a free must come after is all of it.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, DeviceOps};
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::{Policy, Universe};
use dmr_streams::{FreeOrder, Tracked};
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
    uses.retire(block.id()).unwrap();
    let FreeOrder::After(dependencies) = uses.free_order(block.id()).unwrap() else {
        panic!("another stream has written the block")
    };
    // The home stream is done, the writer is not.
    rig.streams().synchronize(home.id()).unwrap();
    assert_eq!(dependencies.is_done(), Ok(false));
    assert_eq!(dependencies.is_done(), Ok(false), "and it does not change by asking");
    universe.reset_calls();
    dependencies.synchronize().unwrap();
    assert_ne!(universe.calls().count("cuEventSynchronize"), 0, "nothing was waited for");
    assert_eq!(dependencies.is_done(), Ok(true));
    drop(dependencies);
    uses.unretire(block.id());
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, home, b, universe));
    rig.assert_clean();
}
