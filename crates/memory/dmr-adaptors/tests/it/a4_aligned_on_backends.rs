//! The conformance suite over `AlignedResource` on the backends.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

#![cfg(feature = "aligned")]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::aligned::AlignedLayer;
use dmr_core::conformance::{Report, run_all};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

#[test]
fn aligned_blocks_of_the_async_backend_keep_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| {
        let inner = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new());
        AlignedLayer::new(1 << 16).expect("a power of two").layer(inner.expect("a pool"))
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}
