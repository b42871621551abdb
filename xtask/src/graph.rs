//! `cargo xtask graph`: the allowed dependencies between the crates.
//!
//! A crate that is not in the table, and an entry without a crate, are violations too: a new crate
//! needs an entry.

use std::collections::BTreeSet;

use crate::failure::{Failure, Violation, none_of};
use crate::workspace::{Dependency, Kind, Package, Workspace};

/// For each crate, the crates of this workspace that it may depend on.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("dmr-core", &[]),
    ("dmr-adaptors", &["dmr-core", "dmr-shared-limit"]),
    ("dmr-shared-limit", &["dmr-core"]),
    ("dmr-ptx", &[]),
    ("dmr-sim", &["dmr-ptx"]),
    ("dmr-sim-boot", &["dmr-sim"]),
    ("dmr-sim-library", &["dmr-sim"]),
    ("dmr-sim-blas", &["dmr-sim"]),
    ("dmr-streams", &["dmr-core", "dmr-nvtx"]),
    ("dmr-cuda-async", &["dmr-core", "dmr-streams"]),
    ("dmr-cuda-direct", &["dmr-core", "dmr-streams"]),
    ("dmr-cuda-virtual", &["dmr-core", "dmr-streams"]),
    ("dmr-pool", &["dmr-core", "dmr-streams"]),
    ("dmr-nvtx", &["dmr-core"]),
    ("dmr-launch", &["dmr-core", "dmr-nvtx", "dmr-streams"]),
    ("dmr-buffer", &["dmr-core", "dmr-streams"]),
    ("dmr-spill", &["dmr-adaptors", "dmr-buffer", "dmr-core", "dmr-streams"]),
    ("dmr-trace", &["dmr-core"]),
    (
        "dmr",
        &[
            "dmr-adaptors",
            "dmr-buffer",
            "dmr-core",
            "dmr-cuda-async",
            "dmr-cuda-direct",
            "dmr-cuda-virtual",
            "dmr-launch",
            "dmr-nvtx",
            "dmr-pool",
            "dmr-shared-limit",
            "dmr-spill",
            "dmr-streams",
            "dmr-trace",
        ],
    ),
    ("dmr-cli", &["dmr", "dmr-core", "dmr-cuda-direct", "dmr-sim", "dmr-streams", "dmr-trace"]),
    ("dmr-testkit", &["dmr-core", "dmr-sim", "dmr-streams"]),
    ("dmr-guide", &["dmr", "dmr-adaptors", "dmr-core", "dmr-sim", "dmr-testkit"]),
    (
        "dmr-bench",
        &[
            "dmr-adaptors",
            "dmr-core",
            "dmr-cuda-async",
            "dmr-cuda-direct",
            "dmr-cuda-virtual",
            "dmr-launch",
            "dmr-pool",
            "dmr-sim",
            "dmr-streams",
            "dmr-testkit",
            "dmr-trace",
        ],
    ),
    (
        "dmr-programs",
        &[
            "dmr-adaptors",
            "dmr-buffer",
            "dmr-core",
            "dmr-cuda-async",
            "dmr-cuda-direct",
            "dmr-cuda-virtual",
            "dmr-pool",
            "dmr-sim",
            "dmr-streams",
            "dmr-testkit",
        ],
    ),
    (
        "dmr-sanitize",
        &[
            "dmr-adaptors",
            "dmr-buffer",
            "dmr-core",
            "dmr-cuda-async",
            "dmr-cuda-direct",
            "dmr-cuda-virtual",
            "dmr-launch",
            "dmr-nvtx",
            "dmr-pool",
            "dmr-sim",
            "dmr-streams",
        ],
    ),
    ("dmr-inference", &["dmr", "dmr-sim"]),
    ("dmr-ptx-compare", &["dmr-sim", "dmr-testkit"]),
    ("xtask", &[]),
];

const SIMULATOR: &str = "dmr-sim";

/// The crates that may enable the simulator by default: programs, and those that only start it.
/// Another library that does so would put a simulated driver into other people's programs.
const MAY_ENABLE_SIMULATOR: &[&str] = &[
    "dmr-bench",
    "dmr-cli",
    "dmr-guide",
    "dmr-inference",
    "dmr-programs",
    "dmr-ptx-compare",
    "dmr-sanitize",
    "dmr-sim-boot",
    "dmr-sim-library",
    "dmr-testkit",
];

/// Checks the graph.
pub(crate) fn run() -> Result<(), Failure> {
    none_of(violations(&Workspace::load()?))
}

fn violations(workspace: &Workspace) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, _) in MAY_DEPEND_ON {
        if workspace.package(name).is_none() {
            found.push(Violation::of(name, "in the table of xtask's graph, but no such crate"));
        }
    }
    for package in &workspace.packages {
        let Some((_, allowed)) = MAY_DEPEND_ON.iter().find(|(name, _)| *name == package.name)
        else {
            let message = "not in the table of xtask's graph: decide what it may depend on";
            found.push(Violation::of(&package.name, message));
            continue;
        };
        for dependency in &package.dependencies {
            if workspace.package(&dependency.name).is_some() {
                check_dependency(package, dependency, allowed, &mut found);
            }
        }
        if !MAY_ENABLE_SIMULATOR.contains(&package.name.as_str()) && enables_simulator(package) {
            let message = format!("{SIMULATOR} is always there or on by default: make it opt-in");
            found.push(Violation::of(&package.name, message));
        }
    }
    found
}

fn check_dependency(
    package: &Package,
    dependency: &Dependency,
    allowed: &[&str],
    found: &mut Vec<Violation>,
) {
    let name = dependency.name.as_str();
    let message = match dependency.kind {
        Kind::Normal | Kind::Build if !allowed.contains(&name) => {
            format!("depends on {name}: a layer that it must not use")
        }
        // A simulator that knew the library would come with a second copy of it in the library's
        // tests.
        Kind::Dev if package.name == SIMULATOR => {
            format!("dev-depends on {name}: the simulator uses no other crate")
        }
        // With a version, packaging would look in the registry for a crate that is not there.
        Kind::Dev if !allowed.contains(&name) && dependency.req != "*" => {
            format!("dev-depends on {name} {}: give a path and no version", dependency.req)
        }
        _ => return,
    };
    found.push(Violation::of(&package.name, message));
}

/// Returns whether the crate has the simulator with its default features.
fn enables_simulator(package: &Package) -> bool {
    let mut simulators = package
        .dependencies
        .iter()
        .filter(|dependency| dependency.name == SIMULATOR && dependency.kind != Kind::Dev)
        .peekable();
    if simulators.peek().is_none() {
        return false;
    }
    if simulators.any(|dependency| !dependency.optional) {
        return true;
    }
    let by_default = closure_of(package, "default");
    by_default
        .iter()
        .any(|entry| entry.trim_start_matches("dep:").split('/').next() == Some(SIMULATOR))
}

/// Returns all entries that a feature enables, also through other features of the crate.
fn closure_of<'a>(package: &'a Package, feature: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![feature];
    while let Some(entry) = waiting.pop() {
        if reached.insert(entry) {
            let enabled = package.features.get(entry);
            waiting.extend(enabled.into_iter().flatten().map(String::as_str));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workspace::example::{self, dependency};

    fn package(name: &str, dependencies: &[Value], features: Value) -> Value {
        let mut package = example::package(name);
        package["dependencies"] = json!(dependencies);
        package["features"] = features;
        package
    }

    /// Returns the violations of a workspace with these crates, and an empty one for each other
    /// entry.
    fn messages(given: &[Value]) -> Vec<String> {
        let names: Vec<_> = given.iter().map(|package| &package["name"]).collect();
        let mut packages = given.to_vec();
        let rest = MAY_DEPEND_ON.iter().filter(|(name, _)| !names.contains(&&json!(name)));
        packages.extend(rest.map(|(name, _)| example::package(name)));
        let found = violations(&example::workspace(&packages));
        found.into_iter().map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    fn one(given: Value) -> String {
        let mut messages = messages(&[given]);
        assert_eq!(messages.len(), 1, "{messages:?}");
        messages.remove(0)
    }

    #[test]
    fn the_layers_may_stand_on_each_other_and_test_with_the_simulator() {
        let streams = package(
            "dmr-streams",
            &[
                dependency("dmr-core", None, "^0.1.0", false),
                dependency("cudarc", None, "^0.19", false),
                dependency("dmr-sim", Some("dev"), "*", false),
                dependency("dmr-testkit", Some("dev"), "*", false),
            ],
            json!({}),
        );
        let cli = package(
            "dmr-cli",
            &[dependency("dmr-sim", None, "^0.1.0", true)],
            json!({ "default": ["sim"], "sim": ["dep:dmr-sim"] }),
        );
        assert_eq!(messages(&[streams, cli]), [""; 0]);
    }

    #[test]
    fn core_must_not_know_the_layers_above_it() {
        let core =
            package("dmr-core", &[dependency("dmr-streams", None, "^0.1", false)], json!({}));
        assert_eq!(one(core), "dmr-core: depends on dmr-streams: a layer that it must not use");
    }

    #[test]
    fn a_build_dependency_counts_as_one() {
        let of_build = dependency("dmr-trace", Some("build"), "^0.1", false);
        let core = package("dmr-core", &[of_build], json!({}));
        assert!(one(core).contains("depends on dmr-trace"));
    }

    #[test]
    fn tests_may_use_other_crates_and_their_own_by_path_only() {
        let streams = |req| {
            let above = dependency("dmr-cuda-direct", Some("dev"), req, false);
            package("dmr-streams", &[above], json!({}))
        };
        assert_eq!(messages(&[streams("*")]), [""; 0]);
        assert!(one(streams("^0.1.0")).contains("give a path and no version"));
        let itself = dependency("dmr-core", Some("dev"), "*", false);
        assert_eq!(messages(&[package("dmr-core", &[itself], json!({}))]), [""; 0]);
    }

    #[test]
    fn tests_may_use_what_the_crate_itself_may_with_a_version() {
        let core = dependency("dmr-core", Some("dev"), "^0.1.0", false);
        assert_eq!(messages(&[package("dmr-streams", &[core], json!({}))]), [""; 0]);
    }

    #[test]
    fn the_simulator_depends_on_no_crate_of_the_library_not_even_in_its_tests() {
        let core = dependency("dmr-core", Some("dev"), "*", false);
        assert!(one(package("dmr-sim", &[core], json!({}))).contains("dev-depends on dmr-core"));
        let testkit = dependency("dmr-testkit", Some("dev"), "*", false);
        assert!(
            one(package("dmr-sim", &[testkit], json!({}))).contains("dev-depends on dmr-testkit")
        );
    }

    #[test]
    fn a_dev_dependency_on_the_simulator_has_no_version() {
        let sim = dependency("dmr-sim", Some("dev"), "^0.1.0", false);
        let direct = package("dmr-cuda-direct", &[sim], json!({}));
        assert!(one(direct).contains("give a path and no version"));
    }

    #[test]
    fn a_library_never_brings_the_simulator_by_default() {
        let facade = |optional, features| {
            package("dmr", &[dependency("dmr-sim", None, "^0.1.0", optional)], features)
        };
        let not_allowed = "dmr: depends on dmr-sim: a layer that it must not use";
        let by_default = "dmr: dmr-sim is always there or on by default: make it opt-in";
        let through_another =
            json!({ "default": ["tests"], "tests": ["sim"], "sim": ["dep:dmr-sim"] });
        let opt_in = json!({ "default": ["direct"], "sim": ["dep:dmr-sim"] });
        assert_eq!(messages(&[facade(false, json!({}))]), [not_allowed, by_default]);
        assert_eq!(messages(&[facade(true, through_another)]), [not_allowed, by_default]);
        assert_eq!(messages(&[facade(true, opt_in)]), [not_allowed]);
    }

    #[test]
    fn a_crate_without_an_entry_is_refused() {
        assert!(one(package("dmr-new", &[], json!({}))).contains("decide what it may depend on"));
    }

    #[test]
    fn an_entry_without_a_crate_is_refused() {
        let workspace = example::workspace(&[]);
        assert_eq!(violations(&workspace).len(), MAY_DEPEND_ON.len());
    }
}
