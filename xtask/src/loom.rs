//! `cargo xtask loom`: models of the lock-free parts, in every order of their threads' steps.

use crate::command;
use crate::failure::Failure;

/// The crates whose unit tests have loom models, and the features of the modelled code.
const MODELLED: &[(&str, &str)] = &[
    ("dmr-core", ""),
    ("dmr-streams", ""),
    ("dmr-adaptors", "budget"),
    ("dmr-pool", ""),
    ("dmr-recorder", ""),
];

/// Runs the models in a target folder of their own, because the flag rebuilds all crates.
pub(crate) fn run() -> Result<(), Failure> {
    for (package, features) in MODELLED {
        let which = ["-p", package, "--features", features, "loom"];
        let mut test = command::cargo(&["test", "--release", "--lib"]);
        test.args(which);
        test.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom");
        command::show(&mut test)?;
    }
    Ok(())
}
