//! A universe for a whole process, made from the environment before `main`; its findings are printed at the exit.

use std::ffi::c_int;
use std::io::Write;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::fork::is_forked_child;
use crate::install::{Driver, SelectError, select, serve_as_library};
use crate::report::{ReportKind, Verdict};
use crate::universe::{Policy, Universe};

/// The exit status of a process with findings, unless it ends by a signal or by `_exit`: that of ThreadSanitizer.
pub const EXIT_STATUS: c_int = 66;

static UNIVERSE: OnceLock<Universe> = OnceLock::new();

/// Selects the driver as [`select`] does and, if that is the simulated one, makes a universe for the process. When
/// the process exits, the findings are written to the standard error and the status becomes [`EXIT_STATUS`].
///
/// The crate `dmr-sim-boot` calls this before `main`. These variables configure the universe, each with a
/// default: `DMR_SIM_DEVICES` (1 to 8; 2), `DMR_SIM_CAPACITY` (bytes of a device; 16 GiB), `DMR_SIM_SEED` (0),
/// `DMR_SIM_POLICY` (`eager`, `lazy`, `random`; `random`), `DMR_SIM_BACKTRACE` (1: places in the source) and
/// `DMR_SIM_LEAKS` (1: memory that was never freed is a finding; programs often leave that to the driver).
/// Reports name the thread of an operation that has no label, which in a test is the name of the test.
///
/// # Errors
///
/// Those of [`select`].
pub fn boot() -> Result<(), SelectError> {
    if let Driver::Simulated(_) = select()? {
        start()?;
    }
    Ok(())
}

/// Makes a universe for the process as [`boot`] does, in a shared library that exports the
/// [functions of the driver](crate::driver_functions) and takes the place of `libcuda.so.1`.
///
/// # Errors
///
/// Those of [`install`](crate::install()).
pub fn boot_library() -> Result<(), SelectError> {
    serve_as_library()?;
    start()
}

fn start() -> Result<(), SelectError> {
    let mut builder = Universe::builder().name_threads(true);
    if let Some(devices) = variable("DMR_SIM_DEVICES")? {
        builder = builder.devices(devices);
    }
    if let Some(bytes) = variable("DMR_SIM_CAPACITY")? {
        builder = builder.capacity(bytes);
    }
    if let Some(seed) = variable("DMR_SIM_SEED")? {
        builder = builder.seed(seed);
    }
    if let Some(policy) = variable("DMR_SIM_POLICY")? {
        builder = builder.policy(policy);
    }
    let universe = builder.build()?;
    if UNIVERSE.set(universe).is_ok() {
        // SAFETY: the handler is a function of this library, which is not unloaded before the exit.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}

/// Returns the value of a variable that is set and not empty.
fn variable<T: FromStr>(name: &'static str) -> Result<Option<T>, SelectError> {
    let value = std::env::var_os(name).unwrap_or_default();
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = value.to_str().and_then(|value| value.parse().ok());
    let wrong = || SelectError::BadVariable { name, value: value.to_string_lossy().into_owned() };
    parsed.map(Some).ok_or_else(wrong)
}

/// The policy of this name, in lower case.
impl FromStr for Policy {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Ok(match name {
            "eager" => Self::Eager,
            "lazy" => Self::Lazy,
            "random" => Self::Random,
            _ => return Err(()),
        })
    }
}

extern "C" fn at_exit() {
    // A panic may not leave a function that C calls.
    let found = std::panic::catch_unwind(|| {
        let verdict = UNIVERSE.get().filter(|_| !is_forked_child())?.finish();
        let verdict = without_leaks(verdict);
        (!verdict.is_clean()).then(|| format!("\ndmr-sim: {verdict}\n"))
    });
    if let Ok(Some(text)) = found {
        let _ = std::io::stderr().write_all(text.as_bytes());
        // SAFETY: flushes all streams of the C library, as the exit would; ends the process.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(EXIT_STATUS);
        }
    }
}

/// Removes leaks, unless they are asked for.
fn without_leaks(mut verdict: Verdict) -> Verdict {
    if std::env::var_os("DMR_SIM_LEAKS").is_none_or(|set| set != "1") {
        verdict.reports.retain(|report| report.kind != ReportKind::Leak);
    }
    verdict
}
