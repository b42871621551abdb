//! Binding a device's context is one call where it is current, on any mix of threads and devices.

use dmr_streams::Device;
use dmr_testkit::Rig;

#[test]
fn binding_a_context_that_is_current_asks_and_does_no_more() {
    let rig = Rig::simulated();
    rig.device().bind().unwrap();
    rig.universe().reset_calls();
    rig.device().bind().unwrap();
    let calls = rig.universe().calls();
    assert_eq!((calls.count("cuCtxGetCurrent"), calls.total()), (1, 1));
}

#[test]
fn two_devices_alternate_on_one_thread() {
    let rig = Rig::simulated();
    let other = Device::open(rig.universe().ordinal(1)).unwrap();
    for _ in 0..3 {
        rig.device().bind().unwrap();
        other.bind().unwrap();
        assert!(!other.same_context(rig.device()));
    }
}
