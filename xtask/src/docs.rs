//! `cargo xtask docs`: the documentation of every crate builds without a warning, and shows the
//! compiler's errors.

use crate::failure::Failure;
use crate::{command, compile_errors};

/// Builds the documentation with all features, like docs.rs.
pub(crate) fn run() -> Result<(), Failure> {
    let mut doc = command::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
    command::show(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    compile_errors::run()
}
