//! T5: the direct backend tracks no uses, and every method that would says so.

use std::sync::Arc;

use dmr_core::error::StreamProblem;
use dmr_core::{
    Access, AllocTag, BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, StreamId,
    UseTokens, UseTrackingExt,
};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

fn refused<T>(result: ResourceResult<T>) -> bool {
    let problem = StreamProblem::NotTracked;
    matches!(result, Err(ResourceError::StreamMisuse { problem: found, .. }) if found == problem)
}

#[test]
fn declaring_a_use_is_refused_and_an_empty_launch_is_not() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let stream = rig.stream();
    let id = stream.id();
    let access = Access::Write;
    let block = resource.allocate(64, StreamId::DEFAULT, AllocTag::UNTAGGED).unwrap();
    assert!(!resource.supports_block_use_tracking());
    assert!(refused(resource.record_block_use(&block, id)));
    assert!(refused(resource.prepare_block_use(block.id(), id, access)));
    assert!(refused(resource.prepare_uses(&[BlockUse::new(block.id(), access)], id)));
    let mut tokens = UseTokens::new(id);
    #[allow(unsafe_code, reason = "makes a token that has no window")]
    // SAFETY: the resource has no windows.
    unsafe {
        tokens.push(block.id(), access, 0);
    }
    assert!(refused(resource.finish_uses(tokens)));

    let none = resource.prepare_uses(&[], id).unwrap();
    resource.finish_uses(none).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn it_prints_as_one_line() {
    let rig = Rig::new();
    let resource = DirectCudaResource::new(Arc::clone(rig.streams()));
    let line = format!("Direct(device {})", rig.ordinal());
    assert_eq!((format!("{resource:?}"), format!("{resource}")), (line.clone(), line));
}
