//! `cargo xtask loom`: the lock-free parts, under every order of their threads' steps.

use crate::command;
use crate::failure::Failure;

/// The crates whose unit tests have loom models.
const MODELLED: &[&str] = &["dmr-streams"];

/// In a target folder of its own: the flag would have everything built again, there and back.
pub(crate) fn run() -> Result<(), Failure> {
    for package in MODELLED {
        let mut test = command::cargo(&["test", "--release", "--lib", "-p", package, "loom"]);
        test.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom");
        command::show(&mut test)?;
    }
    Ok(())
}
