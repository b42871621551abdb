//! `cargo xtask package`: every published crate packages, and builds from its package.

use std::path::PathBuf;

use crate::command;
use crate::failure::Failure;
use crate::workspace::{Package, Workspace};

/// The treatment of uncommitted changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Package them.
    Allowed,
    /// Fail, as in a release.
    Refused,
}

/// Packages the crates together, so that each is built against the packages of the others.
pub(crate) fn run(changes: Changes) -> Result<(), Failure> {
    let workspace = Workspace::load()?;
    let folder = fresh_folder(&workspace);
    let mut package = command::cargo(&["package", "--workspace", "--target-dir"]);
    package.arg(&folder);
    for unpublished in workspace.packages.iter().filter(|package| !Package::is_published(package)) {
        package.args(["--exclude", &unpublished.name]);
    }
    if changes == Changes::Allowed {
        package.arg("--allow-dirty");
    }
    let outcome = command::show(&mut package);
    // A folder that cannot be removed does no harm.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// Returns the path of a new folder. Cargo passes the packages to each other through a registry
/// inside it, and identifies an unpacked package by that registry's path and the version: in the
/// same folder, after a change, it would build against the packages of an earlier run.
fn fresh_folder(workspace: &Workspace) -> PathBuf {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    workspace.target_directory.join(format!("package-{now}-{}", std::process::id()))
}
