//! The errors of opening a device, with advice.

use crate::version::DriverVersion;

/// The reason why a CUDA device cannot be opened.
///
/// Variants are `#[non_exhaustive]`: match on what you need and end with `..`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no CUDA driver on this machine.
    #[non_exhaustive]
    #[error(
        "no CUDA driver found (tried {}): install the NVIDIA driver, or set DMR_DRIVER=sim in a \
         program that has dmr-sim linked in to run on the simulated one",
        .tried.join(", ")
    )]
    NoCudaLibrary {
        /// The library names, in the order in which they were tried.
        tried: Vec<String>,
    },

    /// The library that was found is the toolkit's stub, which is for linking only.
    #[error(
        "the CUDA library that was found is the toolkit's stub, which drives no device: take the \
         toolkit's `stubs` folder out of the library search path"
    )]
    StubLibrary,

    /// The library that was found lacks a function that every CUDA driver has.
    #[non_exhaustive]
    #[error(
        "{library} is not a CUDA driver, because it has no {symbol}: take it out of the library search path"
    )]
    NotADriver {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },

    /// The driver is older than the minimum.
    #[non_exhaustive]
    #[error(
        "the CUDA driver is version {found}, {needed} or newer is needed: update the NVIDIA driver"
    )]
    DriverTooOld {
        /// The highest CUDA version that the driver supports.
        found: DriverVersion,
        /// The lowest supported CUDA version.
        needed: DriverVersion,
    },

    /// There is a driver, but no device.
    #[error(
        "the CUDA driver sees no device: see what `nvidia-smi` lists, and whether \
         CUDA_VISIBLE_DEVICES hides it"
    )]
    NoDevice,

    /// There are devices, but none with this ordinal.
    #[non_exhaustive]
    #[error(
        "CUDA ordinal {ordinal} is out of range: the driver sees {count} device(s), counted from 0 \
         (CUDA_VISIBLE_DEVICES may hide others)"
    )]
    OrdinalOutOfRange {
        /// The requested ordinal.
        ordinal: usize,
        /// The number of devices that the driver reports.
        count: usize,
    },

    /// A driver call failed.
    #[non_exhaustive]
    #[error("{call} failed: {name} ({code}){}", advice(*.code))]
    Driver {
        /// The function, of the driver or of cudarc.
        call: &'static str,
        /// The `CUresult`.
        code: i32,
        /// Its name.
        name: &'static str,
    },
}

/// Returns advice for the codes that occur when a device is opened.
fn advice(code: i32) -> &'static str {
    match code {
        2 => {
            ": the device has no memory left for a context; free some, or end other processes on it"
        }
        3 => ": a forked child cannot use CUDA if its parent did; start the process anew",
        46 => ": another process holds the device (compute mode); wait until it ends",
        802 => ": the machine's fabric manager is not ready; start it, or wait for it",
        803 => ": driver and kernel module have different versions; reboot, or reload the module",
        804 => {
            ": the CUDA compatibility package does not support this GPU; update the driver instead"
        }
        999 => {
            ": often a kernel module that was unloaded or replaced under a running system; reboot"
        }
        _ => ": look the code up in the documentation of the CUDA driver",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The advice of a message. A new variant does not compile without.
    fn advice_of(error: &DeviceError) -> &'static str {
        match error {
            DeviceError::NoCudaLibrary { .. } => ": install the NVIDIA driver",
            DeviceError::StubLibrary => ": take the toolkit's `stubs` folder out",
            DeviceError::NotADriver { .. } => ": take it out of the library search path",
            DeviceError::DriverTooOld { .. } => ": update the NVIDIA driver",
            DeviceError::NoDevice => ": see what `nvidia-smi` lists",
            DeviceError::OrdinalOutOfRange { .. } => {
                "counted from 0 (CUDA_VISIBLE_DEVICES may hide"
            }
            DeviceError::Driver { .. } => ": look the code up",
        }
    }

    #[test]
    fn each_message_says_what_to_do() {
        let version = |major| DriverVersion { major, minor: 0 };
        for error in [
            DeviceError::NoCudaLibrary { tried: vec!["libcuda.so".into()] },
            DeviceError::from_code("cuInit", 34),
            DeviceError::NotADriver { library: "libc.so.6".into(), symbol: "cuInit" },
            DeviceError::DriverTooOld { found: version(11), needed: version(12) },
            DeviceError::from_code("cuInit", 100),
            DeviceError::OrdinalOutOfRange { ordinal: 7, count: 1 },
            DeviceError::Driver { call: "cuInit", code: 1, name: "CUDA_ERROR_INVALID_VALUE" },
        ] {
            let message = error.to_string();
            assert!(message.contains(advice_of(&error)), "{message}");
        }
    }

    #[test]
    fn each_code_that_is_met_when_a_device_is_opened_has_its_own_advice() {
        for code in [2, 3, 46, 802, 803, 804, 999] {
            assert!(advice(code).contains("; ") && advice(code) != advice(1), "{code}");
        }
    }
}
