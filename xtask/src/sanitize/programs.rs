//! Builds the programs that rows run, and lists the rows.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::rows::{self, Build, Row};
use crate::bundle::{self, artifacts::Artifact, pack};
use crate::command;
use crate::failure::Failure;

const PACKAGE: &str = "dmr-sanitize";
const PROGRAMS: [&str; 2] = ["device", "control"];

/// Builds every program into a folder: `FOLDER/BUILD/PROGRAM`.
pub(super) fn build(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(|error| bundle::cannot("empty", folder, &error))?;
    }
    for build in Build::ALL {
        // A build of an integration test brings the binaries of its package.
        let selection = ["-p", PACKAGE, "--test", "device"];
        let features = ["--no-default-features", "--features", build.features()];
        let arguments = [&["test", "--locked", "--no-run"], &selection[..], &features].concat();
        let artifacts = bundle::build(&arguments)?;
        for program in PROGRAMS {
            let executable = executable(&artifacts, program)?;
            pack::executable(executable, &folder.join(build.folder()).join(program))?;
        }
    }
    Ok(())
}

fn executable<'a>(artifacts: &'a [Artifact], program: &str) -> Result<&'a Path, Failure> {
    let is_it = |it: &&Artifact| it.package == PACKAGE && it.target == program && !it.is_unit_test;
    let found = artifacts.iter().find(is_it).map(|it| it.executable.as_path());
    found.ok_or_else(|| Failure::Setup(format!("cargo built no {program} of {PACKAGE}")))
}

/// Returns every row: the tests, then the controls of all builds, each in the smallest build that
/// has it.
pub(super) fn rows(folder: &Path) -> Result<Vec<Row>, Failure> {
    let mut all = rows::tests();
    for build in Build::ALL {
        let program: PathBuf = folder.join(build.folder()).join("control");
        let list = command::capture(Command::new(&program).arg("--list"))?;
        let controls = rows::controls(build, &list)?;
        if controls.is_empty() {
            return Err(Failure::Setup(format!("{}: lists no control", program.display())));
        }
        for control in controls {
            if all.iter().all(|row| row.id() != control.id()) {
                all.push(control);
            }
        }
    }
    Ok(all)
}
