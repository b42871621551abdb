//! T4, T7, D4: whatever driver call fails under `Tracked`, nothing leaks, nothing races, the
//! accounting stays exact, and what failed can be repeated.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, ResourceError, ResourceResult,
    StreamId, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_sim::{Policy, Universe};
use dmr_streams::Tracked;
use dmr_testkit::{Rig, for_each_driver_call};

const INVALID_VALUE: i32 = 1;
const ILLEGAL_ADDRESS: i32 = 700;
const UNKNOWN: i32 = 999;

type Resource = Tracked<DirectCudaResource>;

fn tracked(rig: &Rig) -> Resource {
    let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
    Tracked::new(direct, Arc::clone(rig.streams())).unwrap()
}

/// The call again, if it failed: one call fails in each run.
fn insist<T>(mut call: impl FnMut() -> ResourceResult<T>) -> T {
    call().or_else(|_| call()).expect("only one driver call fails")
}

fn deallocate(resource: &Resource, block: DeviceBlock) {
    if let Err(refused) = resource.deallocate(block) {
        resource.deallocate(refused.block).expect("only one driver call fails");
    }
}

fn write(rig: &Rig, resource: &Resource, block: &DeviceBlock, stream: StreamId) {
    let token = insist(|| resource.prepare_block_use(block.id(), stream, Access::Write));
    insist(|| rig.ops().fill_pattern(block, 0..block.bytes(), 0, stream));
    // The use stands, whether or not its event could be recorded.
    let _ = resource.finish_uses(token);
}

#[test]
fn no_driver_call_that_fails_loses_memory_order_or_accounting() {
    let prepare = |rig: &Rig| {
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        (tracked(rig), streams)
    };
    let failed = for_each_driver_call(UNKNOWN, prepare, |rig, (resource, streams)| {
        let [a, b, c] = [0, 1, 2].map(|nth: usize| streams[nth].id());
        let exact = |live: u64| {
            let usage = resource.usage();
            assert_eq!(usage.live, live);
            assert_eq!(usage.total_allocated, usage.total_freed + usage.outstanding());
        };
        let allocate = |bytes| insist(|| resource.allocate(bytes, a, AllocTag::UNTAGGED));
        let first = allocate(64);
        let second = allocate(128);
        exact(192);
        write(rig, &resource, &first, b);
        write(rig, &resource, &first, c);
        deallocate(&resource, first);
        exact(128);
        // Inside a window.
        let token = insist(|| resource.prepare_block_use(second.id(), c, Access::Read));
        deallocate(&resource, second);
        exact(0);
        let _ = resource.finish_uses(token);
        let third = allocate(256);
        write(rig, &resource, &third, c);
        deallocate(&resource, third);
        insist(|| resource.try_reap());
        insist(|| resource.reap_pending());
        exact(0);
        assert_eq!((resource.bytes_outstanding(), resource.usage().total_freed), (0, 448));
        drop((resource, streams));
        let verdict = rig.universe().finish();
        assert!(verdict.is_clean(), "{verdict}");
    });
    assert!(failed >= 30, "{failed} calls were failed");
}

#[test]
fn a_reap_reports_the_first_driver_error_loses_nothing_and_can_be_repeated() {
    type Reap = fn(&Resource) -> ResourceResult<u64>;
    let reaps: [(Reap, _); 2] =
        [(|it| it.try_reap(), "cuEventQuery"), (|it| it.reap_pending(), "cuEventSynchronize")];
    for (reap, asks_with) in reaps {
        let rig = Rig::simulated();
        let resource = tracked(&rig);
        let [home, other] = [rig.stream(), rig.stream()];
        // All first: to allocate hands over what is done with.
        let blocks =
            [(); 3].map(|()| resource.allocate(64, home.id(), AllocTag::UNTAGGED).unwrap());
        for block in blocks {
            write(&rig, &resource, &block, other.id());
            resource.deallocate(block).unwrap();
        }
        rig.device().synchronize().unwrap();
        rig.universe().fail_nth(asks_with, 1, UNKNOWN);
        rig.universe().fail_nth(asks_with, 2, INVALID_VALUE);
        let error = reap(&resource).unwrap_err();
        let ResourceError::Driver { call, code, .. } = error else { panic!("{error}") };
        assert_eq!((call, code), (asks_with, UNKNOWN));
        // The third block went back all the same.
        assert_eq!((resource.usage().retired, resource.usage().total_freed), (128, 64));
        assert_eq!(reap(&resource), Ok(128));
        assert_eq!(resource.bytes_outstanding(), 0);
        drop((resource, home, other));
        rig.assert_clean();
    }
}

#[test]
fn a_free_that_finds_the_device_lost_succeeds() {
    let prepare = |rig: &Rig| {
        let resource = tracked(rig);
        let [home, other] = [rig.stream(), rig.stream()];
        let [at_home, elsewhere] =
            [64, 128].map(|bytes| resource.allocate(bytes, home.id(), AllocTag::UNTAGGED).unwrap());
        write(rig, &resource, &at_home, home.id());
        write(rig, &resource, &elsewhere, other.id());
        (resource, [at_home, elsewhere], [home, other])
    };
    let failed =
        for_each_driver_call(ILLEGAL_ADDRESS, prepare, |_, (resource, blocks, _streams)| {
            for block in blocks {
                resource.deallocate(block).expect("deallocate succeeds on a lost device");
            }
            assert_eq!((resource.usage().live, resource.usage().retired), (0, 192));
        });
    assert!(failed >= 2, "{failed} calls were failed");
}

#[test]
fn on_a_lost_device_blocks_come_back_and_no_driver_call_is_made() {
    // What is retired is not done with when the device is lost.
    let rig = Rig::in_universe(&Universe::builder().policy(Policy::Lazy).build().unwrap());
    let resource = tracked(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    let allocate = || resource.allocate(64, home.id(), AllocTag::UNTAGGED);
    let blocks = [(); 3].map(|()| allocate().unwrap());
    blocks[1..].iter().for_each(|block| write(&rig, &resource, block, other.id()));
    let [at_home, elsewhere, retired] = blocks;
    resource.deallocate(retired).unwrap();
    rig.universe().fail_nth("cuMemAlloc_v2", 1, ILLEGAL_ADDRESS);
    let lost = allocate().unwrap_err();
    assert!(matches!(lost, ResourceError::DeviceLost { .. }), "{lost}");
    rig.universe().reset_calls();
    resource.deallocate(at_home).unwrap();
    resource.deallocate(elsewhere).unwrap();
    assert_eq!(allocate().unwrap_err(), lost);
    // Their memory went with the context.
    assert_eq!(resource.try_reap(), Ok(3 * 64));
    assert_eq!(resource.upstream().usage().live, 0);
    assert_eq!(rig.universe().calls().total(), 0, "{:?}", rig.universe().calls());
}
