//! `cargo xtask bundle`: tests, examples and programs for a machine with a driver but neither Rust
//! nor the sources.

pub(crate) mod artifacts;
pub(crate) mod pack;
pub(crate) mod script;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use artifacts::{Artifact, Role};

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

const FOLDER: &str = "dmr-bundle";
const SCRIPT: &str = include_str!("run.sh");

/// The programs that are bundled beside tests and examples: package and binary.
const PROGRAMS: &[(&str, &str)] =
    &[("dmr-cli", "dmr"), ("dmr-bench", "dmr-bench"), ("dmr-sanitize", "control")];

/// Test executables that need what a bundle does not have, by package and name: they are left out
/// as a whole. A test of that kind is in one of them, so that no test is skipped by its name and
/// none returns early.
const NEED_THE_BUILD: &[(&str, &str)] = &[
    // Line tables, which are stripped.
    ("dmr", "build"),
    ("dmr-sim", "build"),
    ("dmr-sim", "cuboid"),
    // Shared libraries beside the executable, and a C compiler.
    ("dmr-capi", "build"),
    // Shared libraries beside the executable.
    ("dmr-sim-blas", "sim"),
    ("dmr-sim-library", "sim_programs"),
];

/// The packages whose examples are not bundled: these test and measure the interpreter, and use no
/// GPU.
const EXAMPLES_WITHOUT_GPU: &[&str] = &["dmr-ptx", "dmr-sim"];

/// The package that is not bundled: its tests read the sources.
const EXCLUDED: &str = "xtask";

/// The options of `bundle`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// The folder of the bundle; `None` is `target/bundle`.
    out: Option<PathBuf>,
    /// The crates whose tests and examples are packed; all crates if this is empty.
    packages: Vec<String>,
}

impl Options {
    /// Parses `--out DIR` and any number of `--package NAME`.
    pub(crate) fn parse(arguments: &[&str]) -> Result<Self, Failure> {
        let mut options = Self::default();
        for pair in arguments.chunks(2) {
            match pair {
                ["--out", folder] => options.out = Some(PathBuf::from(folder)),
                ["--package" | "-p", name] => options.packages.push((*name).to_owned()),
                _ => {
                    let usage = "bundle [--out DIR] [--package NAME]...";
                    return Err(Failure::Setup(format!(
                        "unknown argument: {}\nusage: {usage}",
                        pair.join(" ")
                    )));
                }
            }
        }
        Ok(options)
    }

    fn selection(&self) -> Vec<&str> {
        if self.packages.is_empty() {
            return vec!["--workspace", "--exclude", EXCLUDED];
        }
        self.packages.iter().flat_map(|name| ["-p", name.as_str()]).collect()
    }
}

/// Builds, collects, strips and packs; prints the content and the size.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let tests = build(&[&["test", "--no-run"], &options.selection()[..]].concat())?;
    let packages: Vec<&str> = PROGRAMS.iter().flat_map(|(package, _)| ["-p", package]).collect();
    let programs = build(&[&["build", "--release", "--bins"], &packages[..]].concat())?;

    let out = match &options.out {
        Some(folder) => {
            std::path::absolute(folder).map_err(|error| cannot("use", folder, &error))?
        }
        None => Workspace::load()?.target_directory.join("bundle"),
    };
    let folder = out.join(FOLDER);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|error| cannot("empty", &folder, &error))?;
    }
    let mut count = 0;
    let mut empty = 0;
    for artifact in &tests {
        match artifact.role {
            Role::Program => continue,
            Role::Test if NEED_THE_BUILD.contains(&(&artifact.package, &artifact.target)) => {
                continue;
            }
            Role::Test if lists_no_test(&artifact.executable)? => {
                empty += 1;
                continue;
            }
            Role::Example if EXAMPLES_WITHOUT_GPU.contains(&artifact.package.as_str()) => continue,
            Role::Test | Role::Example => {}
        }
        pack::executable(&artifact.executable, &folder.join(artifact.place()))?;
        count += 1;
    }
    for artifact in programs.iter().filter(|artifact| artifact.role == Role::Program) {
        if PROGRAMS.iter().any(|(_, program)| *program == artifact.target) {
            pack::executable(&artifact.executable, &folder.join(artifact.place()))?;
            count += 1;
        }
    }
    pack::traces(&command::root().join("traces"), &folder.join("traces"))?;
    pack::script(SCRIPT, &folder.join("run.sh"))?;
    let archive = pack::archive(&out, FOLDER)?;
    println!(
        "{count} executables; {empty} test executables without a test left out\n{}: {:.1} MiB",
        archive.path.display(),
        archive.bytes as f64 / f64::from(1 << 20)
    );
    archive.check_size()
}

/// Builds, and returns the executables that cargo names.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Artifact>, Failure> {
    let arguments = [arguments, &["--message-format", "json-render-diagnostics"]].concat();
    // Cargo's progress is shown: a build of all crates takes minutes.
    let mut cargo = command::cargo(&arguments);
    let messages = command::capture(cargo.stderr(Stdio::inherit()))?;
    Ok(artifacts::from_messages(&messages))
}

/// Returns whether the executable lists no test.
fn lists_no_test(executable: &Path) -> Result<bool, Failure> {
    let list = command::capture(Command::new(executable).args(["--list", "--format", "terse"]))?;
    Ok(!list.lines().any(|line| line.ends_with(": test")))
}

/// Makes the failure of an operation on a file.
pub(crate) fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Setup(format!("cannot {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_arguments_everything_but_this_program_is_bundled() {
        let options = Options::parse(&[]).unwrap();
        assert_eq!(options.selection(), ["--workspace", "--exclude", "xtask"]);
        assert_eq!(options.out, None);
    }

    #[test]
    fn packages_and_the_folder_can_be_named() {
        let options = Options::parse(&["--package", "dmr", "--out", "x", "-p", "dmr-cli"]).unwrap();
        assert_eq!(options.selection(), ["-p", "dmr", "-p", "dmr-cli"]);
        assert_eq!(options.out, Some(PathBuf::from("x")));
    }

    #[test]
    fn an_unknown_argument_is_named() {
        for arguments in [&["--out"][..], &["--fast", "x"]] {
            let failure = Options::parse(arguments).unwrap_err().to_string();
            assert!(failure.contains(arguments[0]) && failure.contains("usage"), "{failure}");
        }
    }
}
