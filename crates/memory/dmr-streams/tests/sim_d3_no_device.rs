//! D3: a driver without a device says so, and that it is not the driver that is missing.
//!
//! A process of its own, in which the simulated driver has no machine.

use dmr_streams::device::device_count;
use dmr_streams::{Device, DeviceError};

#[test]
fn a_driver_without_a_device_is_not_a_missing_driver() {
    dmr_sim::install().unwrap();
    let error = Device::open(0).unwrap_err();
    assert_eq!(error, DeviceError::NoDevice);
    assert_eq!(device_count(), Err(DeviceError::NoDevice));
    assert_eq!(
        error.to_string(),
        "the CUDA driver sees no device: see what `nvidia-smi` lists, and whether \
         CUDA_VISIBLE_DEVICES hides it"
    );
}
