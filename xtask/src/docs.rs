//! `cargo xtask docs`: the documentation of every crate builds without a warning.

use crate::command;
use crate::failure::Failure;

/// Builds the documentation with all features, like docs.rs.
pub(crate) fn run() -> Result<(), Failure> {
    let mut doc = command::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    command::show(doc.env("RUSTDOCFLAGS", "-D warnings"))
}
