//! D3: an ordinal that no device has is refused with the number of devices there are.

use dmr_streams::device::device_count;
use dmr_streams::{Device, DeviceError};
use dmr_testkit::Rig;

#[test]
fn an_ordinal_out_of_range_says_how_many_devices_there_are() {
    let _alone = crate::ALONE.lock();
    let rig = Rig::new();
    let count = device_count().unwrap();
    assert!(rig.ordinal() < count);
    for ordinal in [count, count + 1, i32::MAX as usize + 1, usize::MAX] {
        let error = Device::open(ordinal).unwrap_err();
        assert!(
            matches!(error, DeviceError::OrdinalOutOfRange { ordinal: at, count: of, .. }
                if at == ordinal && of == count),
            "{error}"
        );
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("CUDA ordinal {ordinal} is out of range")),
            "{message}"
        );
    }
}
