//! Why a device cannot be opened, and what to do about it.

use crate::DriverVersion;

/// Why a CUDA device cannot be opened.
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
        /// The names that were tried, in this order.
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
    #[error("{library} is not a CUDA driver: it has no {symbol}")]
    NotADriver {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },

    /// The driver is older than what the library needs.
    #[non_exhaustive]
    #[error(
        "the CUDA driver is version {found}, {needed} or newer is needed: update the NVIDIA driver"
    )]
    DriverTooOld {
        /// The highest CUDA version that the driver supports.
        found: DriverVersion,
        /// The lowest that will do.
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
        /// The ordinal that was asked for.
        ordinal: usize,
        /// How many devices the driver sees.
        count: usize,
    },

    /// The driver refused a call.
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

impl DeviceError {
    /// What a refused call means for somebody who wants a device.
    pub(crate) fn from_code(call: &'static str, code: i32) -> Self {
        match code {
            34 => Self::StubLibrary,
            100 => Self::NoDevice,
            _ => Self::Driver { call, code, name: crate::library::error_name(code) },
        }
    }
}

/// What to do about the codes that people meet when they open a device.
fn advice(code: i32) -> &'static str {
    match code {
        2 => ": the device has no memory left for a context",
        3 => ": a forked child cannot use CUDA if its parent did; start the process anew",
        46 => ": another process holds the device (compute mode)",
        802 => ": the machine's fabric manager is not ready",
        803 => ": driver and kernel module have different versions; reboot, or reload the module",
        804 => ": the CUDA compatibility package does not support this GPU",
        999 => ": often a kernel module that was unloaded or replaced under a running system",
        _ => "",
    }
}
