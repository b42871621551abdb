//! The lines that the programs print for `cargo xtask sanitize`.

#![allow(clippy::print_stdout, reason = "the runner reads standard output")]

use std::fmt::{Debug, Display};

use dmr_sim::Report;

use crate::stacks::BACKENDS;
use crate::tool::Tool;

/// The prefix of each line.
pub const PREFIX: &str = "dmr-sanitize: ";

/// Prints the backends that this build contains, sorted.
pub fn backends() {
    line("backends", BACKENDS.join(" "));
}

/// Prints the stack that a program runs on.
pub fn stack(resource: &dyn Debug) {
    line("stack", format_args!("{resource:?}"));
}

/// Prints that the child process with the canary of `tool` has ended.
pub fn canary_ran(tool: Tool) {
    line("canary", format_args!("{tool} ran"));
}

/// Prints that the program has provoked `count` errors of the driver's function `call`, on purpose.
pub fn expect_api_error(call: &str, error: &str, count: u64) {
    println!("{PREFIX}expect api-error {call} {error} {count}");
}

/// Prints the device address of a planted fault, which the tool must name.
pub fn address(address: u64) {
    line("address", format_args!("{address:#x}"));
}

/// Prints the kind and the address of a finding of the simulated driver.
pub fn simulator(finding: &Report) {
    line("simulator", format_args!("{:?} {:#x}", finding.kind, finding.address));
}

/// Prints a remark for a person.
pub fn note(text: &str) {
    line("note", text);
}

fn line(what: &str, value: impl Display) {
    println!("{PREFIX}{what}: {value}");
}
