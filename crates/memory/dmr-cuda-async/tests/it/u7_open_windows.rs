//! U7: a block deallocated inside a window is freed when the window has closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dmr_core::{Access, AllocTag, DeviceMemoryResource, DeviceOps, ResourceError, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

#[test]
fn closing_the_last_window_frees_the_block_without_a_reap() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let [home, a, b] = [rig.stream(), rig.stream(), rig.stream()];
    for cancelled in [false, true] {
        let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
        rig.ops().fill_pattern(&block, 0..1000, 5, home.id()).unwrap();
        let id = block.id();
        let first = resource.prepare_block_use(id, a.id(), Access::Read).unwrap();
        let second = resource.prepare_block_use(id, b.id(), Access::Read).unwrap();
        rig.ops().check_pattern(&block, 0..1000, 5, a.id(), 0).unwrap();
        resource.deallocate(block).unwrap();
        let late = resource.prepare_block_use(id, a.id(), Access::Read);
        assert!(matches!(late, Err(ResourceError::UseAfterFree { .. })));
        resource.finish_uses(first).unwrap();
        assert_eq!((resource.usage().live, resource.usage().retired), (0, 1000));
        assert_eq!(resource.reap_pending().unwrap(), 0);
        if cancelled {
            resource.cancel_uses(second).unwrap();
        } else {
            resource.finish_uses(second).unwrap();
        }
        assert_eq!(resource.bytes_outstanding(), 0);
    }
    drop((resource, home, a, b));
    rig.assert_clean();
}

#[test]
fn a_forgotten_token_leaks_its_block_and_corrupts_nothing() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    #[allow(
        clippy::forget_non_drop,
        reason = "a token without `Drop` is forgotten by dropping it, too"
    )]
    std::mem::forget(resource.prepare_block_use(block.id(), other.id(), Access::Write).unwrap());
    resource.deallocate(block).unwrap();
    assert_eq!((resource.try_reap().unwrap(), resource.reap_pending().unwrap()), (0, 0));
    assert_eq!(resource.usage().retired, 1000);
    let next = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    resource.deallocate(next).unwrap();
    drop(resource);
    assert_eq!(rig.verdict(), Ok(()));
}

#[test]
fn a_window_that_closes_while_another_thread_reaps_leaves_no_block_behind() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                resource.try_reap().unwrap();
                resource.reap_pending().unwrap();
            }
        });
        for _ in 0..200 {
            let block = resource.allocate(64, home.id(), AllocTag::UNTAGGED).unwrap();
            let token = resource.prepare_block_use(block.id(), other.id(), Access::Write).unwrap();
            resource.deallocate(block).unwrap();
            resource.finish_uses(token).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(resource.bytes_outstanding(), 0);
    drop((resource, home, other));
    rig.assert_clean();
}
