//! `cargo xtask graph`: the allowed dependencies between the crates.
//!
//! The folder of a crate is its kind: `crates/memory`, `crates/simulator` or `crates/tools`. Memory
//! and simulator do not depend on each other, nor on tools, except in their tests: a user of one
//! builds nothing of the other. Within these two, a table has the layers: each crate has a row,
//! and each permission in it is used. Tools may depend on every crate and have no row.

use std::fmt;
use std::path::Path;

use crate::failure::{Failure, Violation, none_of};
use crate::workspace::{Dependency, DependencyKind, Package, Workspace};

/// For each crate of memory and simulator, the crates of its kind that it depends on.
const MAY_DEPEND_ON: &[(&str, &[&str])] = &[
    ("dmr-core", &[]),
    ("dmr-adaptors", &["dmr-core", "dmr-recorder", "dmr-shared-limit"]),
    ("dmr-shared-limit", &["dmr-core"]),
    ("dmr-ptx-syntax", &[]),
    ("dmr-ptx-arith", &["dmr-ptx-syntax"]),
    ("dmr-ptx-exec", &["dmr-ptx-arith", "dmr-ptx-syntax"]),
    ("dmr-ptx", &["dmr-ptx-exec", "dmr-ptx-syntax"]),
    ("dmr-sim", &["dmr-ptx"]),
    ("dmr-sim-boot", &["dmr-sim"]),
    ("dmr-sim-library", &["dmr-sim"]),
    ("dmr-sim-blas", &[]),
    ("dmr-streams", &["dmr-core", "dmr-nvtx", "dmr-recorder"]),
    ("dmr-pinned", &["dmr-core", "dmr-streams"]),
    ("dmr-slices", &["dmr-core", "dmr-external", "dmr-streams"]),
    ("dmr-cuda-async", &["dmr-core", "dmr-recorder", "dmr-streams"]),
    ("dmr-cuda-direct", &["dmr-core", "dmr-recorder", "dmr-streams"]),
    ("dmr-dlpack", &["dmr-buffer", "dmr-core", "dmr-external", "dmr-streams"]),
    ("dmr-external", &["dmr-core", "dmr-streams"]),
    ("dmr-cuda-virtual", &["dmr-core", "dmr-streams"]),
    ("dmr-pool", &["dmr-core", "dmr-recorder", "dmr-streams"]),
    ("dmr-nvtx", &["dmr-core"]),
    ("dmr-rmm", &["dmr-core", "dmr-streams"]),
    ("dmr-launch", &["dmr-core", "dmr-nvtx", "dmr-slices", "dmr-streams"]),
    ("dmr-graphs", &["dmr-core", "dmr-launch", "dmr-recorder", "dmr-streams"]),
    ("dmr-buffer", &["dmr-core", "dmr-external", "dmr-pinned", "dmr-slices", "dmr-streams"]),
    ("dmr-spill", &["dmr-adaptors", "dmr-buffer", "dmr-core", "dmr-recorder", "dmr-streams"]),
    ("dmr-recording", &[]),
    ("dmr-recorder", &["dmr-core", "dmr-recording"]),
    ("dmr-trace", &["dmr-core"]),
    ("dmr-arrow", &["dmr-buffer", "dmr-core", "dmr-external", "dmr-launch", "dmr-streams"]),
    ("dmr-capi", &["dmr"]),
    (
        "dmr",
        &[
            "dmr-adaptors",
            "dmr-arrow",
            "dmr-buffer",
            "dmr-core",
            "dmr-cuda-async",
            "dmr-cuda-direct",
            "dmr-cuda-virtual",
            "dmr-dlpack",
            "dmr-external",
            "dmr-graphs",
            "dmr-launch",
            "dmr-nvtx",
            "dmr-pinned",
            "dmr-pool",
            "dmr-recorder",
            "dmr-shared-limit",
            "dmr-slices",
            "dmr-spill",
            "dmr-streams",
        ],
    ),
];

const SIMULATOR: &str = "dmr-sim";

/// The kind of a crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrateKind {
    Memory,
    Simulator,
    Tools,
    /// This program, which depends on no other crate: it runs when they do not compile.
    Xtask,
}

impl CrateKind {
    const IN_FOLDERS: [Self; 3] = [Self::Memory, Self::Simulator, Self::Tools];

    /// Returns the kind that the folder of a crate says; `None` for a crate in another place.
    fn of(package: &Package) -> Option<Self> {
        let manifest = Path::new(&package.manifest_path);
        if manifest.ends_with("xtask/Cargo.toml") {
            return Some(Self::Xtask);
        }
        Self::IN_FOLDERS
            .into_iter()
            .find(|kind| manifest.ends_with(format!("{kind}/{}/Cargo.toml", package.name)))
    }

    /// Returns whether the crates of this kind have a row in the table.
    fn has_rows(self) -> bool {
        matches!(self, Self::Memory | Self::Simulator)
    }

    /// Returns whether a crate of this kind may depend on one of the other kind.
    fn may_use(self, other: Self) -> bool {
        other != Self::Xtask && (self == other || self == Self::Tools)
    }
}

/// The folder.
impl fmt::Display for CrateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "crates/memory",
            Self::Simulator => "crates/simulator",
            Self::Tools => "crates/tools",
            Self::Xtask => "xtask",
        })
    }
}

/// Checks the graph.
pub(crate) fn run() -> Result<(), Failure> {
    none_of(violations(&Workspace::load()?))
}

fn violations(workspace: &Workspace) -> Vec<Violation> {
    let mut found = Vec::new();
    let has_row = |package: &&Package| CrateKind::of(package).is_some_and(CrateKind::has_rows);
    for (name, _) in MAY_DEPEND_ON {
        if workspace.package(name).filter(has_row).is_none() {
            let message = "in the table of xtask's graph, but no crate of memory or simulator";
            found.push(Violation::of(name, message));
        }
    }
    for package in &workspace.packages {
        let Some(kind) = CrateKind::of(package) else {
            let message = "in none of crates/memory, crates/simulator and crates/tools, in a folder \
                           of its name";
            found.push(Violation::of(&package.name, message));
            continue;
        };
        for dependency in &package.dependencies {
            if let Some(other) = workspace.package(&dependency.name) {
                let message = match dependency.kind {
                    DependencyKind::Dev => refuse_in_tests(package, kind, dependency),
                    _ => refuse(kind, other),
                };
                found.extend(message.map(|message| Violation::of(&package.name, message)));
            }
        }
        if kind.has_rows() {
            check_row(workspace, package, &mut found);
        }
    }
    found
}

/// Returns why a crate of this kind must not depend on the other one.
fn refuse(kind: CrateKind, other: &Package) -> Option<String> {
    let of = CrateKind::of(other)?;
    let name = &other.name;
    (!kind.may_use(of)).then(|| format!("depends on {name}: {kind} must not depend on {of}"))
}

/// Returns why the tests of a crate must not depend on another one.
fn refuse_in_tests(package: &Package, kind: CrateKind, on: &Dependency) -> Option<String> {
    let name = &on.name;
    // A simulator that depended on the library would come with a second copy of it in the
    // library's tests.
    if package.name == SIMULATOR || kind == CrateKind::Xtask {
        return Some(format!("dev-depends on {name}: its tests use no other crate"));
    }
    // With a version, packaging would look in the registry for a crate that is not there.
    let has_version = on.req != "*" && package.is_published();
    let needs_it = |it: &Dependency| it.name == *name && it.kind != DependencyKind::Dev;
    (has_version && !package.dependencies.iter().any(needs_it))
        .then(|| format!("dev-depends on {name} {}: give a path and no version", on.req))
}

/// Compares the dependencies of a crate on others of its kind with its row.
fn check_row(workspace: &Workspace, package: &Package, found: &mut Vec<Violation>) {
    let name = &package.name;
    let Some((_, row)) = MAY_DEPEND_ON.iter().find(|(of, _)| of == name) else {
        let message = "not in the table of xtask's graph: decide what it may depend on";
        found.push(Violation::of(name, message));
        return;
    };
    let kind = CrateKind::of(package);
    let is_layer = |it: &&Dependency| {
        let other = workspace.package(&it.name);
        it.kind != DependencyKind::Dev && other.is_some_and(|other| CrateKind::of(other) == kind)
    };
    let used: Vec<_> = package.dependencies.iter().filter(is_layer).map(|it| &*it.name).collect();
    for layer in used.iter().filter(|layer| !row.contains(layer)) {
        found
            .push(Violation::of(name, format!("depends on {layer}: a layer that it must not use")));
    }
    for unused in row.iter().filter(|layer| !used.contains(layer)) {
        let message = format!("may depend on {unused}, and does not: take it out of its row");
        found.push(Violation::of(name, message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workspace::example::{self, dependency};

    fn package(folder: &str, name: &str, dependencies: &[Value]) -> Value {
        let mut package = example::package(name);
        package["manifest_path"] = json!(format!("/r/{folder}/{name}/Cargo.toml"));
        package["dependencies"] = json!(dependencies);
        package
    }

    fn memory(name: &str, dependencies: &[Value]) -> Value {
        package("crates/memory", name, dependencies)
    }

    fn simulator(name: &str, dependencies: &[Value]) -> Value {
        package("crates/simulator", name, dependencies)
    }

    fn tool(name: &str, dependencies: &[Value]) -> Value {
        package("crates/tools", name, dependencies)
    }

    fn normal(name: &str) -> Value {
        dependency(name, None, "^0.1.0")
    }

    fn dev(name: &str) -> Value {
        dependency(name, Some("dev"), "*")
    }

    /// Returns the violations of a workspace with these crates, and for each other row a crate with
    /// exactly its dependencies.
    fn messages(given: &[Value]) -> Vec<String> {
        let names: Vec<_> = given.iter().map(|package| &package["name"]).collect();
        let mut packages = given.to_vec();
        for (name, row) in MAY_DEPEND_ON.iter().filter(|(name, _)| !names.contains(&&json!(name))) {
            let row: Vec<_> = row.iter().map(|layer| normal(layer)).collect();
            let is_simulated = name.starts_with("dmr-sim") || name.starts_with("dmr-ptx");
            packages.push(if is_simulated { simulator(name, &row) } else { memory(name, &row) });
        }
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
        let needed = ["dmr-core", "dmr-recorder", "dmr-shared-limit"].map(normal);
        let tests = [dev("dmr-sim"), dev("dmr-testkit"), dev("dmr-pool"), dev("dmr-adaptors")];
        let others = [dependency("cudarc", None, "^0.19")];
        let adaptors = memory("dmr-adaptors", &[&needed[..], &tests, &others].concat());
        let testkit = tool("dmr-testkit", &[normal("dmr-core"), normal("dmr-sim")]);
        assert_eq!(messages(&[adaptors, testkit]), [""; 0]);
    }

    #[test]
    fn core_must_not_know_the_layers_above_it() {
        let core = memory("dmr-core", &[normal("dmr-trace")]);
        assert_eq!(one(core), "dmr-core: depends on dmr-trace: a layer that it must not use");
        let boot = simulator("dmr-sim-boot", &[normal("dmr-sim"), normal("dmr-ptx")]);
        assert!(one(boot).contains("depends on dmr-ptx: a layer that it must not use"));
    }

    #[test]
    fn a_build_dependency_counts_as_one() {
        for (name, why) in [("dmr-trace", "must not use"), ("dmr-sim", "crates/simulator")] {
            let of_build = dependency(name, Some("build"), "^0.1");
            let found = one(memory("dmr-core", &[of_build]));
            assert!(found.contains(&format!("depends on {name}")) && found.ends_with(why));
        }
    }

    #[test]
    fn a_library_never_brings_the_simulator_by_default() {
        let core = memory("dmr-core", &[normal("dmr-sim")]);
        let never = "dmr-core: depends on dmr-sim: crates/memory must not depend on \
                     crates/simulator";
        assert_eq!(one(core), never);
    }

    #[test]
    fn the_simulator_never_brings_the_library() {
        let ptx = simulator("dmr-ptx-syntax", &[normal("dmr-core")]);
        let other_way = "crates/simulator must not depend on crates/memory";
        assert!(one(ptx).ends_with(other_way));
    }

    #[test]
    fn only_tools_depend_on_tools() {
        let tools = [
            tool("dmr-testkit", &[normal("dmr-core"), normal("dmr-sim")]),
            tool("dmr-bench", &[normal("dmr-testkit"), normal("dmr")]),
        ];
        assert_eq!(messages(&tools), [""; 0]);
        for user in [
            memory("dmr-core", &[normal("dmr-bench")]),
            simulator("dmr-ptx-syntax", &[normal("dmr-bench")]),
        ] {
            let found = messages(&[tools[0].clone(), tools[1].clone(), user]);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("must not depend on crates/tools"), "{found:?}");
        }
    }

    #[test]
    fn the_gates_depend_on_no_crate_and_no_crate_on_them() {
        let xtask = |dependencies: &[Value]| {
            let mut xtask = package("", "xtask", dependencies);
            xtask["manifest_path"] = json!("/r/xtask/Cargo.toml");
            xtask
        };
        assert_eq!(messages(&[xtask(&[])]), [""; 0]);
        assert!(one(xtask(&[normal("dmr-core")])).contains("must not depend on crates/memory"));
        assert!(one(xtask(&[dev("dmr-core")])).contains("its tests use no other crate"));
        let found = messages(&[xtask(&[]), tool("dmr-bench", &[normal("xtask")])]);
        assert_eq!(found, ["dmr-bench: depends on xtask: crates/tools must not depend on xtask"]);
    }

    #[test]
    fn a_permission_that_no_manifest_uses_is_refused() {
        let limit = memory("dmr-shared-limit", &[dev("dmr-core")]);
        let unused =
            "dmr-shared-limit: may depend on dmr-core, and does not: take it out of its row";
        assert_eq!(one(limit), unused);
    }

    fn dev_with_version(name: &str) -> Value {
        dependency(name, Some("dev"), "^0.1.0")
    }

    #[test]
    fn tests_may_use_other_crates_and_their_own_by_path_only() {
        let core = |on| memory("dmr-core", &[on]);
        for name in ["dmr-pool", "dmr-core"] {
            assert_eq!(messages(&[core(dev(name))]), [""; 0]);
            assert!(one(core(dev_with_version(name))).contains("give a path and no version"));
        }
        let mut unpublished = core(dev_with_version("dmr-pool"));
        unpublished["publish"] = json!([]);
        assert_eq!(messages(&[unpublished]), [""; 0]);
    }

    #[test]
    fn tests_may_use_what_the_crate_itself_may_with_a_version() {
        let nvtx = memory("dmr-nvtx", &[normal("dmr-core"), dev_with_version("dmr-core")]);
        assert_eq!(messages(&[nvtx]), [""; 0]);
    }

    #[test]
    fn a_dev_dependency_on_the_simulator_has_no_version() {
        let core = memory("dmr-core", &[dev_with_version("dmr-sim")]);
        assert!(one(core).contains("give a path and no version"));
    }

    #[test]
    fn the_simulator_depends_on_no_crate_of_the_library_not_even_in_its_tests() {
        for name in ["dmr-core", "dmr-testkit", "dmr-ptx"] {
            let tools = tool("dmr-testkit", &[]);
            let found = messages(&[tools, simulator("dmr-sim", &[normal("dmr-ptx"), dev(name)])]);
            assert_eq!(
                found,
                [format!("dmr-sim: dev-depends on {name}: its tests use no other crate")]
            );
        }
    }

    #[test]
    fn a_crate_without_an_entry_is_refused() {
        assert!(one(memory("dmr-new", &[])).contains("decide what it may depend on"));
        assert!(one(simulator("dmr-new", &[])).contains("decide what it may depend on"));
        assert_eq!(messages(&[tool("dmr-new", &[])]), [""; 0]);
    }

    #[test]
    fn a_crate_in_another_place_is_refused() {
        for folder in ["crates", "crates/other", "tools"] {
            assert!(one(package(folder, "dmr-new", &[])).starts_with("dmr-new: in none of"));
        }
        let mut renamed = tool("dmr-new", &[]);
        renamed["manifest_path"] = json!("/r/crates/tools/dmr-old/Cargo.toml");
        assert!(one(renamed).contains("in a folder of its name"));
    }

    #[test]
    fn an_entry_without_a_crate_is_refused() {
        assert_eq!(violations(&example::workspace(&[])).len(), MAY_DEPEND_ON.len());
        assert!(one(tool("dmr-sim-boot", &[])).contains("but no crate of memory or simulator"));
    }
}
