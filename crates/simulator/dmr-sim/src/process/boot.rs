//! A universe for a whole process, made from the environment before `main`; its findings are
//! printed at the exit.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::Write;
use std::str::FromStr;
use std::sync::OnceLock;

use dmr_ptx::{Checks, Limits};

use crate::check::{ReportKind, Verdict, report::KINDS};
use crate::host::{fork::is_forked_child, initialised::await_initialisation};
use crate::kernel::Refusal;
use crate::machine::Policy;
use crate::process::install::{Driver, SelectError, select, serve_as_library};
use crate::process::universe::{DEVICES, Universe};

/// The exit status of a process with findings, unless it ends by a signal or by `_exit`: that of
/// ThreadSanitizer.
pub const EXIT_STATUS: c_int = 66;

static UNIVERSE: OnceLock<Universe> = OnceLock::new();

/// Selects the driver as [`select`] does and, if that is the simulated one, makes a universe for
/// the process. When the process exits, the findings are written to the standard error and the
/// status becomes [`EXIT_STATUS`].
///
/// The crate `dmr-sim-boot` calls this before `main`. These variables configure the universe, each
/// with a default: `DMR_SIM_DEVICES` (1 to 8; 2), `DMR_SIM_CAPACITY` (bytes of a device; 16 GiB),
/// `DMR_SIM_SEED` (0), `DMR_SIM_POLICY` (`eager`, `lazy`, `random`; `random`), `DMR_SIM_BACKTRACE`
/// (1: places in the source; full: with their callers), `DMR_SIM_INSTRUCTIONS` (the limit of a
/// launch, in instructions of warps; 2^34) and `DMR_SIM_CHECKS`: names of checks that are switched
/// on, or off with `no-` in front, separated by commas. A check is a [`ReportKind`]
/// (`use-after-free`) or one of [`Checks`](crate::Checks) (`shared-races`). All are on but
/// `equal-writes`, and `leak`, because programs often leave memory to the driver.
/// `CUDA_VISIBLE_DEVICES` hides devices as that of NVIDIA's driver does. `DMR_SIM_REPORT` names a
/// file that the findings are written to as well ([`Verdict::to_csv`](crate::Verdict::to_csv)), for
/// `dmr report`.
///
/// Reports name the thread of an operation that has no label, which in a test is the name of the
/// test. What the simulator cannot do ([`Refusal`]) is written to the standard error when it
/// happens.
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
    let mut settings = CheckSettings::default();
    if let Some(set) = variable("DMR_SIM_CHECKS")? {
        settings = set;
    }
    let mut limits = Limits::default();
    if let Some(most) = variable("DMR_SIM_INSTRUCTIONS")? {
        limits.instructions = most;
    }
    let builder = Universe::builder().name_threads(true).report_refusals(report);
    let mut builder = builder.checks(settings.checks).limits(limits);
    for kind in settings.ignored {
        builder = builder.ignore(kind);
    }
    match visible(variable("DMR_SIM_DEVICES")?.unwrap_or(DEVICES)) {
        0 => {
            await_initialisation();
            return Ok(());
        }
        devices => builder = builder.devices(devices),
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
        await_initialisation();
        // SAFETY: the handler is a function of this library, which is not unloaded before the exit.
        unsafe { libc::atexit(at_exit) };
    }
    Ok(())
}

/// Returns the value of a variable that is set and not empty.
fn variable<T: Setting>(name: &'static str) -> Result<Option<T>, SelectError> {
    let value = std::env::var_os(name).unwrap_or_default();
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = value.to_str().and_then(|value| value.parse().ok());
    let wrong = || {
        let value = value.to_string_lossy().into_owned();
        SelectError::BadVariable { name, value, valid: T::valid() }
    };
    parsed.map(Some).ok_or_else(wrong)
}

/// The value of a variable.
trait Setting: FromStr {
    /// Names the values that it can have.
    fn valid() -> String {
        "a number".to_owned()
    }
}

impl Setting for usize {}
impl Setting for u64 {}

impl Setting for Policy {
    fn valid() -> String {
        "eager, lazy or random".to_owned()
    }
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
        write_report(&verdict);
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

/// Writes the findings to the file of the variable, also if there are none: one of an earlier run
/// would be taken for this one's.
fn write_report(verdict: &Verdict) {
    let Some(path) = std::env::var_os("DMR_SIM_REPORT").filter(|path| !path.is_empty()) else {
        return;
    };
    if let Err(error) = std::fs::write(&path, verdict.to_csv()) {
        let path = path.display();
        let _ = writeln!(std::io::stderr(), "dmr-sim: DMR_SIM_REPORT: {path}: {error}");
    }
}

/// Writes a refusal to the standard error: the program may end without a word about it.
fn report(refusal: &Refusal) {
    let _ = writeln!(std::io::stderr(), "dmr-sim: {refusal}");
}

/// The checks of `DMR_SIM_CHECKS`.
struct CheckSettings {
    checks: Checks,
    ignored: Vec<ReportKind>,
}

impl Default for CheckSettings {
    fn default() -> Self {
        Self { checks: Checks::all(), ignored: vec![ReportKind::Leak] }
    }
}

type Switch = fn(&mut Checks) -> &mut bool;

/// The checks of kernels by name.
const CHECKS: [(&str, Switch); 7] = [
    ("out-of-bounds", |checks| &mut checks.out_of_bounds),
    ("misaligned", |checks| &mut checks.misaligned),
    ("uninitialised", |checks| &mut checks.uninitialised),
    ("shared-races", |checks| &mut checks.shared_races),
    ("global-races", |checks| &mut checks.global_races),
    ("equal-writes", |checks| &mut checks.equal_writes),
    ("divergence", |checks| &mut checks.divergence),
];

impl Setting for CheckSettings {
    fn valid() -> String {
        let checks = CHECKS.iter().map(|(name, _)| *name);
        let names: BTreeSet<&str> = checks.chain(KINDS.iter().map(|known| known.name)).collect();
        let names: Vec<_> = names.into_iter().collect();
        format!(
            "names, separated by commas and with `no-` in front or not, of {}",
            names.join(", ")
        )
    }
}

impl FromStr for CheckSettings {
    type Err = ();

    fn from_str(words: &str) -> Result<Self, ()> {
        let mut settings = Self::default();
        for word in words.split(',') {
            let (name, on) = word.strip_prefix("no-").map_or((word, true), |name| (name, false));
            let check = CHECKS.iter().find(|(known, _)| *known == name);
            let kind = name.parse::<ReportKind>();
            if check.is_none() && kind.is_err() {
                return Err(());
            }
            check.into_iter().for_each(|(_, check)| *check(&mut settings.checks) = on);
            if let Ok(kind) = kind {
                settings.ignored.retain(|ignored| *ignored != kind);
                settings.ignored.extend((!on).then_some(kind));
            }
        }
        Ok(settings)
    }
}

/// Returns how many of the devices `CUDA_VISIBLE_DEVICES` names: ordinals, up to the first that no
/// device has. An empty value names none, and neither does one that names a device twice. All
/// devices are alike, so only their number counts.
fn visible(devices: usize) -> usize {
    let Some(list) = std::env::var_os("CUDA_VISIBLE_DEVICES") else { return devices };
    let list = list.to_string_lossy();
    let ordinals = list.split(',').map_while(|word| word.trim().parse::<usize>().ok());
    let named: Vec<_> = ordinals.take_while(|ordinal| *ordinal < devices).collect();
    let different: BTreeSet<_> = named.iter().collect();
    if different.len() == named.len() { named.len() } else { 0 }
}
