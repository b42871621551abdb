//! D3: what the driver lacks reaches the user through the runtime, in words of its own.

#![cfg(feature = "direct")]

use dmr::prelude::*;
use dmr_testkit::Rig;

#[test]
fn an_ordinal_out_of_range_is_the_devices_error() {
    let _rig = Rig::new();
    let none = i32::MAX as usize;
    let error = DeviceRuntime::builder(none).build().unwrap_err();
    assert!(
        matches!(error, RuntimeError::Device(DeviceError::OrdinalOutOfRange { .. })),
        "{error}"
    );
    assert!(error.to_string().starts_with(&format!("CUDA ordinal {none} is out of range")));
}
