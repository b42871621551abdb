//! U8: work submitted before `deallocate`, on any stream, is done before the memory is freed.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn a_block_may_be_deallocated_while_its_work_is_still_running() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let home = rig.stream();
    let other = rig.stream();
    for round in 0..3_u32 {
        for stream in [&home, &other] {
            let block = resource.allocate(4096, home.id(), AllocTag::new("in use")).unwrap();
            rig.delay(stream);
            rig.ops().fill_pattern(&block, 0..4096, round, stream.id()).unwrap();
            rig.ops().check_pattern(&block, 0..4096, round, stream.id(), 0).unwrap();
            resource.deallocate(block).unwrap();
        }
        resource.reap_pending().unwrap();
    }
    drop((resource, home, other));
    rig.assert_clean();
}
