//! The conformance suite over the direct backend.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use std::sync::Arc;

use dmr_core::conformance::{Report, run_all};
use dmr_cuda_direct::DirectCudaResource;
use dmr_testkit::Rig;

#[test]
fn the_direct_backend_keeps_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| DirectCudaResource::new(Arc::clone(rig.streams()));
    run_all(|| Rig::new().harness(resource)).into_result()
}
