//! Installs the simulated driver under the name of `libcuda` that cudarc loads, and selects the
//! driver to use.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::sync::OnceLock;

/// The name under which cudarc first looks for the driver.
const SONAME: &str = "libcuda.so";

/// The error of installing the simulated driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// It needs Linux with glibc on x86-64 or aarch64.
    #[error(
        "the simulated CUDA driver needs Linux with glibc on x86-64 or aarch64: run the tests \
         there, or on a real GPU with DMR_DRIVER=cuda"
    )]
    UnsupportedPlatform,
    /// Another `libcuda.so` is loaded already.
    #[error(
        "another libcuda.so is already loaded in this process: call dmr_sim::install() before \
         anything else touches CUDA"
    )]
    AnotherDriver,
    /// The operating system has refused a step.
    #[error("the simulated CUDA driver could not be loaded: {step} failed: {reason}")]
    #[non_exhaustive]
    System {
        /// The step that failed.
        step: &'static str,
        /// The system's message.
        reason: String,
    },
}

/// The driver that this process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// NVIDIA's driver.
    Cuda,
    /// The simulated driver. It has no device until a [`Universe`](crate::Universe) is made.
    Simulated(Because),
}

/// The reason why a process uses the simulated driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Because {
    /// `DMR_DRIVER=sim` is set.
    Requested,
    /// The program has installed it before.
    Installed,
    /// NVIDIA's driver is missing.
    NoLibrary,
    /// NVIDIA's driver finds no device.
    NoDevice,
    /// NVIDIA's driver finds fewer devices than are needed.
    TooFewDevices,
}

/// Formats the reason for a user: "no libcuda found".
impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "DMR_DRIVER=sim",
            Self::Installed => "installed by the program",
            Self::NoLibrary => "no libcuda found",
            Self::NoDevice => "libcuda finds no GPU",
            Self::TooFewDevices => "libcuda finds fewer GPUs than are needed",
        })
    }
}

/// The error of selecting a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// `DMR_DRIVER` is neither `sim` nor `cuda`.
    #[error("DMR_DRIVER is {value:?}: set it to `sim` or `cuda`, or unset it")]
    #[non_exhaustive]
    UnknownDriver {
        /// The value.
        value: String,
    },
    /// A variable that configures the universe of a process has a value that it cannot have.
    #[error(
        "{name} is {value:?}, which it cannot be: {valid}; see the documentation of dmr_sim::boot"
    )]
    #[non_exhaustive]
    BadVariable {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The values that it can have.
        valid: String,
    },
    /// `DMR_DRIVER=cuda`, and NVIDIA's driver is missing, has no device, or is hidden by the
    /// simulated one.
    #[error(
        "DMR_DRIVER=cuda asks for a GPU, and there is none ({because}): install the NVIDIA driver, \
         use a machine with enough GPUs, or set DMR_DRIVER=sim"
    )]
    #[non_exhaustive]
    NoGpu {
        /// The reason.
        because: Because,
    },
    /// The simulated driver was selected and cannot be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// Selects the driver of this process, once: that of `DMR_DRIVER=sim|cuda`, otherwise NVIDIA's if
/// it has a device, otherwise the simulated one, which is then installed. An empty `DMR_DRIVER`
/// counts as not set.
///
/// # Errors
///
/// An unknown `DMR_DRIVER`, `DMR_DRIVER=cuda` without a GPU, and those of [`install`]. On platforms
/// without the simulated driver it does not look for a GPU: the first call of NVIDIA's driver
/// returns the error.
pub fn select() -> Result<Driver, SelectError> {
    select_for(1)
}

/// Selects the driver as [`select`] does, for a program that needs this number of devices: NVIDIA's
/// driver with fewer of them counts as missing. The first call of either function in the process
/// selects.
///
/// # Errors
///
/// As [`select`].
pub fn select_for(devices: usize) -> Result<Driver, SelectError> {
    static CHOICE: OnceLock<Result<Driver, SelectError>> = OnceLock::new();
    CHOICE
        .get_or_init(|| {
            let wanted = std::env::var_os("DMR_DRIVER").unwrap_or_default();
            let because = match wanted.to_str() {
                Some("cuda") => return nvidias(devices),
                Some("sim") => Because::Requested,
                Some("") if is_installed() => Because::Installed,
                // Without a simulated driver, the errors of NVIDIA's driver are returned.
                Some("") if !platform::CAN_INSTALL => return Ok(Driver::Cuda),
                Some("") => match real_driver(devices) {
                    None => return Ok(Driver::Cuda),
                    Some(because) => because,
                },
                _ => {
                    let value = wanted.to_string_lossy().into_owned();
                    return Err(SelectError::UnknownDriver { value });
                }
            };
            install()?;
            Ok(Driver::Simulated(because))
        })
        .clone()
}

/// Selects NVIDIA's driver, or returns the reason why it cannot be used.
fn nvidias(devices: usize) -> Result<Driver, SelectError> {
    let because = match is_installed() {
        true => Some(Because::Installed),
        false if platform::CAN_INSTALL => real_driver(devices),
        false => None,
    };
    because.map_or(Ok(Driver::Cuda), |because| Err(SelectError::NoGpu { because }))
}

/// Loads the simulated driver into this process, so that `dlopen("libcuda.so")` finds it.
///
/// Idempotent. Must come before cudarc's first call, which looks for the driver once.
///
/// # Errors
///
/// Not Linux with glibc; another driver is loaded already; the system refuses.
pub fn install() -> Result<(), InstallError> {
    INSTALLED.get_or_init(platform::install).clone()
}

/// Makes this copy of the simulator the driver of the process, without a library in memory: it is
/// in a shared library that has the driver's name.
pub(crate) fn serve_as_library() -> Result<(), InstallError> {
    INSTALLED.get_or_init(platform::watch_forks).clone()
}

static INSTALLED: OnceLock<Result<(), InstallError>> = OnceLock::new();

fn is_installed() -> bool {
    matches!(INSTALLED.get(), Some(Ok(())))
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetCount = unsafe extern "C" fn(*mut c_int) -> c_int;

#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod platform {
    use std::io::Write;
    use std::os::fd::{FromRawFd, IntoRawFd};

    use super::*;

    pub(super) fn install() -> Result<(), InstallError> {
        if loaded_as(c"libcuda.so").is_some() {
            return Err(InstallError::AnotherDriver);
        }
        let symbols = crate::driver::symbols();
        let bytes = crate::process::elf::shared_object(SONAME, &symbols);
        // SAFETY: the name is a C string; returns a new file descriptor or -1.
        let fd =
            unsafe { libc::memfd_create(c"libcuda.so (simulated)".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(system("memfd_create", std::io::Error::last_os_error()));
        }
        // SAFETY: `fd` is open, and has no other owner.
        let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.write_all(&bytes).map_err(|error| system("writing the library", error))?;
        // Never closed: the linker also identifies libraries by path, and would take a later file
        // with the same descriptor number for this one.
        let fd = file.into_raw_fd();
        let path = format!("/proc/self/fd/{fd}\0");
        // SAFETY: `path` ends with a null byte; the library has no initialisers to run.
        let library =
            unsafe { libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(InstallError::System { step: "dlopen", reason: last_dl_error() });
        }
        // The same lookup as cudarc's must find the loaded library.
        let ours = symbols.iter().find(|(name, _)| *name == "cuInit").map(|(_, at)| *at);
        match loaded_as(c"libcuda.so").map(|library| symbol(library, c"cuInit") as u64) {
            found if found.is_some() && found == ours => {}
            _ => return Err(InstallError::AnotherDriver),
        }
        watch_forks()
    }

    pub(super) fn watch_forks() -> Result<(), InstallError> {
        // SAFETY: the handler only stores to an atomic, as is allowed in a forked child.
        match unsafe { libc::pthread_atfork(None, None, Some(crate::host::fork::forked)) } {
            0 => Ok(()),
            code => Err(system("pthread_atfork", std::io::Error::from_raw_os_error(code))),
        }
    }

    pub(super) fn open(name: &CStr, flags: c_int) -> Option<*mut c_void> {
        // SAFETY: `name` is a C string. Loading the CUDA driver runs its initialisers, as in
        // every CUDA program.
        let library = unsafe { libc::dlopen(name.as_ptr(), flags) };
        (!library.is_null()).then_some(library)
    }

    pub(super) fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
        // SAFETY: `library` is a handle from `dlopen`, and `name` a C string.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    }

    fn loaded_as(name: &CStr) -> Option<*mut c_void> {
        open(name, libc::RTLD_NOW | libc::RTLD_NOLOAD)
    }

    fn system(step: &'static str, error: std::io::Error) -> InstallError {
        InstallError::System { step, reason: error.to_string() }
    }

    fn last_dl_error() -> String {
        // SAFETY: returns null or a C string that lives until the next call on this thread.
        unsafe {
            let error: *const c_char = libc::dlerror();
            if error.is_null() {
                return "no reason given".to_owned();
            }
            CStr::from_ptr(error).to_string_lossy().into_owned()
        }
    }

    pub(super) const CAN_INSTALL: bool = true;
    pub(super) const OPEN_NOW: c_int = libc::RTLD_NOW | libc::RTLD_LOCAL;
}

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
mod platform {
    use super::*;

    pub(super) const CAN_INSTALL: bool = false;
    pub(super) const OPEN_NOW: c_int = 0;

    pub(super) fn install() -> Result<(), InstallError> {
        Err(InstallError::UnsupportedPlatform)
    }

    pub(super) fn watch_forks() -> Result<(), InstallError> {
        Err(InstallError::UnsupportedPlatform)
    }

    /// Returns `None`: the caller uses NVIDIA's driver, and returns its errors.
    pub(super) fn open(_: &CStr, _: c_int) -> Option<*mut c_void> {
        None
    }

    pub(super) fn symbol(_: *mut c_void, _: &CStr) -> *mut c_void {
        std::ptr::null_mut()
    }
}

/// Returns the reason not to use NVIDIA's driver for a program that needs this number of devices,
/// if there is one.
fn real_driver(needed: usize) -> Option<Because> {
    let mut because = Because::NoLibrary;
    // By its versioned name first, so that the name of the simulated driver stays free.
    for name in [c"libcuda.so.1", c"libcuda.so"] {
        let Some(library) = platform::open(name, platform::OPEN_NOW) else { continue };
        because = Because::NoDevice;
        let init = platform::symbol(library, c"cuInit");
        let count = platform::symbol(library, c"cuDeviceGetCount");
        if init.is_null() || count.is_null() {
            continue;
        }
        let mut devices: c_int = 0;
        // SAFETY: these are the driver's functions, of these types in every version.
        let codes = unsafe {
            let init = std::mem::transmute::<*mut c_void, Init>(init);
            let count = std::mem::transmute::<*mut c_void, GetCount>(count);
            [init(0), count(&mut devices)]
        };
        if codes == [0, 0] && devices > 0 {
            let enough = usize::try_from(devices).is_ok_and(|devices| devices >= needed);
            return if enough { None } else { Some(Because::TooFewDevices) };
        }
    }
    Some(because)
}
