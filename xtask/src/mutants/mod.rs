//! `cargo xtask mutants`: the share of faults that the tests detect, which cargo-mutants puts into
//! the bookkeeping.
//!
//! Mutants are made of the current commit, in a clone inside the target folder, so that neither
//! the working tree nor its builds are touched. Outcomes are kept by commit: a repeated run
//! continues where it was interrupted.

mod options;
mod outcomes;
mod sample;
mod targets;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use options::Options;
use outcomes::Outcomes;
use sample::Mutant;
use targets::{TARGETS, TEST_FILES, Target};

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

const MISSING: &str = "cargo-mutants is not installed: run `cargo install --locked cargo-mutants`";

/// The exit codes with which cargo-mutants has tested every mutant: all were caught, some were
/// missed, some timed out.
const TESTED: [i32; 3] = [0, 2, 3];

/// Tests the mutants of a sample that were not tested before, and prints the score.
pub(crate) fn run(arguments: &[&str]) -> Result<(), Failure> {
    let options = Options::parse(arguments)?;
    let mut probe = command::cargo(&["mutants", "--version"]);
    let found = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !found.is_ok_and(|status| status.success()) {
        return Err(Failure::Setup(MISSING.to_owned()));
    }
    let sandbox = Sandbox::set_up()?;
    let all = sandbox.list()?;
    let mutants = sample::sample(all.clone(), options.sample, options.seed);
    let mutants = sample::shard(mutants, options.shard);
    let before = Outcomes::load(&sandbox.runs)?;
    let done = mutants.iter().filter(|mutant| before.has(mutant)).count();
    println!("{} of {} mutants, {done} tested earlier", mutants.len(), all.len());
    for target in TARGETS {
        let of_target = |mutant: &&Mutant| mutant.package == target.package;
        let is_left = |mutant: &Mutant| mutants.contains(mutant) && !before.has(mutant);
        let (left, others): (Vec<&Mutant>, Vec<&Mutant>) =
            all.iter().filter(of_target).partition(|mutant| is_left(mutant));
        if !left.is_empty() {
            println!("\n{}: {} mutants", target.package, left.len());
            sandbox.test(target, &others, options.timeout)?;
        }
    }
    println!("\n{}", Outcomes::load(&sandbox.runs)?.score(&mutants));
    Ok(())
}

/// The folders in which mutants are made and tested.
struct Sandbox {
    /// A clone of the repository.
    clone: PathBuf,
    /// The target folder of the clone, which later runs use again.
    build: PathBuf,
    /// A folder for each run of cargo-mutants at this commit.
    runs: PathBuf,
}

impl Sandbox {
    /// Checks the current commit out into the clone.
    fn set_up() -> Result<Self, Failure> {
        let folder = Workspace::load()?.target_directory.join("mutants");
        let root = command::root();
        let commit = command::capture(&mut git(&root, &["rev-parse", "HEAD"]))?.trim().to_owned();
        if !command::capture(&mut git(&root, &["status", "--porcelain"]))?.is_empty() {
            println!("uncommitted changes are left out: the mutants are those of {commit}");
        }
        let clone = folder.join("clone");
        if !clone.exists() {
            let mut make = git(&root, &["clone", "--quiet", "--shared", "--no-checkout", "."]);
            command::capture(make.arg(&clone))?;
        }
        // An interrupted run leaves a mutant in the sources.
        let check_out = ["checkout", "--quiet", "--force", "--detach", &commit];
        command::capture(&mut git(&clone, &check_out))?;
        Ok(Self { clone, build: folder.join("build"), runs: folder.join(&commit) })
    }

    /// Lists the mutants of all targets.
    fn list(&self) -> Result<Vec<Mutant>, Failure> {
        let mut mutants = Vec::new();
        for target in TARGETS {
            let mut list = self.cargo_mutants(target);
            let text = command::capture(list.args(["--list", "--json"]))?;
            let found: Vec<Mutant> = serde_json::from_str(&text)
                .map_err(|error| Failure::Setup(format!("cargo mutants --list: {error}")))?;
            if found.iter().any(|mutant| mutant.package != target.package) || found.is_empty() {
                let message = format!("{}: no mutants, or those of other crates", target.package);
                return Err(Failure::Setup(message));
            }
            mutants.extend(found);
        }
        Ok(mutants)
    }

    /// Tests the mutants of one target, without `others`. Outcomes are in the run's folder, also
    /// if this fails.
    fn test(
        &self,
        target: &Target,
        others: &[&Mutant],
        timeout: Option<u64>,
    ) -> Result<(), Failure> {
        let run = self.next_run()?;
        // With `--iterate` cargo-mutants skips the mutants that are listed here. Its option `--re`
        // does not skip all kinds of mutants.
        let list: String = others.iter().map(|mutant| format!("{}\n", mutant.name)).collect();
        let path = run.join("mutants.out/previously_caught.txt");
        std::fs::write(&path, list).map_err(|error| cannot("write", &path, &error))?;
        let mut test = self.cargo_mutants(target);
        test.args(["--iterate", "--in-place", "--no-shuffle", "--cap-lints", "true"]);
        test.args(["--all-features", "--colors", "never", "--output"]).arg(&run);
        test.args(target.tested_by.iter().flat_map(|package| ["--test-package", *package]));
        if let Some(seconds) = timeout {
            test.args(["--timeout", &seconds.to_string()]);
        }
        let failed = |why: &dyn std::fmt::Display| {
            Failure::Setup(format!("cargo mutants on {}: {why}", target.package))
        };
        let status = test.status().map_err(|error| failed(&error))?;
        match status.code() {
            Some(code) if TESTED.contains(&code) => Ok(()),
            _ => Err(failed(&status)),
        }
    }

    /// Makes a folder that no run has used.
    fn next_run(&self) -> Result<PathBuf, Failure> {
        let mut run = 0;
        while self.runs.join(run.to_string()).exists() {
            run += 1;
        }
        let folder = self.runs.join(run.to_string());
        std::fs::create_dir_all(folder.join("mutants.out"))
            .map_err(|error| cannot("make", &folder, &error))?;
        Ok(folder)
    }

    /// Makes a command of cargo-mutants in the clone, on the files of a target.
    fn cargo_mutants(&self, target: &Target) -> Command {
        let mut command = command::cargo(&["mutants"]);
        command.current_dir(&self.clone).arg("--dir").arg(&self.clone);
        command.args(target.files.iter().flat_map(|file| ["--file", *file]));
        command.args(TEST_FILES.iter().flat_map(|file| ["--exclude", *file]));
        command.env("CARGO_TARGET_DIR", &self.build).env("DMR_DRIVER", "sim");
        command.env_remove("DMR_BACKEND");
        command
    }
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Setup(format!("cannot {what} {}: {error}", path.display()))
}

fn git(folder: &Path, arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(arguments);
    git
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_tested_by_itself_first_of_all() {
        for target in TARGETS {
            assert_eq!(target.tested_by.first(), Some(&target.package));
            let folder = format!("/{}/src/", target.package);
            assert!(target.files.iter().all(|file| file.contains(&folder)), "{folder}");
        }
    }
}
