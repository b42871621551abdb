//! `cargo xtask deny`: licences, duplicate versions and sources of dependencies, as `deny.toml`
//! says.

use std::process::Stdio;

use crate::command;
use crate::failure::Failure;

const MISSING: &str = "cargo-deny is not installed: run `cargo install --locked cargo-deny`";

/// Runs cargo-deny. Advisories are not a gate: they change without a commit.
pub(crate) fn run() -> Result<(), Failure> {
    let mut probe = command::cargo(&["deny", "--version"]);
    let found = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(Failure::Setup(MISSING.to_owned()));
    }
    command::show(&mut command::cargo(&["deny", "check", "bans", "licenses", "sources"]))
}
