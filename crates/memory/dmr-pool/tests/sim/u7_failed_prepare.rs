//! U7, T7: a block that is deallocated while a preparation of uses fails is freed like any other.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockState, BlockUse, DeviceMemoryResource, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_testkit::Rig;

fn play(resource: &dyn DeviceMemoryResource, rig: &Rig, one_block: bool) {
    let [home, user] = [rig.stream(), rig.stream()];
    let block = resource.allocate(4096, home.id(), AllocTag::UNTAGGED).unwrap();
    let id = block.id();
    let uses = [BlockUse::new(block.id(), Access::Write)];
    resource.finish_uses(resource.prepare_uses(&uses, user.id()).unwrap()).unwrap();
    std::thread::scope(|scope| {
        // In here: a test that fails lets the other thread go.
        let hold = rig.universe().hold_nth("cuStreamWaitEvent", 1);
        rig.universe().fail_nth("cuStreamWaitEvent", 1, 2);
        let home = home.id();
        let prepared = scope.spawn(move || {
            // With another context a call that fails is made once more.
            rig.device().bind()?;
            match one_block {
                true => resource.prepare_block_use(id, home, Access::Write).map(drop),
                false => resource.prepare_uses(&uses, home).map(drop),
            }
        });
        hold.wait_until_held();
        assert_eq!(resource.deallocate(block).unwrap(), BlockState::Retired);
        hold.release();
        prepared.join().unwrap().unwrap_err();
    });
    // Once its user is done, nothing keeps it but the call that has failed.
    rig.device().synchronize().unwrap();
    assert!(!resource.is_retired(id));
    assert_eq!(resource.usage().retired, 0);
    drop((home, user));
}

fn a_failed_preparation_keeps_no_block<R: DeviceMemoryResource>(make: impl Fn(&Rig) -> R) {
    for one_block in [false, true] {
        let rig = Rig::simulated();
        let resource = make(&rig);
        play(&resource, &rig, one_block);
        resource.reap_pending().unwrap();
        drop(resource);
        rig.assert_clean();
    }
}

#[test]
fn a_block_of_the_pool_comes_back_when_a_preparation_of_its_use_fails() {
    a_failed_preparation_keeps_no_block(|rig| {
        let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
        PoolResource::new(direct, Arc::clone(rig.streams()), PoolConfig::fast()).unwrap()
    });
}

#[test]
fn a_block_of_the_async_resource_comes_back_when_a_preparation_of_its_use_fails() {
    a_failed_preparation_keeps_no_block(|rig| {
        AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
    });
}
