//! The conformance suite over the direct backend with use tracking.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use std::sync::Arc;

use dmr_core::conformance::{Report, run_all};
use dmr_cuda_direct::DirectCudaResource;
use dmr_streams::Tracked;
use dmr_testkit::Rig;

#[test]
fn the_tracked_direct_backend_keeps_the_contract() -> Result<(), Report> {
    let resource = |rig: &Rig| {
        let direct = DirectCudaResource::new(Arc::clone(rig.streams()));
        Tracked::new(direct, Arc::clone(rig.streams())).expect("of the same pool")
    };
    run_all(|| Rig::new().harness(resource)).into_result()
}
