//! The CUDA version of a driver.

use std::ffi::c_int;
use std::fmt;

/// The highest CUDA version that a driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverVersion {
    /// `13` of 13.0.
    pub major: u32,
    /// `0` of 13.0.
    pub minor: u32,
}

impl DriverVersion {
    /// Converts a number of `cuDriverGetVersion`: 13000 is 13.0.
    pub(crate) const fn from_number(number: c_int) -> Self {
        let number = number.unsigned_abs();
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
