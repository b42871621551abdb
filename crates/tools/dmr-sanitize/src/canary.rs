//! The canary: one fault for each tool, in a process of its own. A tool that does not report it
//! does not check the processes of this run.
//!
//! Uses cudarc and no resource of this project, so that a change of the resources cannot hide the
//! fault.

#![allow(unsafe_code, reason = "commits faults")]

use std::env;
use std::process::Command;

use cudarc::driver::{CudaContext, DriverError, result};
use dmr_sim::Driver;

use crate::faults::{Faults, OUT_BYTES};
use crate::tool::Tool;
use crate::{Outcome, lines};

/// The variable that names the tool whose canary a program runs first.
pub const VARIABLE: &str = "DMR_CANARY";

/// The argument before the tool, for the child process.
pub const ARGUMENT: &str = "--canary";

/// The prefix of the names of the canary's kernels.
pub const PREFIX: &str = "dmr_canary";

/// Bytes of the canary's memory.
const BYTES: usize = 1000;

/// Runs the canary of the tool that [`VARIABLE`] names in a child process, if the variable is set.
/// Call it before anything else.
///
/// # Errors
///
/// The variable names no tool, or the child cannot be run, or has failed.
pub fn run_if_asked() -> Outcome {
    let Some(tool) = env::var_os(VARIABLE) else { return Ok(()) };
    let tool: Tool = tool.to_string_lossy().parse().map_err(|e| format!("{VARIABLE}: {e}"))?;
    let status = Command::new(env::current_exe()?).args([ARGUMENT, tool.name()]).status()?;
    if !status.success() {
        return Err(format!("the canary of {tool} ended with {status}").into());
    }
    lines::canary_ran(tool);
    Ok(())
}

/// Commits the fault that `tool` must report. Does nothing on the simulated driver, which no tool
/// checks.
///
/// # Errors
///
/// The fault could not be submitted. Errors after that follow from the fault, and are ignored.
pub fn commit(tool: Tool) -> Outcome {
    if matches!(dmr_sim::select()?, Driver::Simulated(_)) {
        lines::note("no tool checks the simulated driver: the canary does nothing");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let faults = Faults::load(&context, PREFIX)?;
    // SAFETY: the context is current on this thread. The memory is freed below, behind all work.
    let (memory, out) = unsafe { (result::malloc_sync(BYTES)?, result::malloc_sync(OUT_BYTES)?) };
    // SAFETY: the memory is this long, and nothing uses it yet.
    unsafe { result::memset_d8_sync(out, 0, OUT_BYTES)? };
    // SAFETY: this process only commits this fault; `out` is as long as the kernels need.
    unsafe {
        match tool {
            Tool::Memcheck => faults.write(&stream, memory + BYTES as u64, 1)?,
            Tool::Initcheck => faults.read(&stream, memory, 1, out)?,
            Tool::Racecheck => faults.race(&stream, out)?,
            Tool::Synccheck => faults.divergent(&stream, out)?,
        }
    }
    let _: Result<(), DriverError> = context.synchronize();
    for memory in [memory, out] {
        // SAFETY: allocated above; all work is done, or the context has ended.
        let _: Result<(), DriverError> = unsafe { result::free_sync(memory) };
    }
    Ok(())
}
