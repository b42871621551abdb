//! The conformance suite over slices of cudarc that are adopted as blocks.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_core::conformance::{Report, run_all};
use dmr_slices::CudaSlices;
use dmr_streams::{DeviceContext, StreamPool};
use dmr_testkit::Rig;

/// The streams are all that adopted slices need of a context.
struct Streams(Arc<StreamPool>);

impl DeviceContext for Streams {
    fn resource(&self) -> &Arc<dyn DeviceMemoryResource> {
        unreachable!("slices have a resource of their own")
    }

    fn streams(&self) -> &Arc<StreamPool> {
        &self.0
    }
}

#[test]
fn adopted_slices_keep_the_contract() -> Result<(), Report> {
    let resource =
        |rig: &Rig| Arc::clone(CudaSlices::of(&Streams(Arc::clone(rig.streams()))).resource());
    run_all(|| Rig::new().harness(resource)).into_result()
}
