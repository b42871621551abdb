//! The conformance suite over the async backend.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use std::sync::Arc;

use dmr_core::conformance::{Report, run_all};
use dmr_cuda_async::{AsyncConfig, AsyncCudaResource};
use dmr_testkit::Rig;

#[test]
fn the_async_backend_keeps_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| {
        AsyncCudaResource::new(Arc::clone(rig.streams()), AsyncConfig::new()).expect("a pool")
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}
