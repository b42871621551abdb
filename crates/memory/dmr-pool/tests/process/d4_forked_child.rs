//! D4: in a forked child every call is refused or returns nothing, and drops do nothing.

#![cfg(unix)]
#![allow(unsafe_code, reason = "forks")]

use std::sync::Arc;

use dmr_core::{
    Access, AllocTag, BlockUse, DeviceMemoryResource, ResourceError, ResourceResult, Usage,
    UseTokens, UseTrackingExt,
};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_cuda_direct::DirectCudaResource;
use dmr_pool::{PoolConfig, PoolResource};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

const BYTES: usize = 1000;

fn refused<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::ForkedProcess { .. }))
}

fn a_child_is_refused_and_the_parent_goes_on<R: DeviceMemoryResource>(
    make: impl FnOnce(&Rig) -> R,
) {
    let rig = Rig::new();
    let resource = make(&rig);
    let stream = rig.stream();
    let allocate = || resource.allocate(BYTES, stream.id(), AllocTag::UNTAGGED).unwrap();
    let mut block = allocate();
    let retired = allocate();
    let open = |block| {
        let uses = [BlockUse::new(block, Access::Write)];
        resource.prepare_uses(&uses, stream.id()).unwrap()
    };
    let finished = open(block.id());
    let cancelled = open(block.id());
    let closed_by_parent = open(block.id());
    let of_retired = open(retired.id());
    resource.deallocate(retired).unwrap();

    // SAFETY: the child makes calls that are refused, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let results = [
            refused(resource.allocate(1, stream.id(), AllocTag::UNTAGGED)),
            refused(resource.try_grow(&mut block, 2 * BYTES)),
            refused(resource.prepare_block_use(block.id(), stream.id(), Access::Read)),
            refused(resource.record_block_use(&block, stream.id())),
            refused(resource.finish_uses(finished)),
            refused(resource.cancel_uses(cancelled)),
            refused(resource.cancel_uses(of_retired)),
            refused(resource.try_reap()),
            refused(resource.reap_pending()),
            refused(resource.trim_to(0)),
            matches!(resource.deallocate(block),
                Err(back) if matches!(back.error, ResourceError::ForkedProcess { .. })),
            // What does nothing is allowed.
            resource.cancel_uses(UseTokens::new(stream.id())) == Ok(()),
            resource.bytes_outstanding() == 0,
            resource.usage() == Usage::default(),
        ];
        drop(resource);
        // Which of them was not as it should be, counted from 1.
        let wrong = results.iter().position(|right| !right).map_or(0, |nth| nth as i32 + 1);
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));

    for tokens in [closed_by_parent, finished, cancelled, of_retired] {
        resource.finish_uses(tokens).unwrap();
    }
    resource.deallocate(block).unwrap();
    resource.reap_pending().unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
    drop((resource, stream));
    rig.assert_clean();
}

#[test]
fn no_resource_is_made_in_a_forked_child() {
    let rig = Rig::new();
    // SAFETY: the child makes calls that are refused, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let streams = || Arc::clone(rig.streams());
        let results = [
            refused(AsyncCudaResource::new(streams(), AsyncConfig::new())),
            refused(Tracked::new(direct(&rig), streams())),
            refused(PoolResource::new(direct(&rig), streams(), PoolConfig::fast())),
        ];
        let wrong = results.iter().position(|right| !right).map_or(0, |nth| nth as i32 + 1);
        // SAFETY: ends the child, without the parent's handlers.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    rig.assert_clean();
}

fn direct(rig: &Rig) -> DirectCudaResource {
    DirectCudaResource::new(Arc::clone(rig.streams()))
}

#[test]
fn a_forked_child_is_refused_everything_by_a_pool() {
    a_child_is_refused_and_the_parent_goes_on(|rig| {
        PoolResource::new(direct(rig), Arc::clone(rig.streams()), PoolConfig::fast()).unwrap()
    });
}

#[test]
fn a_forked_child_is_refused_everything_by_an_async_resource() {
    a_child_is_refused_and_the_parent_goes_on(|rig| {
        AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).unwrap()
    });
}

#[test]
fn a_forked_child_is_refused_everything_by_a_tracked_resource() {
    a_child_is_refused_and_the_parent_goes_on(|rig| {
        Tracked::new(direct(rig), Arc::clone(rig.streams())).unwrap()
    });
}
