//! One `cuMemAllocFromPoolAsync` and one `cuMemFreeAsync` per block, each between two exchanges of
//! the thread's capture mode. Beside those, only look-ups: whether the stream captures, and, after
//! a call that failed, which context is current.

use std::sync::Arc;

use dmr_core::{Access, AllocTag, BlockUse, DeviceMemoryResource, StreamId, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_sim::CallCounts;
use dmr_testkit::Rig;

const EXCHANGE: &str = "cuThreadExchangeStreamCaptureMode";
const LOOK_UPS: [&str; 3] = ["cuCtxGetCurrent", "cuStreamIsCapturing", EXCHANGE];

fn resource(rig: &Rig) -> AsyncCudaResource {
    AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
}

fn but_look_ups(calls: &CallCounts) -> u64 {
    calls.total() - LOOK_UPS.iter().map(|call| calls.count(call)).sum::<u64>()
}

#[test]
fn an_allocation_is_one_call_and_so_is_a_free() {
    const BLOCKS: u64 = 10;
    let rig = Rig::simulated();
    let resource = resource(&rig);
    // With several streams there is something to record, and still nothing is.
    let home = rig.stream();
    let other = rig.stream();
    let allocate = || resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
    rig.universe().reset_calls();
    let blocks: Vec<_> = (0..BLOCKS).map(|_| allocate()).collect();
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuMemAllocFromPoolAsync"), BLOCKS);
    assert_eq!(calls.count(EXCHANGE), 2 * BLOCKS);
    assert_eq!(but_look_ups(&calls), BLOCKS, "{calls:?}");
    rig.universe().reset_calls();
    for block in blocks {
        resource.deallocate(block).unwrap();
    }
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuMemFreeAsync"), BLOCKS);
    assert_eq!(calls.count(EXCHANGE), 2 * BLOCKS);
    assert_eq!(but_look_ups(&calls), BLOCKS, "{calls:?}");
    rig.universe().reset_calls();
    assert_eq!((resource.try_reap().unwrap(), resource.bytes_outstanding()), (0, 0));
    assert_eq!(rig.universe().calls().total(), 0);
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn a_pair_and_its_launches_look_no_context_up() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let home = rig.stream();
    let other = rig.stream();
    let round = || {
        let block = resource.allocate(1000, home.id(), AllocTag::UNTAGGED).unwrap();
        for (stream, access) in [(&home, Access::Write), (&other, Access::Read)] {
            let uses = [BlockUse::new(block.id(), access)];
            resource.finish_uses(resource.prepare_uses(&uses, stream.id()).unwrap()).unwrap();
        }
        resource.deallocate(block).unwrap();
    };
    const ROUNDS: u64 = 16;
    // Calls look for captures on streams that the program has in its hands.
    let _ = (home.stream(), other.stream());
    // Makes the events that are needed: these belong to the current context.
    (0..100).for_each(|_| round());
    rig.universe().reset_calls();
    (0..ROUNDS).for_each(|_| round());
    let calls = rig.universe().calls();
    // Only a question whether an event is done looks it up, and there is one for many frees.
    assert_eq!(calls.count("cuEventQuery"), 1, "{calls:?}");
    assert_eq!(calls.count("cuCtxGetCurrent"), 1, "{calls:?}");
    // One for each call of the trait, and one after the driver has allocated.
    assert_eq!(calls.count("cuStreamIsCapturing"), 7 * ROUNDS, "{calls:?}");
    assert_eq!(calls.count("cuEventRecord"), 2 * ROUNDS, "{calls:?}");
    assert_eq!(calls.count("cuStreamWaitEvent"), ROUNDS, "{calls:?}");
    drop((resource, home, other));
    rig.assert_clean();
}

#[test]
fn on_a_single_stream_uses_cost_no_driver_call() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let block = resource.allocate(1000, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    rig.universe().reset_calls();
    for access in [Access::Write, Access::Read, Access::ReadWrite] {
        let uses = [BlockUse::new(block.id(), access)];
        let tokens = resource.prepare_uses(&uses, StreamId::DEFAULT).unwrap();
        resource.finish_uses(tokens).unwrap();
    }
    resource.deallocate(block).unwrap();
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuMemFreeAsync"), 1);
    assert_eq!(but_look_ups(&calls), 1, "{calls:?}");
    drop(resource);
    rig.assert_clean();
}
