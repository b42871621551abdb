//! Finds the CUDA driver without cudarc, which panics where there is none.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;

use libloading::Library;

use crate::{DeviceError, DriverVersion};

/// The library names of the driver, in the order in which they are tried.
///
/// They are the first and the last that cudarc tries; no supported driver has one of the others.
pub const LIBRARY_NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// The oldest CUDA version that the driver must support.
pub const MINIMUM_VERSION: DriverVersion = DriverVersion { major: 12, minor: 0 };

/// Loads and initialises the CUDA driver, and returns its version.
///
/// A failed probe has no effect: the next call finds a driver that was installed meanwhile, such as
/// the simulated one. After a successful probe cudarc finds the driver, too.
///
/// # Errors
///
/// [`NoCudaLibrary`](DeviceError::NoCudaLibrary), [`StubLibrary`](DeviceError::StubLibrary),
/// [`NotADriver`](DeviceError::NotADriver), [`DriverTooOld`](DeviceError::DriverTooOld),
/// [`NoDevice`](DeviceError::NoDevice) or [`Driver`](DeviceError::Driver).
pub fn probe() -> Result<DriverVersion, DeviceError> {
    driver()?.initialise()
}

/// Returns the number of devices that the driver reports.
///
/// # Errors
///
/// As [`probe`]. Never zero: no device is [`NoDevice`](DeviceError::NoDevice).
pub fn device_count() -> Result<usize, DeviceError> {
    let driver = driver()?;
    driver.initialise()?;
    let mut count = 0;
    // SAFETY: the argument is the address of an int, as the function's prototype requires.
    let code = unsafe { (driver.get_count)(&mut count) };
    match (code, usize::try_from(count)) {
        (0, Ok(count)) if count > 0 => Ok(count),
        (0, _) => Err(DeviceError::NoDevice),
        _ => Err(DeviceError::from_code("cuDeviceGetCount", code)),
    }
}

/// Returns the driver's name of a `CUresult`.
#[must_use]
pub fn error_name(code: i32) -> &'static str {
    const UNKNOWN: &str = "unknown CUDA error";
    let Ok(driver) = driver() else { return UNKNOWN };
    let mut name = std::ptr::null();
    // SAFETY: the second argument is the address of a pointer, as the function's prototype
    // requires; the function refuses unknown codes.
    let found = unsafe { (driver.get_error_name)(code, &mut name) };
    if found != 0 || name.is_null() {
        return UNKNOWN;
    }
    // SAFETY: the driver returns a constant string, and is never unloaded.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or(UNKNOWN)
}

impl DeviceError {
    /// Converts the code of a failed call.
    pub(crate) fn from_code(call: &'static str, code: i32) -> Self {
        match code {
            34 => Self::StubLibrary,
            100 => Self::NoDevice,
            _ => Self::Driver { call, code, name: error_name(code) },
        }
    }
}

/// Looks up a function that only some drivers have.
///
/// # Safety
///
/// A driver that has the symbol has a function of type `F` there.
#[must_use]
pub unsafe fn optional<F: Copy>(symbol: &str) -> Option<F> {
    // SAFETY: the caller's obligation. The driver is never unloaded.
    unsafe { driver().ok()?.library.get::<F>(symbol) }.ok().map(|found| *found)
}

/// The functions that are called before cudarc may be used. Result codes are plain integers here:
/// cudarc's closed enum cannot hold the codes of a driver newer than its bindings.
struct Driver {
    init: unsafe extern "system" fn(c_uint) -> c_int,
    get_version: unsafe extern "system" fn(*mut c_int) -> c_int,
    get_count: unsafe extern "system" fn(*mut c_int) -> c_int,
    get_error_name: unsafe extern "system" fn(c_int, *mut *const c_char) -> c_int,
    library: Library,
}

impl Driver {
    fn load(names: &[&str]) -> Result<Self, DeviceError> {
        for name in names {
            // SAFETY: loading a CUDA driver runs its initialisers, as in every CUDA program.
            if let Ok(library) = unsafe { Library::new(*name) } {
                return Self::bind(library, name);
            }
        }
        Err(DeviceError::NoCudaLibrary { tried: names.iter().map(|&n| n.to_owned()).collect() })
    }

    fn bind(library: Library, name: &str) -> Result<Self, DeviceError> {
        let missing = |symbol| DeviceError::NotADriver { library: name.to_owned(), symbol };
        macro_rules! symbol {
            ($symbol:literal) => {
                // SAFETY: the field's type is the function's prototype in cuda.h.
                *unsafe { library.get($symbol) }.map_err(|_| missing($symbol))?
            };
        }
        Ok(Self {
            init: symbol!("cuInit"),
            get_version: symbol!("cuDriverGetVersion"),
            get_count: symbol!("cuDeviceGetCount"),
            get_error_name: symbol!("cuGetErrorName"),
            library,
        })
    }

    fn initialise(&self) -> Result<DriverVersion, DeviceError> {
        let mut number = 0;
        // SAFETY: the argument is the address of an int, as the function's prototype requires; it
        // may be called before cuInit.
        let code = unsafe { (self.get_version)(&mut number) };
        if code != 0 {
            return Err(DeviceError::from_code("cuDriverGetVersion", code));
        }
        let version = supported(DriverVersion::from_number(number))?;
        // SAFETY: 0 is the only flag there is; may be called any number of times.
        match unsafe { (self.init)(0) } {
            0 => Ok(version),
            code => Err(DeviceError::from_code("cuInit", code)),
        }
    }
}

fn supported(found: DriverVersion) -> Result<DriverVersion, DeviceError> {
    if found < MINIMUM_VERSION {
        return Err(DeviceError::DriverTooOld { found, needed: MINIMUM_VERSION });
    }
    Ok(found)
}

/// Returns the driver of this process. Searches again at each call until it is found.
fn driver() -> Result<&'static Driver, DeviceError> {
    static FOUND: OnceLock<Driver> = OnceLock::new();
    match FOUND.get() {
        Some(driver) => Ok(driver),
        None => {
            let driver = Driver::load(LIBRARY_NAMES)?;
            Ok(FOUND.get_or_init(|| driver))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_the_message_says_what_was_tried_and_what_to_do() {
        let error = Driver::load(&["libdmr-absent.so", "libdmr-absent.so.1"]).err().unwrap();
        assert_eq!(
            error.to_string(),
            "no CUDA driver found (tried libdmr-absent.so, libdmr-absent.so.1): install the \
             NVIDIA driver, or set DMR_DRIVER=sim in a program that has dmr-sim linked in to run \
             on the simulated one"
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_that_is_no_driver_is_named() {
        let error = Driver::load(&["libdmr-absent.so", "libc.so.6"]).err().unwrap();
        assert_eq!(
            error.to_string(),
            "libc.so.6 is not a CUDA driver, because it has no cuInit: take it out of the library search path"
        );
    }

    #[test]
    fn drivers_older_than_the_minimum_are_refused_with_both_versions() {
        let error = supported(DriverVersion::from_number(11_080)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the CUDA driver is version 11.8, 12.0 or newer is needed: update the NVIDIA driver"
        );
        for number in [12_000, 12_040, 13_000] {
            assert!(supported(DriverVersion::from_number(number)).is_ok());
        }
    }
}
