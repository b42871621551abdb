//! T1: a stream is named, and that is enough: it does not matter which context is current on the
//! calling thread.

#![allow(unsafe_code, reason = "takes the context away")]

use std::sync::Arc;

use cudarc::driver::result;
use dmr_core::{Access, AllocTag, DeviceMemoryResource, DeviceOps, UseTrackingExt};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_streams::StreamLease;
use dmr_testkit::Rig;

const BYTES: usize = 4096;

/// Every call of a block's life, each where no context is current.
fn use_a_block(rig: &Rig, resource: &AsyncCudaResource, [home, other]: [&StreamLease; 2]) {
    // SAFETY: no context is always allowed.
    let forget_context = || unsafe { result::ctx::set_current(std::ptr::null_mut()) }.unwrap();
    forget_context();
    let block = resource.allocate(BYTES, home.id(), AllocTag::UNTAGGED).unwrap();
    for (stream, access) in [(home, Access::Write), (other, Access::ReadWrite)] {
        forget_context();
        let window = resource.prepare_block_use(block.id(), stream.id(), access).unwrap();
        if access == Access::Write {
            rig.ops().fill_pattern(&block, 0..BYTES, 7, stream.id()).unwrap();
        } else {
            rig.ops().check_pattern(&block, 0..BYTES, 7, stream.id(), 0).unwrap();
        }
        forget_context();
        resource.finish_uses(window).unwrap();
    }
    forget_context();
    resource.deallocate(block).unwrap();
    forget_context();
    resource.reap_pending().unwrap();
    assert_eq!(resource.bytes_outstanding(), 0);
}

#[test]
fn a_thread_that_has_no_context_allocates_launches_and_frees() {
    let rig = Rig::new();
    let streams = Arc::clone(rig.streams());
    let resource = AsyncCudaResource::new(streams, AsyncConfig::new()).unwrap();
    // The legacy stream is that of whichever context is current.
    let [first, second] = [rig.stream(), rig.stream()];
    let legacy = rig.streams().adopt_legacy().unwrap();
    for streams in [[&first, &second], [&first, &legacy], [&legacy, &first]] {
        std::thread::scope(|scope| {
            scope.spawn(|| use_a_block(&rig, &resource, streams));
        });
        use_a_block(&rig, &resource, streams);
    }
    drop((resource, first, second, legacy));
    rig.assert_clean();
}
