//! The conformance suite over `StatisticsResource` on the backends.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

#![cfg(feature = "statistics")]

use std::sync::Arc;

use dmr_adaptors::ResourceLayer;
use dmr_adaptors::statistics::StatisticsLayer;
use dmr_core::conformance::{Report, run_all};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

#[test]
fn statistics_over_the_async_backend_keep_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| {
        let inner = AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new());
        StatisticsLayer::new().layer(inner.expect("a pool"))
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}
