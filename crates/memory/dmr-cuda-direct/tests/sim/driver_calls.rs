//! Exactly one `cuMemAlloc` and one `cuMemFree` per block, and nothing else but asking which
//! context is current, and the capture mode of the thread.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn a_block_costs_one_allocation_and_one_free() {
    const BLOCKS: u64 = 100;
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let stream = rig.stream();
    rig.device().bind().unwrap();
    rig.universe().reset_calls();
    for _ in 0..BLOCKS {
        let block = resource.allocate(1000, stream.id(), AllocTag::UNTAGGED).unwrap();
        resource.deallocate(block).unwrap();
    }
    resource.reap_pending().unwrap();
    let calls = rig.universe().calls();
    assert_eq!(calls.count("cuMemAlloc_v2"), BLOCKS);
    assert_eq!(calls.count("cuMemFree_v2"), BLOCKS);
    // One per allocation, one for the reap.
    assert_eq!(calls.count("cuCtxGetCurrent"), BLOCKS + 1);
    assert_eq!(calls.count("cuThreadExchangeStreamCaptureMode"), 2 * (BLOCKS + 1));
    assert_eq!(calls.total(), 5 * BLOCKS + 3);
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn asking_for_the_accounting_costs_no_driver_call() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    rig.universe().reset_calls();
    assert_eq!((resource.usage().live, resource.bytes_outstanding()), (0, 0));
    assert_eq!(rig.universe().calls().total(), 0);
}

#[test]
fn dropping_a_resource_frees_what_is_retired() {
    let rig = Rig::simulated();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    for _ in 0..3 {
        let block = resource.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
        resource.deallocate(block).unwrap();
    }
    rig.universe().reset_calls();
    drop(resource);
    assert_eq!(rig.universe().calls().count("cuMemFree_v2"), 1);
    rig.assert_clean();
}
