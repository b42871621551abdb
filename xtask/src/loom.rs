//! `cargo xtask loom`: the lock-free parts, under every order of their threads' steps.

use crate::command;
use crate::failure::Failure;

/// The crates whose unit tests have loom models, and the features that these are in.
const MODELLED: &[(&str, &str)] =
    &[("dmr-streams", ""), ("dmr-adaptors", "budget"), ("dmr-pool", "")];

/// In a target folder of its own: the flag would have everything built again, there and back.
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
