//! `cargo xtask fmt`: the code is formatted.

use crate::command;
use crate::failure::Failure;

/// Checks the format and changes nothing: `cargo fmt` formats.
pub(crate) fn run() -> Result<(), Failure> {
    command::show(&mut command::cargo(&["fmt", "--all", "--", "--check"]))
}
