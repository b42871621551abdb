//! D4: in a forked child every call is refused or returns nothing, and drops do nothing.

#![cfg(unix)]
#![allow(unsafe_code, reason = "forks")]

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, DeviceMemoryResource, ResourceError, ResourceResult, Usage, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

fn refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::ForkedProcess { .. }))
}

#[test]
fn a_forked_child_is_refused_everything() {
    let rig = Rig::new();
    let resource = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap();
    let stream = rig.stream();
    let block = resource.allocate(1000, stream.id(), AllocTag::UNTAGGED).unwrap();
    let token = resource.prepare_block_use(block.id(), stream.id(), Access::Write).unwrap();

    // SAFETY: the child makes calls that are refused, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let results = [
            refused(resource.allocate(1, stream.id(), AllocTag::UNTAGGED)),
            refused(resource.prepare_block_use(block.id(), stream.id(), Access::Read)),
            refused(resource.record_block_use(&block, stream.id())),
            refused(resource.try_reap()),
            refused(resource.reap_pending()),
            refused(resource.trim_to(0)),
            refused(rig.device().synchronize()),
            matches!(resource.deallocate(block),
                Err(back) if matches!(back.error, ResourceError::ForkedProcess { .. })),
            resource.usage() == Usage::default(),
        ];
        drop(resource);
        // Which of them was not refused, counted from 1.
        let wrong = results.iter().position(|refused| !refused).map_or(0, |nth| nth as i32 + 1);
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));

    // The parent goes on.
    resource.finish_uses(token).unwrap();
    resource.deallocate(block).unwrap();
    drop((resource, stream));
    rig.assert_clean();
}
