//! U4: a consumer waits for the use it depends on, and for nothing that was submitted after it.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use dmr_core::{Access, AllocTag, DeviceMemoryResource, DeviceOps, UseTrackingExt};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 1 << 20;

#[test]
fn a_reader_is_done_before_the_producers_later_work() {
    let rig = Rig::new();
    let streams = Arc::clone(rig.streams());
    let resource = Tracked::new(DirectCudaResource::new(Arc::clone(&streams)), streams).unwrap();
    let [a, b] = [rig.stream(), rig.stream()];
    let block = resource.allocate(BYTES, a.id(), AllocTag::UNTAGGED).unwrap();
    // The first check loads the kernels, which takes its time.
    rig.ops().fill_pattern(&block, 0..BYTES, 7, a.id()).unwrap();
    rig.ops().check_pattern(&block, 0..BYTES, 7, a.id(), 0).unwrap();
    rig.ops().synchronize(a.id()).unwrap();

    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let start = a.stream().record_event(timed).unwrap();
    let write = resource.prepare_block_use(block.id(), a.id(), Access::Write).unwrap();
    rig.ops().fill_pattern(&block, 0..BYTES, 8, a.id()).unwrap();
    resource.finish_uses(write).unwrap();
    rig.delay(a.id()); // 20 ms
    let read = resource.prepare_block_use(block.id(), b.id(), Access::Read).unwrap();
    rig.ops().check_pattern(&block, 0..BYTES, 8, b.id(), 0).unwrap();
    resource.finish_uses(read).unwrap();
    let end = b.stream().record_event(timed).unwrap();
    let after_all = a.stream().record_event(timed).unwrap();
    assert!(start.elapsed_ms(&end).unwrap() < 10.0);
    assert!(start.elapsed_ms(&after_all).unwrap() > 15.0);

    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    drop((start, end, after_all, resource, a, b));
    rig.assert_clean();
}
