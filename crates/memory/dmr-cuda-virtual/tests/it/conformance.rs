//! The conformance suite over the virtual backend, bare and with its uses tracked.
//!
//! In one test, one check after the other: on a GPU one of them takes all its memory.

use std::sync::Arc;

use dmr_core::DeviceMemoryResource;
use dmr_core::conformance::{Report, run_all};
use dmr_cuda_virtual::{VirtualConfig, VirtualCudaResource};
use dmr_streams::Tracked;
use dmr_testkit::Rig;

fn bare(rig: &Rig) -> VirtualCudaResource {
    VirtualCudaResource::new(Arc::clone(rig.streams()), VirtualConfig::new()).unwrap()
}

#[test]
fn the_virtual_backend_keeps_the_contract() -> Result<(), Report> {
    run_all(|| Rig::new().harness(bare)).into_result()?;
    let tracked = |rig: &Rig| Tracked::new(bare(rig), Arc::clone(rig.streams())).unwrap();
    run_all(|| Rig::new().harness(tracked)).into_result()
}

#[test]
fn a_pool_over_it_maps_pages_also_where_its_uses_are_tracked() {
    let rig = Rig::new();
    assert!(bare(&rig).virtual_memory().is_some());
    let tracked = Tracked::new(bare(&rig), Arc::clone(rig.streams())).unwrap();
    assert!(tracked.virtual_memory().is_some());
}
