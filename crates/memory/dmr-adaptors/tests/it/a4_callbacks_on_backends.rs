//! The conformance suite over `FailureCallbackResource` on the backends.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

#![cfg(feature = "callbacks")]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::callbacks::{FailureCallbackLayer, Response};
use dmr_core::conformance::{Report, run_all};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

#[test]
fn callbacks_over_the_async_backend_keep_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| {
        let inner = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new());
        FailureCallbackLayer::new()
            .with_callback(|_| Response::Decline)
            .layer(inner.expect("a pool"))
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}
