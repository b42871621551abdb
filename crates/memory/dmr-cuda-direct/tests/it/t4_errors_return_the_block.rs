//! T4: a block that is refused is returned inside the error.

use std::sync::Arc;

use dmr_core::{AllocTag, DeviceMemoryResource, ResourceError, StreamId};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn a_block_of_another_resource_is_returned_unharmed() {
    let rig = Rig::new();
    let [ours, theirs] = [(); 2].map(|()| DirectCudaResource::new(Arc::clone(rig.streams())));
    let block = theirs.allocate(100, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    let generation = block.generation();
    let refused = ours.deallocate(block).unwrap_err();
    assert!(matches!(refused.error, ResourceError::ForeignBlock { .. }), "{refused}");
    assert_eq!(refused.block.generation(), generation);
    assert_eq!((ours.usage().total_freed, theirs.usage().live), (0, 100));
    theirs.deallocate(refused.block).unwrap();
    drop((ours, theirs));
    rig.assert_clean();
}
