//! U9: a block that other streams have used is pending until they are known to be done: within
//! limits, and never past a reap.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, DeviceMemoryResource, DeviceOps, StreamId, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_sim::{Policy, Universe};
use dmr_testkit::{Rig, RigConfig};

const UNKNOWN: i32 = 999;
const OUT_OF_MEMORY: i32 = 2;

/// Work runs as late as it may: work that no call waits for is not done.
fn lazy() -> Rig {
    let universe = Some(Universe::builder().policy(Policy::Lazy).build().unwrap());
    Rig::with(RigConfig { universe, ..RigConfig::default() })
}

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

/// Allocates a block on `home`, reads it on `reader`, and deallocates it.
fn pass_through(
    rig: &Rig,
    resource: &AsyncCudaResource,
    bytes: usize,
    home: StreamId,
    reader: StreamId,
) {
    let block = resource.allocate(bytes, home, AllocTag::UNTAGGED).unwrap();
    let token = resource.prepare_block_use(block.id(), home, Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..64, 7, home).unwrap();
    resource.finish_uses(token).unwrap();
    let token = resource.prepare_block_use(block.id(), reader, Access::Read).unwrap();
    rig.ops().check_pattern(&block, 0..64, 7, reader, 0).unwrap();
    resource.finish_uses(token).unwrap();
    resource.deallocate(block).unwrap();
}

#[test]
fn when_the_readers_keep_up_a_free_is_one_call_on_the_home_stream() {
    const BLOCKS: u64 = 160;
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let [home, reader] = [rig.stream(), rig.stream()];
    let pass = || {
        pass_through(&rig, &resource, 4096, home.id(), reader.id());
        rig.streams().synchronize(reader.id()).unwrap();
    };
    (0..64).for_each(|_| pass());
    rig.universe().reset_calls();
    (0..BLOCKS).for_each(|_| pass());
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuMemFreeAsync"), BLOCKS, "one for each deallocated block: {calls:?}");
    assert_eq!(calls.count("cuEventQuery"), BLOCKS / 16, "{calls:?}");
    // One for each use, and the reader's for the writer: none for a free.
    assert_eq!(calls.count("cuEventRecord"), 2 * BLOCKS, "{calls:?}");
    assert_eq!(calls.count("cuStreamWaitEvent"), BLOCKS, "{calls:?}");
    assert!(resource.usage().retired <= 32 * 4096, "{:?}", resource.usage());
    let retired = resource.usage().retired;
    assert_eq!(resource.try_reap(), Ok(retired));
    assert_eq!(resource.bytes_outstanding(), 0);
    drop((resource, home, reader));
    rig.assert_clean();
}

#[test]
fn behind_a_slow_reader_pending_blocks_and_bytes_are_bounded() {
    let rig = lazy();
    let resource = resource(&rig);
    let [home, reader] = [rig.stream(), rig.stream()];
    for _ in 0..400 {
        pass_through(&rig, &resource, 256, home.id(), reader.id());
        // At the limit, half of them are freed at once.
        assert!(resource.usage().retired < 128 * 256);
    }
    for _ in 0..40 {
        pass_through(&rig, &resource, 4 << 20, home.id(), reader.id());
        assert!(resource.usage().retired <= 64 << 20);
    }
    resource.try_reap().unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
    // Larger than what is kept.
    pass_through(&rig, &resource, 16 << 20, home.id(), reader.id());
    assert_eq!(resource.bytes_outstanding(), 0);
    drop((resource, home, reader));
    rig.assert_clean();
}

#[test]
fn a_slow_reader_does_not_hold_up_the_blocks_of_another() {
    let rig = lazy();
    let resource = resource(&rig);
    let [home, slow, quick] = [rig.stream(), rig.stream(), rig.stream()];
    pass_through(&rig, &resource, 256, home.id(), slow.id());
    for _ in 0..400 {
        pass_through(&rig, &resource, 256, home.id(), quick.id());
        rig.streams().synchronize(quick.id()).unwrap();
        assert!(resource.usage().retired <= 256 * 48, "{:?}", resource.usage());
    }
    drop((resource, home, slow, quick));
    rig.assert_clean();
}

#[test]
fn a_block_is_pending_until_each_of_its_readers_is_done() {
    // Too few for a query, which would make the simulated device execute work.
    const BLOCKS: u64 = 60;
    let rig = lazy();
    let resource = resource(&rig);
    let [home, quick, slow] = [rig.stream(), rig.stream(), rig.stream()];
    // The first check compiles its kernel, which waits for the device.
    pass_through(&rig, &resource, 256, home.id(), slow.id());
    assert_eq!(resource.try_reap(), Ok(256));
    for _ in 0..BLOCKS {
        let block = resource.allocate(256, home.id(), AllocTag::UNTAGGED).unwrap();
        let token = resource.prepare_block_use(block.id(), home.id(), Access::Write).unwrap();
        rig.ops().fill_pattern(&block, 0..64, 7, home.id()).unwrap();
        resource.finish_uses(token).unwrap();
        for reader in [&quick, &slow] {
            let token = resource.prepare_block_use(block.id(), reader.id(), Access::Read).unwrap();
            rig.ops().check_pattern(&block, 0..64, 7, reader.id(), 0).unwrap();
            resource.finish_uses(token).unwrap();
        }
        resource.deallocate(block).unwrap();
        rig.streams().synchronize(quick.id()).unwrap();
    }
    assert_eq!(resource.usage().retired, 256 * BLOCKS);
    rig.streams().synchronize(slow.id()).unwrap();
    assert_eq!(resource.try_reap(), Ok(256 * BLOCKS));
    drop((resource, home, quick, slow));
    rig.assert_clean();
}

#[test]
fn a_reap_a_trim_and_an_allocation_without_memory_make_the_frees_at_once() {
    let rig = lazy();
    let resource = resource(&rig);
    let [home, reader] = [rig.stream(), rig.stream()];
    let defer_a_free = || {
        pass_through(&rig, &resource, 4096, home.id(), reader.id());
        assert_eq!((resource.usage().live, resource.usage().retired), (0, 4096));
        assert_eq!(resource.retired_bytes(home.id()), Ok(4096));
    };
    defer_a_free();
    assert_eq!(resource.try_reap(), Ok(4096));
    defer_a_free();
    assert_eq!(resource.reap_pending(), Ok(4096));
    defer_a_free();
    resource.trim_to(0).unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
    defer_a_free();
    rig.universe().fail_nth("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY);
    let block = resource.allocate(10, home.id(), AllocTag::UNTAGGED).unwrap();
    assert_eq!((resource.usage().live, resource.usage().retired), (10, 0));
    resource.deallocate(block).unwrap();
    defer_a_free();
    drop((resource, home, reader));
    rig.assert_clean();
}

#[test]
fn a_failing_query_or_free_loses_no_block() {
    const BLOCKS: u64 = 64;
    for call in ["cuEventQuery", "cuMemFreeAsync"] {
        let rig = Rig::simulated();
        let resource = resource(&rig);
        let [home, reader] = [rig.stream(), rig.stream()];
        // What is retired is tried again after every use.
        for nth in 1..=BLOCKS * BLOCKS {
            rig.universe().fail_nth(call, nth, UNKNOWN);
        }
        for _ in 0..BLOCKS {
            pass_through(&rig, &resource, 256, home.id(), reader.id());
        }
        assert!(rig.universe().calls().count(call) > 0);
        assert_eq!(resource.usage().retired, 256 * BLOCKS, "{call}");
        rig.universe().clear_faults();
        assert_eq!(resource.reap_pending(), Ok(256 * BLOCKS), "{call}");
        assert_eq!(resource.bytes_outstanding(), 0, "{call}");
        drop((resource, home, reader));
        rig.assert_clean();
    }
}
