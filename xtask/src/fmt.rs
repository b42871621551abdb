//! `cargo xtask fmt`: the code is formatted.

use crate::command;
use crate::failure::Failure;

/// Changes nothing; `cargo fmt` does.
pub(crate) fn run() -> Result<(), Failure> {
    command::show(&mut command::cargo(&["fmt", "--all", "--", "--check"]))
}
