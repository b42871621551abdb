//! `cargo xtask clippy`: no warning with all features, with none, and with each alone.

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Checks the whole workspace with every target, then the combinations that feature unification
/// hides there.
pub(crate) fn run() -> Result<(), Failure> {
    clippy(&["--workspace", "--all-targets", "--all-features"])?;
    let workspace = Workspace::load()?;
    for package in workspace.packages.iter().filter(|package| !package.features.is_empty()) {
        let bare = ["-p", &package.name, "--no-default-features"];
        clippy(&bare)?;
        for feature in package.features.keys() {
            clippy(&[&bare[..], &["--features", feature]].concat())?;
        }
    }
    Ok(())
}

fn clippy(selection: &[&str]) -> Result<(), Failure> {
    let arguments = [&["clippy"], selection, &["--", "-D", "warnings"]].concat();
    command::show(&mut command::cargo(&arguments))
}
