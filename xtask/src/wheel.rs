//! `cargo xtask wheel`: builds the Python package, installs it into a fresh virtual environment,
//! and runs its tests there on the simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command;
use crate::failure::Failure;
use crate::workspace::Workspace;

/// Tests that run by name: the others are found.
const SIMULATED_ONLY: &str = "simulated_races";

/// Builds the wheel, and tests it.
pub(crate) fn run() -> Result<(), Failure> {
    let target = Workspace::load()?.target_directory;
    let wheel = build(&target)?;
    println!("{}", wheel.display());
    let environment = target.join("wheel/environment");
    install(&wheel, &environment)?;
    test(&environment)
}

/// Returns the built wheel.
fn build(target: &Path) -> Result<PathBuf, Failure> {
    let packages = ["build", "--release", "-p", "dmr-capi", "-p", "dmr-sim-library"];
    command::show(&mut command::cargo(&packages))?;
    let root = command::root();
    let release = target.join("release");
    let to = target.join("wheel");
    let cannot = |error| Failure::Setup(format!("cannot make {}: {error}", to.display()));
    std::fs::create_dir_all(&to).map_err(cannot)?;
    let library = release.join("libdmr_capi.so");
    let shim = to.join("libdmr_torch.so");
    let mut compile = Command::new("c++");
    compile
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        // The library is beside it in the package.
        .args(["-Wl,-rpath,$ORIGIN", "-Wl,-soname,libdmr_torch.so"])
        .arg("-I")
        .arg(root.join("crates/memory/dmr-capi/include"))
        .arg(root.join("python/shim/torch.cpp"))
        .arg("-L")
        .arg(&release)
        .args(["-ldmr_capi", "-o"])
        .arg(&shim);
    command::show(&mut compile)?;
    let mut pack = Command::new("python3");
    pack.arg(root.join("python/build_wheel.py"))
        .arg("--library")
        .arg(library)
        .arg("--shim")
        .arg(shim)
        .arg("--simulator")
        .arg(release.join("libdmr_sim_library.so"))
        .args(["--version", env!("CARGO_PKG_VERSION"), "--out"])
        .arg(to);
    Ok(PathBuf::from(command::capture(&mut pack)?.trim()))
}

/// Installs the wheel into a new virtual environment, without a network.
fn install(wheel: &Path, environment: &Path) -> Result<(), Failure> {
    if environment.exists() {
        let cannot =
            |error| Failure::Setup(format!("cannot remove {}: {error}", environment.display()));
        std::fs::remove_dir_all(environment).map_err(cannot)?;
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(environment);
    command::show(&mut make)?;
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--no-index", "--disable-pip-version-check"]).arg(wheel);
    command::show(&mut install)
}

/// Runs the package's tests with its simulated driver.
fn test(environment: &Path) -> Result<(), Failure> {
    let python = environment.join("bin/python");
    let mut find = Command::new(&python);
    find.args(["-c", "from dmr._library import SIMULATED_DRIVER; print(SIMULATED_DRIVER.parent)"]);
    let driver = command::capture(&mut find)?;
    for arguments in [&["discover"][..], &[SIMULATED_ONLY]] {
        let mut test = Command::new(&python);
        test.args(["-m", "unittest"])
            .args(arguments)
            .arg("--quiet")
            .env("LD_LIBRARY_PATH", driver.trim())
            .current_dir(command::root().join("python/tests"));
        command::show(&mut test)?;
    }
    Ok(())
}
