//! `cargo xtask alone`: a program that depends on one crate with one feature builds, and runs, for
//! each published crate and each of its features.
//!
//! Within the workspace, cargo may build a crate with the features that its neighbours need. The
//! programs are packages of a workspace of their own, in the target folder, and are built one at a
//! time. Those that need a driver use the simulated one.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command;
use crate::failure::{Failure, Violation, none_of};
use crate::workspace::Workspace;

/// A program that uses the public interface of one crate. Its parts for a feature are under
/// `#[cfg(feature = ...)]`.
struct Program {
    /// The crate.
    of: &'static str,
    /// The other crates that the program names, without features: what the interface of the crate
    /// mentions, a backend below it, the simulated driver.
    beside: &'static [&'static str],
    source: &'static str,
}

macro_rules! programs {
    ($($of:literal $file:literal [$($beside:literal)*],)+) => {
        &[$(Program {
            of: $of,
            beside: &[$($beside),*],
            source: include_str!(concat!("programs/", $file, ".rs")),
        }),+]
    };
}

const PROGRAMS: &[Program] = programs! {
    "dmr" "dmr" ["dmr-cuda-direct" "dmr-sim"],
    "dmr-adaptors" "dmr_adaptors" ["dmr-core"],
    "dmr-arrow" "dmr_arrow" ["dmr-buffer" "dmr-core" "dmr-cuda-async" "dmr-sim" "dmr-streams"],
    "dmr-buffer" "dmr_buffer" ["dmr-core" "dmr-cuda-direct" "dmr-sim" "dmr-streams"],
    "dmr-core" "dmr_core" [],
    "dmr-cuda-async" "dmr_cuda_async" ["dmr-core" "dmr-sim" "dmr-streams"],
    "dmr-cuda-direct" "dmr_cuda_direct" ["dmr-core" "dmr-sim" "dmr-streams"],
    "dmr-cuda-virtual" "dmr_cuda_virtual" ["dmr-core" "dmr-sim" "dmr-streams"],
    "dmr-dlpack" "dmr_dlpack" ["dmr-buffer" "dmr-core" "dmr-cuda-direct" "dmr-external" "dmr-sim" "dmr-streams"],
    "dmr-external" "dmr_external" ["cudarc" "dmr-core" "dmr-sim" "dmr-streams"],
    "dmr-graphs" "dmr_graphs" ["cudarc" "dmr-core" "dmr-cuda-direct" "dmr-sim" "dmr-streams"],
    "dmr-launch" "dmr_launch" ["cudarc" "dmr-core" "dmr-cuda-direct" "dmr-sim" "dmr-streams"],
    "dmr-nvtx" "dmr_nvtx" [],
    "dmr-pinned" "dmr_pinned" ["dmr-sim" "dmr-streams"],
    "dmr-pool" "dmr_pool" ["dmr-core" "dmr-sim" "dmr-streams"],
    "dmr-ptx" "dmr_ptx" [],
    "dmr-ptx-arith" "dmr_ptx_arith" [],
    "dmr-ptx-exec" "dmr_ptx_exec" [],
    "dmr-ptx-syntax" "dmr_ptx_syntax" [],
    "dmr-recorder" "dmr_recorder" [],
    "dmr-recording" "dmr_recording" [],
    "dmr-report" "dmr_report" [],
    "dmr-shared-limit" "dmr_shared_limit" [],
    "dmr-sim" "dmr_sim" ["cudarc"],
    "dmr-sim-boot" "dmr_sim_boot" ["cudarc"],
    "dmr-slices" "dmr_slices" ["dmr-core" "dmr-sim" "dmr-streams"],
    "dmr-spill" "dmr_spill" ["dmr-buffer" "dmr-core" "dmr-cuda-direct" "dmr-sim" "dmr-streams"],
    "dmr-streams" "dmr_streams" ["dmr-sim"],
    "dmr-trace" "dmr_trace" ["dmr-core"],
};

/// The module that programs include as `mod own_resource`.
const OWN_RESOURCE: &str = include_str!("programs/own_resource.rs");

/// Published crates that have no library.
const COMMANDS: &[&str] = &["dmr-cli"];

/// Writes the packages, then builds and runs each program: without features, and with each alone.
pub(crate) fn run() -> Result<(), Failure> {
    let workspace = Workspace::load()?;
    none_of(missing(&workspace))?;
    let folder = workspace.target_directory.join("alone");
    write_workspace(&folder, &workspace)?;
    for program in PROGRAMS {
        run_program(&folder, program, None)?;
        for feature in features(&workspace, program) {
            run_program(&folder, program, Some(feature))?;
        }
    }
    Ok(())
}

/// Finds published libraries without a program, and programs of crates that do not exist.
fn missing(workspace: &Workspace) -> Vec<Violation> {
    let has_program = |name: &str| PROGRAMS.iter().any(|program| program.of == name);
    let published = workspace.packages.iter().filter(|package| package.is_published());
    let without = published
        .map(|package| package.name.as_str())
        .filter(|name| !COMMANDS.contains(name) && !has_program(name))
        .map(|name| Violation::of(name, "no program in xtask's alone uses it: write one"));
    let stale = PROGRAMS
        .iter()
        .filter(|program| workspace.package(program.of).is_none())
        .map(|program| Violation::of(program.of, "has a program in xtask's alone, but no crate"));
    without.chain(stale).collect()
}

/// Returns the features that a user can name: not `default`, and not those that stand for a crate
/// of this workspace.
fn features<'w>(workspace: &'w Workspace, program: &Program) -> Vec<&'w str> {
    let package = workspace.package(program.of);
    let features = package.into_iter().flat_map(|package| package.features.keys());
    features
        .map(String::as_str)
        .filter(|feature| *feature != "default" && workspace.package(feature).is_none())
        .collect()
}

fn run_program(folder: &Path, program: &Program, feature: Option<&str>) -> Result<(), Failure> {
    let mut run = command::cargo(&["run", "--quiet", "--package", &package_name(program)]);
    run.args(feature.map(|feature| ["--features", feature]).into_iter().flatten());
    run.arg("--target-dir").arg(folder.join("build")).current_dir(folder);
    command::show(run.env_remove("DMR_BACKEND").env_remove("DMR_DRIVER"))
}

fn package_name(program: &Program) -> String {
    format!("alone-{}", program.of)
}

/// Writes the workspace of the programs, with the dependencies and the lock file of this one.
fn write_workspace(folder: &Path, workspace: &Workspace) -> Result<(), Failure> {
    let root = command::root();
    let manifest = read(&root.join("Cargo.toml"))?;
    write(&folder.join("Cargo.toml"), &workspace_manifest(&manifest, &root))?;
    write(&folder.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
    for program in PROGRAMS {
        let package = folder.join(program.of);
        let features = features(workspace, program);
        write(&package.join("Cargo.toml"), &package_manifest(program, &features))?;
        write(&package.join("src/main.rs"), program.source)?;
        write(&package.join("src/own_resource.rs"), OWN_RESOURCE)?;
    }
    Ok(())
}

/// Returns the manifest of the programs' workspace: the dependencies of this one, with the paths of
/// its crates. Programs that run for milliseconds need no optimisation.
fn workspace_manifest(manifest: &str, root: &Path) -> String {
    const TABLE: &str = "[workspace.dependencies]";
    let table = manifest.split(TABLE).nth(1).unwrap_or_default();
    let dependencies = table.split("\n[").next().unwrap_or_default();
    let crates = format!("path = \"{}/crates/", root.display());
    format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"dmr*\"]\n\n{TABLE}{}\n\
         [profile.dev]\nopt-level = 0\ndebug = false\nincremental = false\n",
        dependencies.replace("path = \"crates/", &crates)
    )
}

fn package_manifest(program: &Program, features: &[&str]) -> String {
    let mut text = format!(
        "[package]\nname = \"{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\n",
        package_name(program)
    );
    for name in [&[program.of], program.beside].concat() {
        _ = writeln!(text, "{name}.workspace = true");
    }
    text.push_str("\n[features]\n");
    for feature in features {
        _ = writeln!(text, "{feature} = [\"{}/{feature}\"]", program.of);
    }
    // Among the warnings: a part for a feature that the crate does not have.
    text.push_str("\n[lints.rust]\nwarnings = \"deny\"\n");
    text
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| cannot("read", path, &error))
}

/// Writes a file, unless it has this content: cargo would build again what has a new time.
fn write(path: &PathBuf, text: &str) -> Result<(), Failure> {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| cannot("create", folder, &error))?;
    fs::write(path, text).map_err(|error| cannot("write", path, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Setup(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workspace::example;

    fn with_all_programs(more: &[serde_json::Value]) -> Workspace {
        let own = PROGRAMS.iter().map(|program| example::package(program.of));
        example::workspace(&own.chain(more.iter().cloned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_published_library_without_a_program_is_found() {
        assert_eq!(missing(&with_all_programs(&[example::package("dmr-cli")])), []);
        let found = missing(&with_all_programs(&[example::package("dmr-new")]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].place, "dmr-new");
        let mut private = example::package("dmr-new");
        private["publish"] = json!([]);
        assert_eq!(missing(&with_all_programs(&[private])), []);
    }

    #[test]
    fn a_program_of_a_crate_that_is_gone_is_found() {
        let one = example::package(PROGRAMS[0].of);
        assert_eq!(missing(&example::workspace(&[one])).len(), PROGRAMS.len() - 1);
    }

    #[test]
    fn every_feature_but_the_default_ones_has_a_run_of_its_own() {
        let mut package = example::package(PROGRAMS[0].of);
        package["features"] = json!({ "default": ["a"], "a": [], "b": ["dmr-x"], "dmr-x": [] });
        let workspace = example::workspace(&[package, example::package("dmr-x")]);
        assert_eq!(features(&workspace, &PROGRAMS[0]), ["a", "b"]);
    }

    #[test]
    fn the_programs_have_the_dependencies_of_this_workspace() {
        let manifest = "[workspace.dependencies]\na = { path = \"crates/a\" }\nb = { features = [\n    \
             \"x\",\n] }\n\n[workspace.lints.rust]\nc = 1\n";
        let text = workspace_manifest(manifest, Path::new("/r"));
        assert!(text.contains("a = { path = \"/r/crates/a\" }\nb = { features"), "{text}");
        assert!(!text.contains("c = 1"), "{text}");
    }
}
