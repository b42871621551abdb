//! U9: what a free must come after is all of it.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::{Policy, Universe};
use dmr_streams::uses::Carried;
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
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((resource, home, b, universe));
    rig.assert_clean();
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
    let dependencies = uses.work_so_far(home.id()).unwrap();
    let carried = Carried::of(home.id(), uses.submitted(home.id()));
    for asked in [&|| dependencies.is_done(), &|| uses.poll(&carried)] as [&dyn Fn() -> _; 2] {
        assert_eq!(asked(), Ok(false));
        universe.fail_nth("cuEventQuery", 1, 999);
        let error = asked().unwrap_err();
        let is_the_drivers =
            matches!(error, ResourceError::Driver { call: "cuEventQuery", code: 999, .. });
        assert!(is_the_drivers, "{error}");
    }
    rig.device().synchronize().unwrap();
    assert_eq!((dependencies.is_done(), uses.poll(&carried)), (Ok(true), Ok(true)));
    drop((dependencies, home, _second, universe));
    rig.assert_clean();
}
