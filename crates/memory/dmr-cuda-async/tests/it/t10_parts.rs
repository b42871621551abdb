//! T10: the backend refuses a part of its block, whose address is no allocation of the driver.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

#[test]
fn a_part_with_an_offset_makes_no_driver_call_and_its_block_is_freed() {
    let rig = Rig::new();
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let home = rig.stream();
    let block = resource.allocate(4096, home.id(), AllocTag::UNTAGGED).unwrap();
    let before = resource.usage();
    let (part, whole) = block.narrow(2048, 2048).unwrap();
    let refused = resource.deallocate(part).unwrap_err();
    assert!(matches!(refused.error, ResourceError::PartOfBlock { .. }), "{}", refused.error);
    assert_eq!(resource.usage(), before);
    let block = whole.restore(refused.block).unwrap();
    rig.ops().fill_pattern(&block, 0..4096, 7, home.id()).unwrap();
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.usage().outstanding(), 0);
    drop((resource, home));
    rig.assert_clean();
}
