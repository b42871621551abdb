//! `dmr info`: driver, devices, features, variables.

use std::fmt::Write;

use clap::Args;
use dmr::Backend;
use dmr::cudarc::driver::sys::CUdevice_attribute as Attribute;
use dmr_core::size::human_bytes;
use dmr_streams::Device;
use serde_json::{Value, json};

use crate::Output;
use crate::driver::{DRIVER_VARIABLE, DriverArgs, Machine};
use crate::exit::Failure;

/// What `dmr info` is told.
#[derive(Args, Clone, Debug)]
pub struct InfoArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// Which driver and device.
    #[command(flatten)]
    pub driver: DriverArgs,
}

/// The variables that the command and the library read.
const VARIABLES: [(&str, &str); 3] = [
    (DRIVER_VARIABLE, "sim or cuda: which driver"),
    (Backend::VARIABLE, "where memory comes from"),
    ("DMR_SIM_BACKTRACE", "1: simulated findings name source lines"),
];

/// Asks the driver and reports.
///
/// # Errors
///
/// No driver, no device, and whatever else the driver says.
pub fn run(args: &InfoArgs) -> Result<Output, Failure> {
    let machine = Machine::choose(&args.driver)?;
    let devices = machine.devices()?;
    let driver = match devices.get(machine.ordinal()).or(devices.first()) {
        Some(device) => machine.describe(device),
        None => return Err(Failure::unusable("the driver sees no device")),
    };
    let text = if args.json {
        json_of(&machine, &driver, &devices)?.to_string() + "\n"
    } else {
        text_of(&driver, &devices)?
    };
    Ok(Output { text, complaint: String::new() })
}

fn text_of(driver: &str, devices: &[Device]) -> Result<String, Failure> {
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
            uuid(device)?,
        );
    }
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

fn json_of(machine: &Machine, driver: &str, devices: &[Device]) -> Result<Value, Failure> {
    let device = |device: &Device| {
        let (free, total) = device.memory_info().map_err(Failure::unusable)?;
        Ok(json!({
            "ordinal": device.ordinal(),
            "name": device.name(),
            "uuid": uuid(device)?,
            "free_bytes": free,
            "total_bytes": total,
            "cuda_version": device.driver_version().to_string(),
            "virtual_memory": has_virtual_memory(device)?,
        }))
    };
    let variables = VARIABLES.iter().map(|(name, _)| ((*name).to_owned(), variable(name).into()));
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "driver": driver,
        "simulated": machine.is_simulated(),
        "devices": devices.iter().map(device).collect::<Result<Vec<_>, Failure>>()?,
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

/// Whether a pool can map pages there.
fn has_virtual_memory(device: &Device) -> Result<bool, Failure> {
    let attribute = Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let answer = device.context().attribute(attribute);
    let error = |error| Failure::unusable(device.driver_error("cuDeviceGetAttribute", error));
    answer.map(|value| value != 0).map_err(error)
}

/// As `nvidia-smi` writes it.
fn uuid(device: &Device) -> Result<String, Failure> {
    let bytes = device.uuid().map_err(Failure::unusable)?;
    let mut text = "GPU".to_owned();
    for (i, byte) in bytes.iter().enumerate() {
        let dash = if matches!(i, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(text, "{dash}{byte:02x}");
    }
    Ok(text)
}
