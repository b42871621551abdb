//! `cargo xtask direct`: checks that a direct build of the facade has the direct backend and no
//! other, so that a memory checker sees each block of the program as an allocation.

use std::collections::BTreeSet;

use crate::command;
use crate::failure::{Failure, Violation, none_of};

/// The arguments of cargo for the facade with the direct backend alone.
const BUILD: &[&str] = &["-p", "dmr", "--no-default-features", "--features", "direct"];

const OTHER_BACKENDS: &[&str] = &["dmr-cuda-async", "dmr-cuda-virtual", "dmr-pool"];

/// The crates that a direct build must have.
const NEEDED: &[&str] = &["dmr-buffer", "dmr-cuda-direct", "dmr-launch"];

/// The variable that selects a backend, with the backend that programs of several streams need.
const TRACKED: (&str, &str) = ("DMR_BACKEND", "direct-tracked");

/// Each example, with the environment variable that it needs.
const EXAMPLES: &[(&str, Option<(&str, &str)>)] =
    &[("quickstart", None), ("double", Some(TRACKED)), ("two_readers", Some(TRACKED))];

/// Checks which crates a direct build links, then runs its tests and the examples.
pub(crate) fn run() -> Result<(), Failure> {
    let mut found = violations("a dependent's direct build", &crates("normal")?);
    found.extend(violations("a direct build of the tests and examples", &crates("normal,dev")?));
    none_of(found)?;
    let mut test = command::cargo(&[&["test"], BUILD].concat());
    command::show(test.env_remove(TRACKED.0))?;
    for (example, variable) in EXAMPLES {
        let mut run = command::cargo(&[&["run"], BUILD, &["--example", example]].concat());
        command::show(run.env_remove(TRACKED.0).envs(*variable))?;
    }
    Ok(())
}

/// Returns the crates that the build links through dependencies of these kinds.
fn crates(kinds: &str) -> Result<BTreeSet<String>, Failure> {
    let format = ["--edges", kinds, "--prefix", "none", "--format", "{p}"];
    let tree = command::capture(&mut command::cargo(&[&["tree"], BUILD, &format].concat()))?;
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    Ok(names.map(str::to_owned).collect())
}

fn violations(build: &str, crates: &BTreeSet<String>) -> Vec<Violation> {
    let others = OTHER_BACKENDS.iter().filter(|name| crates.contains(**name));
    let missing = NEEDED.iter().filter(|name| !crates.contains(**name));
    others
        .map(|name| Violation::of(build, format!("links {name}, another backend: leave it out")))
        .chain(missing.map(|name| Violation::of(build, format!("lacks {name}"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(crates: &[&str]) -> Vec<String> {
        let crates = crates.iter().map(|&name| name.to_owned()).collect();
        let found = violations("build", &crates);
        found.into_iter().map(|violation| violation.message).collect()
    }

    #[test]
    fn the_direct_backend_with_recorder_and_buffers_is_a_direct_build() {
        let crates = ["dmr", "dmr-buffer", "dmr-cuda-direct", "dmr-launch", "dmr-streams"];
        assert_eq!(messages(&crates), [""; 0]);
    }

    #[test]
    fn another_backend_or_a_missing_part_is_not() {
        let crates = ["dmr-buffer", "dmr-cuda-async", "dmr-cuda-direct", "dmr-pool"];
        let expected = [
            "links dmr-cuda-async, another backend: leave it out",
            "links dmr-pool, another backend: leave it out",
            "lacks dmr-launch",
        ];
        assert_eq!(messages(&crates), expected);
    }
}
