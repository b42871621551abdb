//! D3: without a CUDA driver, opening a device says what was tried and what to do.
//!
//! A process of its own, without the simulated driver.

#![allow(unsafe_code, reason = "looks for the driver as the library does")]

use dmr_streams::library::{LIBRARY_NAMES, error_name, probe};
use dmr_streams::{Device, DeviceError};

#[test]
fn without_a_driver_the_error_says_so_and_nothing_panics() {
    // SAFETY: as the library itself does, to find out the expected result.
    let installed =
        LIBRARY_NAMES.iter().any(|name| unsafe { libloading::Library::new(*name) }.is_ok());
    let outcome = Device::open(0);
    match outcome {
        Err(DeviceError::NoCudaLibrary { ref tried, .. }) => {
            assert!(!installed, "a driver is there, but was not found");
            assert_eq!(tried, LIBRARY_NAMES);
            let message = outcome.unwrap_err().to_string();
            assert!(message.contains("no CUDA driver found (tried libcuda.so, libcuda.so.1)"));
            assert!(message.contains("DMR_DRIVER=sim"), "{message}");
            assert!(probe().is_err(), "and again: a failed probe is not remembered as a success");
            assert_eq!(error_name(2), "unknown CUDA error");
        }
        found => assert!(installed, "no driver is there, but: {found:?}"),
    }
}
