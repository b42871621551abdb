//! `dmr info`: driver, devices, shared limits, features, variables.

use std::fmt::Write;
use std::io;

use clap::Args;
use dmr::Backend;
use dmr::cudarc::driver::sys::CUdevice_attribute as Attribute;
use dmr::dmr_shared_limit::SharedLimitConfig;
use dmr_core::size::human_bytes;
use dmr_streams::Device;
use serde_json::{Value, json};

use crate::Output;
use crate::driver::{DRIVER_VARIABLE, DriverArgs, Machine};
use crate::exit::Failure;
use crate::shared::{self, SharedLimits, uuid_text};

/// The options of `dmr info`.
#[derive(Args, Clone, Debug)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Show the limits that processes share each time they change, until the command is stopped
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,

    /// The driver and the device.
    #[command(flatten)]
    pub driver: DriverArgs,
}

/// The variables that the command and the library read.
const VARIABLES: [(&str, &str); 4] = [
    (DRIVER_VARIABLE, "sim or cuda: which driver"),
    (Backend::VARIABLE, "where memory comes from"),
    (SharedLimitConfig::VARIABLE, "the directory of limits that processes share"),
    ("DMR_SIM_BACKTRACE", "1 or full: simulated findings name source lines"),
];

/// Asks the driver and reports.
///
/// # Errors
///
/// No driver, no device, and whatever else the driver says. With `watch`: standard output cannot be
/// written.
pub fn run(args: &InfoArgs) -> Result<Output, Failure> {
    if args.watch {
        return shared::watch(io::stdout().lock());
    }
    let machine = Machine::choose(&args.driver)?;
    let devices = machine.devices()?;
    let driver = match devices.get(machine.ordinal()).or(devices.first()) {
        Some(device) => machine.describe(device),
        None => return Err(Failure::unusable("the driver sees no device")),
    };
    let text = if args.json {
        json_of(&machine, &driver, &devices, &SharedLimits::read())?.to_string() + "\n"
    } else {
        text_of(&driver, &devices, &SharedLimits::read())?
    };
    Ok(Output { text, complaint: String::new() })
}

fn text_of(driver: &str, devices: &[Device], limits: &SharedLimits) -> Result<String, Failure> {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "dmr      {}", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "driver   {driver}");
    for device in devices {
        let (free, total) = device.memory_info().map_err(Failure::unusable)?;
        let _ = writeln!(
            text,
            "device {} {} · {} of {} free · CUDA {} · {} · {}",
            device.ordinal(),
            device.name(),
            human_bytes(free),
            human_bytes(total),
            device.driver_version(),
            if has_virtual_memory(device)? { "virtual memory" } else { "no virtual memory" },
            uuid_text(uuid(device)?),
        );
        limits.write_device(uuid(device)?, &mut text);
    }
    limits.write_rest(&uuids(devices)?, &mut text);
    let _ = writeln!(text, "backends {}", backends().join(", "));
    let _ = writeln!(text, "features {}", features().join(", "));
    for (name, what) in VARIABLES {
        let value = variable(name).unwrap_or_else(|| "not set".to_owned());
        let _ = writeln!(text, "variable {name}: {value} ({what})");
    }
    for (name, value) in unknown_variables() {
        let _ = writeln!(text, "variable {name}: {value} (nothing reads it)");
    }
    Ok(text)
}

fn json_of(
    machine: &Machine,
    driver: &str,
    devices: &[Device],
    limits: &SharedLimits,
) -> Result<Value, Failure> {
    let device = |device: &Device| {
        let (free, total) = device.memory_info().map_err(Failure::unusable)?;
        Ok(json!({
            "ordinal": device.ordinal(),
            "name": device.name(),
            "uuid": uuid_text(uuid(device)?),
            "free_bytes": free,
            "total_bytes": total,
            "cuda_version": device.driver_version().to_string(),
            "virtual_memory": has_virtual_memory(device)?,
            "shared_limits": limits.json_of(uuid(device)?),
        }))
    };
    let variables = VARIABLES.iter().map(|(name, _)| ((*name).to_owned(), variable(name).into()));
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "driver": driver,
        "simulated": machine.is_simulated(),
        "devices": devices.iter().map(device).collect::<Result<Vec<_>, Failure>>()?,
        "other_shared_limits": limits.json_of_rest(&uuids(devices)?),
        "shared_limit_problems": limits.problems,
        "backends": backends(),
        "features": features(),
        "variables": variables.collect::<serde_json::Map<_, _>>(),
        "unknown_variables": unknown_variables().into_iter().map(|(name, _)| name)
            .collect::<Vec<_>>(),
    }))
}

fn backends() -> Vec<&'static str> {
    Backend::available().iter().map(|backend| backend.name()).collect()
}

fn features() -> Vec<&'static str> {
    let features = [("sim", cfg!(feature = "sim"))];
    features.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect()
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// Variables with our prefix that nothing reads: misspelt, most likely.
fn unknown_variables() -> Vec<(String, String)> {
    let ours = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_owned();
        let known = VARIABLES.iter().any(|(known, _)| *known == name);
        (name.starts_with("DMR_") && !known).then(|| (name, value.to_string_lossy().into_owned()))
    });
    let mut ours: Vec<_> = ours.collect();
    ours.sort();
    ours
}

/// Returns whether a pool can map pages on the device.
fn has_virtual_memory(device: &Device) -> Result<bool, Failure> {
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let value = device.context().attribute(attribute);
    let error = |error| Failure::unusable(device.driver_error("cuDeviceGetAttribute", error));
    value.map(|value| value != 0).map_err(error)
}

fn uuid(device: &Device) -> Result<[u8; 16], Failure> {
    device.uuid().map_err(Failure::unusable)
}

fn uuids(devices: &[Device]) -> Result<Vec<[u8; 16]>, Failure> {
    devices.iter().map(uuid).collect()
}
