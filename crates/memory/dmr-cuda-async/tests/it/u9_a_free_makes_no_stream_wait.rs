//! U8, U9, U10: a free comes after every use, and no user's stream waits because of it.

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, DeviceBlock, DeviceMemoryResource, DeviceOps, StreamId, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_sim::{Driver, Policy, Universe};
use dmr_testkit::{Rig, RigConfig};

/// On the simulator work runs as late as it may: what ran was waited for.
fn rig() -> Rig {
    let simulated = matches!(dmr_sim::select().unwrap(), Driver::Simulated(_));
    let universe = simulated.then(|| Universe::builder().policy(Policy::Lazy).build().unwrap());
    Rig::with(RigConfig { universe, ..RigConfig::default() })
}

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn used(
    rig: &Rig,
    resource: &AsyncCudaResource,
    block: &DeviceBlock,
    stream: StreamId,
    access: Access,
    byte: u8,
) {
    let token = resource.prepare_block_use(block.id(), stream, access).unwrap();
    let range = 0..block.bytes();
    let pattern = u32::from_le_bytes([byte; 4]);
    if access.writes() {
        rig.ops().fill_pattern(block, range, pattern, stream).unwrap();
    } else {
        rig.ops().check_pattern(block, range, pattern, stream, u64::from(byte)).unwrap();
    }
    resource.finish_uses(token).unwrap();
}

#[test]
fn neither_the_home_stream_nor_a_third_one_waits_for_a_slow_user() {
    let rig = rig();
    let resource = resource(&rig);
    let [home, slow, third] = [rig.stream(), rig.stream(), rig.stream()];
    // The first delay compiles its kernel.
    rig.delay(&slow);
    let block = resource.allocate(4096, home.id(), AllocTag::UNTAGGED).unwrap();
    used(&rig, &resource, &block, home.id(), Access::Write, 1);
    rig.device().synchronize().unwrap();

    rig.delay(&slow);
    used(&rig, &resource, &block, slow.id(), Access::Read, 1);
    let slow_is_done = slow.stream().record_event(None).unwrap();
    resource.deallocate(block).unwrap();
    for stream in [&home, &third] {
        // Other work, on memory of its own.
        let own = resource.allocate(1 << 20, stream.id(), AllocTag::UNTAGGED).unwrap();
        used(&rig, &resource, &own, stream.id(), Access::Write, 2);
        rig.streams().synchronize(stream.id()).unwrap();
        assert!(!slow_is_done.is_complete(), "a stream has waited for the slow one");
        resource.deallocate(own).unwrap();
    }
    drop((resource, home, slow, third));
    rig.assert_clean();
}

#[test]
fn a_free_waits_for_readers_on_other_streams() {
    let rig = rig();
    let resource = resource(&rig);
    let [home, a, b] = [rig.stream(), rig.stream(), rig.stream()];
    for round in 1..4 {
        let block = resource.allocate(1 << 20, home.id(), AllocTag::new("shared")).unwrap();
        used(&rig, &resource, &block, home.id(), Access::Write, round);
        rig.delay(&a);
        used(&rig, &resource, &block, a.id(), Access::Read, round);
        used(&rig, &resource, &block, b.id(), Access::Read, round);
        resource.deallocate(block).unwrap();
        // Takes the memory if it can be had.
        let next = resource.allocate(1 << 20, b.id(), AllocTag::new("next")).unwrap();
        used(&rig, &resource, &next, b.id(), Access::Write, 0xEE);
        resource.deallocate(next).unwrap();
    }
    drop((resource, home, a, b));
    rig.assert_clean();
}

#[test]
fn unrecorded_work_on_the_home_stream_comes_before_the_free() {
    let rig = rig();
    let resource = resource(&rig);
    let [home, other] = [rig.stream(), rig.stream()];
    for used_elsewhere in [false, true] {
        let block = resource.allocate(4096, home.id(), AllocTag::UNTAGGED).unwrap();
        used(&rig, &resource, &block, other.id(), Access::Write, 3);
        used(&rig, &resource, &block, home.id(), Access::Read, 3);
        if used_elsewhere {
            used(&rig, &resource, &block, other.id(), Access::Read, 3);
        }
        rig.delay(&home);
        rig.ops().check_pattern(&block, 0..4096, 0x0303_0303, home.id(), 3).unwrap();
        resource.deallocate(block).unwrap();
    }
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn the_next_user_of_freed_memory_comes_after_the_last() {
    let rig = rig();
    let resource = resource(&rig);
    let [home, other, third] = [rig.stream(), rig.stream(), rig.stream()];
    for round in 1..8 {
        let block = resource.allocate(1 << 20, home.id(), AllocTag::new("first")).unwrap();
        rig.delay(&home);
        used(&rig, &resource, &block, home.id(), Access::Write, round);
        resource.deallocate(block).unwrap();
        let next = resource.allocate(1 << 20, home.id(), AllocTag::new("second")).unwrap();
        // First used elsewhere, without the home stream having touched it.
        used(&rig, &resource, &next, other.id(), Access::Write, round);
        used(&rig, &resource, &next, third.id(), Access::Read, round);
        resource.deallocate(next).unwrap();
    }
    drop((resource, home, other, third));
    rig.assert_clean();
}
