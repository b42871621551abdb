//! `cargo xtask package`: every published crate packages, and builds from its package. Prints first
//! in which order they are released.

use std::path::PathBuf;

use crate::command;
use crate::failure::Failure;
use crate::workspace::{Dependency, Package, Workspace};

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
    println!("order of release: {}", order_of_release(&workspace)?.join(", "));
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

/// Returns the published crates, each after those that the registry must have before it. It looks
/// for every dependency with a version, also for those of tests.
fn order_of_release(workspace: &Workspace) -> Result<Vec<&str>, Failure> {
    let published = workspace.packages.iter().filter(|package| package.is_published());
    let mut left: Vec<_> = published.collect();
    let mut order = Vec::new();
    let is_missing = |left: &[&Package], it: &Dependency| {
        it.req != "*" && left.iter().any(|package| package.name == it.name)
    };
    while !left.is_empty() {
        let next = left.iter().position(|package| {
            !package.dependencies.iter().any(|dependency| is_missing(&left, dependency))
        });
        let Some(next) = next else {
            let names: Vec<_> = left.iter().map(|package| package.name.as_str()).collect();
            let names = names.join(", ");
            return Err(Failure::Setup(format!("each needs another one of these first: {names}")));
        };
        order.push(left.remove(next).name.as_str());
    }
    Ok(order)
}

/// Returns the path of a new folder. Cargo passes the packages to each other through a registry
/// inside it, and identifies an unpacked package by that registry's path and the version: in the
/// same folder, after a change, it would build against the packages of an earlier run.
fn fresh_folder(workspace: &Workspace) -> PathBuf {
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    workspace.target_directory.join(format!("package-{now}-{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workspace::example::{self, dependency};

    #[test]
    fn a_crate_is_released_after_all_that_it_needs_with_a_version() {
        let mut facade = example::package("a");
        facade["dependencies"] =
            json!([dependency("c", None, "^0.1"), dependency("b", Some("build"), "^0.1")]);
        let mut middle = example::package("b");
        let tests = [dependency("c", Some("dev"), "^0.1"), dependency("a", Some("dev"), "*")];
        middle["dependencies"] = json!(tests);
        let mut tool = example::package("d");
        tool["publish"] = json!([]);
        let workspace = example::workspace(&[facade, middle, example::package("c"), tool]);
        assert_eq!(order_of_release(&workspace).unwrap(), ["c", "b", "a"]);
    }

    #[test]
    fn crates_that_need_each_other_cannot_be_released() {
        let mut first = example::package("a");
        first["dependencies"] = json!([dependency("b", None, "^0.1")]);
        let mut second = example::package("b");
        second["dependencies"] = json!([dependency("a", Some("dev"), "^0.1")]);
        let workspace = example::workspace(&[first, second, example::package("c")]);
        let failure = order_of_release(&workspace).unwrap_err().to_string();
        assert_eq!(failure, "each needs another one of these first: a, b");
    }
}
