//! T4: what a resource does not take back when a buffer is dropped is counted and kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::Context;
use dmr_buffer::DeviceBuffer;
use dmr_buffer::failures::{drop_failures, take_drop_failures};
use dmr_core::{BlockState, DeallocateError, DeviceBlock, DeviceMemoryResource, ResourceError};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::DeviceContext;
use dmr_testkit::Rig;

/// Takes nothing back while told to.
#[derive(Debug)]
struct Stubborn {
    inner: DirectCudaResource,
    refuses: AtomicBool,
}

impl DeviceMemoryResource for Stubborn {
    fn deallocate(&self, block: DeviceBlock) -> Result<BlockState, Box<DeallocateError>> {
        if self.refuses.load(Ordering::Relaxed) {
            let error = ResourceError::driver("cuMemFreeAsync", 999, "CUDA_ERROR_UNKNOWN", 0);
            return Err(DeallocateError::new(error, block));
        }
        self.inner.deallocate(block)
    }

    dmr_core::forward!(
        inner: allocate, is_retired, device_ordinal, stream_pool, usage, try_reap, reap_pending,
    );
}

/// One test, because the failures are the process's.
#[test]
fn a_block_that_is_refused_is_counted_and_kept_and_can_be_deallocated_later() {
    let rig = Rig::new();
    let inner = DirectCudaResource::new(Arc::clone(rig.streams()));
    let stubborn = Arc::new(Stubborn { inner, refuses: AtomicBool::new(true) });
    let ctx = Context::with(&rig, Arc::clone(&stubborn) as _);

    let buffer = DeviceBuffer::<u8>::zeroed(&ctx, ctx.home(), 100).unwrap();
    let generation = buffer.block().unwrap().generation();
    drop(buffer);
    assert_eq!(drop_failures(), 1);
    assert_eq!(ctx.resource().usage().live, 100, "nothing is lost");

    let mut kept = take_drop_failures();
    assert_eq!(kept.len(), 1);
    let failure = kept.remove(0);
    assert_eq!(failure.block().generation(), generation);
    assert!(failure.error().to_string().contains("cuMemFreeAsync"));
    let message = failure.to_string();
    assert!(message.starts_with(&format!("a buffer was dropped, and {}", failure.block())));
    assert!(message.ends_with(&failure.error().to_string()), "{message}");
    let failure = failure.retry().expect_err("it still refuses");

    stubborn.refuses.store(false, Ordering::Relaxed);
    failure.retry().unwrap();
    assert_eq!((drop_failures(), take_drop_failures().len()), (1, 0));
    drop(stubborn);
    ctx.assert_clean(rig);
}
