//! S2: a home stream of another owner is waited for by its last event once it is retired.

use crate::support::{TAG, resource};
use dmr_core::{DeviceMemoryResource, DeviceOps, ResourceError};
use dmr_testkit::Rig;

#[test]
fn a_block_goes_back_after_the_work_of_a_stream_that_its_owner_has_taken_back() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let adopted = {
        let stream = rig.device().context().new_stream().unwrap();
        rig.streams().adopt(stream).unwrap()
    };
    let [early, late] = [(); 2].map(|()| resource.allocate(4096, adopted.id(), TAG).unwrap());
    for block in [&early, &late] {
        rig.ops().fill_pattern(block, 0..4096, 1, adopted.id()).unwrap();
    }
    resource.deallocate(early).unwrap();
    rig.streams().retire_stream(&adopted).unwrap();
    drop(adopted);
    resource.deallocate(late).unwrap();
    assert_eq!(resource.reap_pending(), Ok(8192));
    assert_eq!(resource.usage().reserved, 0);
    drop(resource);
    rig.assert_clean();
}

#[test]
fn a_block_goes_back_after_its_lease() {
    let rig = Rig::new();
    let resource = resource(&rig);
    let lease = rig.stream();
    let block = resource.allocate(4096, lease.id(), TAG).unwrap();
    rig.ops().fill_pattern(&block, 0..4096, 1, lease.id()).unwrap();
    let id = lease.id();
    drop(lease);
    let refused = resource.allocate(1, id, TAG).unwrap_err();
    assert!(matches!(refused, ResourceError::StreamMisuse { .. }), "{refused}");
    resource.deallocate(block).unwrap();
    assert_eq!(resource.reap_pending(), Ok(4096));
    drop(resource);
    rig.assert_clean();
}
