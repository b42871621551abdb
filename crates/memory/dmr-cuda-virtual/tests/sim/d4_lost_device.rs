//! D4: on a lost device nothing is taken, and everything goes back.

use crate::support::{TAG, resource};
use dmr_core::{DeviceMemoryResource, ResourceError, ResourceResult, StreamId};
use dmr_testkit::Rig;

const LAUNCH_FAILED: i32 = 719;

fn lost<T>(result: ResourceResult<T>) -> bool {
    matches!(result, Err(ResourceError::DeviceLost { .. }))
}

#[test]
fn allocations_fail_and_every_block_is_freed() {
    let rig = Rig::simulated();
    let resource = resource(&rig);
    let pages = resource.virtual_memory().unwrap();
    let page = pages.granularity();
    let [held, deallocated] =
        [(); 2].map(|()| resource.allocate(100, StreamId::DEFAULT, TAG).unwrap());
    resource.deallocate(deallocated).unwrap();
    let range = pages.reserve(page).unwrap();
    let memory = pages.create(page, TAG).unwrap();
    pages.map(&memory, range.base()).unwrap();

    rig.universe().lose_device(0, LAUNCH_FAILED);
    assert!(lost(resource.allocate(100, StreamId::DEFAULT, TAG)));
    assert!(lost(pages.reserve(page)));
    assert!(lost(pages.create(page, TAG)));
    assert!(lost(pages.map(&memory, range.base())));
    resource.deallocate(held).unwrap();
    resource.reap_pending().unwrap();
    pages.unmap(&memory, range.base()).unwrap();
    pages.destroy(memory).unwrap();
    pages.release(range).unwrap();
    let usage = resource.usage();
    assert_eq!((usage.outstanding(), usage.reserved, usage.total_freed), (0, 0, 200));
}

#[test]
fn the_call_that_finds_it_lost_takes_back_as_well() {
    for call in ["cuStreamIsCapturing", "cuEventRecord", "cuEventSynchronize", "cuMemUnmap"] {
        let rig = Rig::simulated();
        let resource = resource(&rig);
        let _lent = rig.streams().resolve(StreamId::DEFAULT).unwrap();
        let block = resource.allocate(100, StreamId::DEFAULT, TAG).unwrap();
        rig.universe().fail_nth(call, 1, LAUNCH_FAILED);
        resource.deallocate(block).unwrap();
        // The call that found it may say so.
        let _ = resource.reap_pending();
        resource.reap_pending().unwrap();
        assert_eq!((resource.usage().outstanding(), resource.usage().reserved), (0, 0), "{call}");
        assert!(rig.device().is_lost(), "{call}");
    }
}
